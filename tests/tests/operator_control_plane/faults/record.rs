//! What nodes are given, as a watch of NodeProxies shows it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use kube::api::DynamicObject;

use super::pools::Pool;

/// All nodes that have a NodeProxy.
#[derive(Debug)]
pub(crate) struct Record {
    pools: &'static [Pool],
    nodes: BTreeMap<String, Node>,
    excesses: BTreeSet<String>,
}

/// One node.
#[derive(Debug)]
struct Node {
    /// Its NodeProxy.
    proxy: DynamicObject,
    /// Every generation of that object, with the configuration.
    given: Vec<(i64, String)>,
    /// When it was given the last one, on the API server's clock, in whole seconds.
    given_at: Timestamp,
    /// When its agent first reported on that, by the same clock.
    reported_at: Option<Timestamp>,
}

// === impl Record ===

impl Record {
    /// Starts a record without nodes. Nodes that belong to none of `pools` are not judged.
    pub(crate) fn new(pools: &'static [Pool]) -> Record {
        Record {
            pools,
            nodes: BTreeMap::new(),
            excesses: BTreeSet::new(),
        }
    }

    /// Records that these NodeProxies exist.
    pub(crate) fn apply(&mut self, proxies: impl IntoIterator<Item = DynamicObject>) {
        for proxy in proxies {
            let name = proxy.name_any();
            let before = self.nodes.remove(&name);
            let before = before.filter(|node| node.proxy.uid() == proxy.uid());
            self.nodes.insert(name, Node::follow(before, proxy));
        }
        self.judge();
    }

    /// Records that only these NodeProxies exist.
    pub(crate) fn replace(&mut self, proxies: Vec<DynamicObject>) {
        let names: BTreeSet<String> = proxies.iter().map(DynamicObject::name_any).collect();
        self.nodes.retain(|name, _| names.contains(name));
        self.apply(proxies);
    }

    /// Records that the NodeProxy is gone.
    pub(crate) fn remove(&mut self, proxy: &DynamicObject) {
        self.nodes.remove(&proxy.name_any());
    }

    /// Returns every generation of the present NodeProxy of `node`, with its configuration; empty
    /// if there is none.
    pub(crate) fn given(&self, node: &str) -> Vec<(i64, &str)> {
        let given = self.nodes.get(node).into_iter().flat_map(|n| &n.given);
        given
            .map(|(generation, period)| (*generation, period.as_str()))
            .collect()
    }

    /// Whether `node` has this configuration.
    pub(crate) fn has(&self, node: &str, period: &str) -> bool {
        self.given(node)
            .last()
            .is_some_and(|(_, given)| *given == period)
    }

    /// Whether the agent of `node` has reported on what the node was given last.
    pub(crate) fn has_reported(&self, node: &str) -> bool {
        self.nodes.get(node).is_some_and(Node::has_reported)
    }

    /// Returns all NodeProxies.
    pub(crate) fn proxies(&self) -> impl Iterator<Item = &DynamicObject> {
        self.nodes.values().map(|node| &node.proxy)
    }

    /// Returns the UIDs of all NodeProxies.
    pub(crate) fn uids(&self) -> BTreeSet<String> {
        self.proxies().filter_map(DynamicObject::uid).collect()
    }

    /// Returns the present configuration of each node.
    pub(crate) fn configurations(&self) -> BTreeMap<String, String> {
        let last = |(name, node): (&String, &Node)| {
            let (_, period) = node.given.last()?;
            Some((name.clone(), period.clone()))
        };
        self.nodes.iter().filter_map(last).collect()
    }

    /// Returns all states so far in which more nodes had a change without proof than may be
    /// unavailable.
    pub(crate) fn excesses(&self) -> &BTreeSet<String> {
        &self.excesses
    }

    /// Describes all nodes, for an error message.
    pub(crate) fn describe(&self) -> String {
        let line = |(name, node): (&String, &Node)| {
            let reported = &node.proxy.data["status"]["observedGeneration"];
            format!("{name}: {:?}, reported {reported}", node.given)
        };
        let lines: Vec<String> = self.nodes.iter().map(line).collect();
        lines.join("\n")
    }

    /// A change has no proof until `rollout.minReady` after the agent's report.
    fn judge(&mut self) {
        for pool in self.pools {
            let names: BTreeSet<String> = pool.nodes().collect();
            let there = (2, pool.most, pool.min_ready);
            let back = (3, pool.most_back, pool.min_ready_back);
            for (generation, most, min_ready) in [there, back] {
                let min_ready = SignedDuration::try_from(min_ready).unwrap_or_default();
                let changed = self.nodes.iter().filter(|(name, node)| {
                    names.contains(*name) && node.generation() == generation
                });
                let changed: Vec<(&String, &Node)> = changed.collect();
                let last = changed.iter().map(|(_, node)| node.given_at).max();
                let is_unproven = |node: &Node| {
                    let reported = last.zip(node.reported_at);
                    let age = reported.map(|(last, reported)| last.duration_since(reported));
                    age.is_none_or(|age| age < min_ready)
                };
                let unproven = changed.into_iter().filter(|(_, node)| is_unproven(node));
                let unproven: Vec<&String> = unproven.map(|(name, _)| name).collect();
                if unproven.len() > most {
                    let excess = format!("generation {generation} of {unproven:?}");
                    self.excesses.insert(excess);
                }
            }
        }
    }
}

// === impl Node ===

impl Node {
    /// Returns the node with its NodeProxy as it is now. `before` is what was known of the same
    /// object.
    fn follow(before: Option<Node>, proxy: DynamicObject) -> Node {
        let generation = proxy.metadata.generation.unwrap_or_default();
        let mut node = match before {
            Some(node) if node.generation() == generation => Node { proxy, ..node },
            before => {
                let mut given = before.map(|node| node.given).unwrap_or_default();
                let period = proxy.data["spec"]["config"]["syncPeriod"].as_str();
                given.push((generation, period.unwrap_or_default().to_owned()));
                Node {
                    given,
                    given_at: last_write(&proxy, "").unwrap_or_default(),
                    reported_at: None,
                    proxy,
                }
            }
        };
        if node.reported_at.is_none() && node.has_reported() {
            node.reported_at = last_write(&node.proxy, "status");
        }
        node
    }

    fn generation(&self) -> i64 {
        self.proxy.metadata.generation.unwrap_or_default()
    }

    fn has_reported(&self) -> bool {
        self.proxy.data["status"]["observedGeneration"] == self.generation()
    }
}

/// Returns when the spec or a subresource was last changed.
fn last_write(proxy: &DynamicObject, subresource: &str) -> Option<Timestamp> {
    let entries = proxy.metadata.managed_fields.iter().flatten();
    let writes = entries.filter(|e| e.subresource.as_deref().unwrap_or_default() == subresource);
    let times = writes.filter_map(|entry| entry.time.as_ref());
    times.map(|time| time.0).max()
}
