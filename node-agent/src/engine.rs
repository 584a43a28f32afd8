//! Turns the deliveries of a source into the desired state of the kernel: a state machine without
//! I/O.

mod account;
mod namespace_limit;
mod pass;
mod query;
mod queue;
mod rejections;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use catalog::{Catalog, NodeLifecycle, OwnNode};
use crds::readable::with_fields_of;
use crds::{ConfigHash, EffectiveConfig};
use dataplane::{Config, Dataplane, Node, ServiceKey, ServiceRules};

use self::namespace_limit::{MOST_ELEMENTS_OF_A_NAMESPACE, NamespaceLimit};
use self::queue::Queue;
use self::rejections::Rejections;
use crate::node_config::{
    Facts, asks_for_flowtable, flowtable_interfaces, without_unused_link_local,
};
use source::addresses::WatchScope;
use source::{Assignment, Delivery, Interfaces, LocalAddresses, SourceCondition};
#[cfg(test)]
pub(crate) use view::tests::assigned;
pub(crate) use view::{AppliedConfig, View, ViewSender};

/// All that is known about the cluster, and the desired state that follows for this node.
#[derive(Debug)]
pub(crate) struct Engine {
    name: Arc<str>,
    catalog: Catalog,
    local_addresses: Option<LocalAddresses>,
    /// `None` before the first delivery of them.
    interfaces: Option<Interfaces>,
    configuration: Configuration,
    /// The settings of `configuration`, and their hash. Computed once per configuration, not on
    /// every read.
    effective: Arc<EffectiveConfig>,
    hash: ConfigHash,
    silence: MissingAssignment,
    source: SourceHealth,
    dataplane: Dataplane,
    /// The inputs of the last compilation; `None` before the first.
    compiled: Option<CompiledWith>,
    rejected: BTreeMap<ServiceKey, Arc<ServiceRules>>,
    rejections: Arc<Rejections>,
    /// Whether the rejections have changed since the list was built.
    rejections_changed: bool,
    endpoints: usize,
    /// What has been delivered since the last pass.
    waiting: Option<Waiting>,
    /// The changed Services that the passes so far had no time for.
    queue: Queue,
    namespace_limit: NamespaceLimit,
    /// The Services of each namespace that are served although they have no room any more. They go
    /// before the next one of the namespace is compiled.
    evicted: BTreeMap<Arc<str>, VecDeque<ServiceKey>>,
}

/// The configuration of this node, and where it comes from.
#[derive(Debug, Clone)]
pub(crate) enum Configuration {
    /// No assignment has arrived yet, and it is too early to continue without one.
    Awaited {
        /// The assignment from before the start, if it is known.
        last_good: Option<Arc<Assignment>>,
    },
    /// This assignment is current.
    Assigned(Arc<Assignment>),
    /// There is no assignment now; this was the last one, perhaps from before a restart.
    LastGood(Arc<Assignment>),
    /// There was never an assignment.
    Default,
}

/// What the absence of an assignment means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingAssignment {
    /// An assignment may still arrive, from an operator that has just seen the node.
    MayEnd,
    /// There is none: the whole directory has been read.
    IsAnAnswer,
}

/// The state of the source.
#[derive(Debug, Clone, Default)]
pub(crate) struct SourceHealth {
    /// Since when the source cannot be reached, and why.
    pub(crate) stale: Option<(SystemTime, String)>,
    /// For a directory: what in it cannot be read. `None` for other sources.
    pub(crate) unreadable: Option<Vec<String>>,
}

#[derive(Debug, Clone)]
struct CompiledWith {
    node: Arc<Node>,
    config: Arc<Config>,
    effective: Arc<EffectiveConfig>,
}

/// How much of the compiled state is outdated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outdated {
    /// Nothing.
    Nothing,
    /// The node's own part of the dataplane; the rules of no Service.
    Node,
    /// Everything.
    Everything,
}

/// Deliveries since the last pass.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    everything: bool,
}

// === impl Engine ===

impl Engine {
    /// An engine for the node called `name`, whose last assignment was `last_good`.
    pub(crate) fn new(
        name: &str,
        last_good: Option<Assignment>,
        silence: MissingAssignment,
    ) -> Engine {
        let defaults = EffectiveConfig::default();
        Engine {
            name: name.into(),
            catalog: Catalog::new(name),
            local_addresses: None,
            interfaces: None,
            configuration: Configuration::Awaited {
                last_good: last_good.map(Arc::new),
            },
            hash: ConfigHash::of(&defaults),
            effective: Arc::new(defaults),
            silence,
            source: SourceHealth::default(),
            dataplane: Dataplane::default(),
            compiled: None,
            rejected: BTreeMap::new(),
            rejections: Arc::default(),
            rejections_changed: false,
            endpoints: 0,
            waiting: None,
            queue: Queue::default(),
            namespace_limit: NamespaceLimit::new(MOST_ELEMENTS_OF_A_NAMESPACE),
            evicted: BTreeMap::new(),
        }
    }

    /// Restores the node's own object as an earlier process last saw it. Called before the first
    /// delivery.
    pub(crate) fn recall_node(&mut self, node: OwnNode) {
        self.catalog.recall_node(node);
    }

    /// Returns the node's own object, as last observed.
    pub(crate) fn node(&self) -> Option<&OwnNode> {
        self.catalog.node()
    }

    /// Takes in one delivery, received at `now`.
    pub(crate) fn apply(&mut self, delivery: Delivery, now: Instant) {
        let everything = match delivery {
            Delivery::Objects(change) => {
                self.catalog.apply(change);
                false
            }
            Delivery::Configuration(Some(assignment)) => {
                let assignment = self.configuration.keep_unreadable(assignment);
                self.configure(Configuration::Assigned(Arc::new(assignment)));
                true
            }
            Delivery::Configuration(None) => {
                if let Configuration::Assigned(assignment) = &self.configuration {
                    self.configuration = Configuration::LastGood(Arc::clone(assignment));
                } else if self.silence == MissingAssignment::IsAnAnswer {
                    self.go_without_assignment(now);
                }
                false
            }
            Delivery::Addresses(addresses) => {
                let before = self.known_addresses();
                self.local_addresses = Some(addresses);
                if before.is_some() && before == self.known_addresses() {
                    return;
                }
                true
            }
            Delivery::Interfaces(interfaces) => {
                let before = self.flowtable_interfaces();
                self.interfaces = Some(interfaces);
                if before == self.flowtable_interfaces() {
                    return;
                }
                true
            }
            Delivery::Condition(condition) => {
                self.source.apply(condition);
                return;
            }
        };
        let waiting = self.waiting.get_or_insert(Waiting {
            since: now,
            everything: false,
        });
        waiting.everything |= everything;
    }

    /// Stops waiting for an assignment.
    pub(crate) fn go_without_assignment(&mut self, now: Instant) {
        if let Configuration::Awaited { last_good } = &self.configuration {
            self.configure(match last_good.clone() {
                Some(assignment) => Configuration::LastGood(assignment),
                None => Configuration::Default,
            });
            self.waiting = Some(Waiting {
                since: self.waiting.as_ref().map_or(now, |waiting| waiting.since),
                everything: true,
            });
        }
    }

    /// Returns `minSyncPeriod` and `syncPeriod`.
    pub(crate) fn periods(&self) -> (Duration, Duration) {
        (
            self.effective.min_sync_period.duration(),
            self.effective.sync_period.duration(),
        )
    }

    /// Returns the current state of the engine.
    pub(crate) fn view(&self) -> View {
        View {
            missing: self.missing(),
            configuration: self.configuration.clone(),
            hash: self.hash.clone(),
            effective: Arc::clone(&self.effective),
            source: self.source.clone(),
            lifecycle: self.lifecycle(),
            desired: self.compiled.is_some().then(|| self.dataplane.clone()),
            endpoints: self.endpoints,
            rejections: Arc::clone(&self.rejections),
        }
    }

    fn lifecycle(&self) -> NodeLifecycle {
        match (self.catalog.node(), self.silence) {
            // Of a directory of manifests, only its Node was removed.
            (Some(node), MissingAssignment::IsAnAnswer)
                if node.lifecycle == NodeLifecycle::Gone =>
            {
                NodeLifecycle::Staying
            }
            (Some(node), _) => node.lifecycle,
            (None, MissingAssignment::IsAnAnswer) => NodeLifecycle::Staying,
            // A node that is not listed yet is not deleted.
            (None, MissingAssignment::MayEnd) if self.catalog.missing().next().is_some() => {
                NodeLifecycle::Staying
            }
            (None, MissingAssignment::MayEnd) => NodeLifecycle::Gone,
        }
    }

    /// Returns whether everything has been listed, so that the known objects are all objects.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing().is_empty()
    }

    fn missing(&self) -> Vec<String> {
        let mut missing: Vec<String> = self
            .catalog
            .missing()
            .map(|kind| format!("list of {kind}s"))
            .collect();
        if self.local_addresses.is_none() {
            missing.push("addresses of this node".to_owned());
        }
        // A start without them would take all interfaces out of the flowtable. Later, the flowtable comes
        // with the interfaces.
        let is_start = self.compiled.is_none();
        if is_start && self.interfaces.is_none() && asks_for_flowtable(&self.effective) {
            missing.push("interfaces of this node".to_owned());
        }
        if matches!(self.configuration, Configuration::Awaited { .. }) {
            missing.push("configuration of this node".to_owned());
        }
        missing
    }

    /// Puts `configuration` in force.
    fn configure(&mut self, configuration: Configuration) {
        if let Some(assignment) = configuration.assignment() {
            self.effective = Arc::new(assignment.spec.config.clone());
            self.hash = assignment.spec.config_hash.clone();
        }
        self.configuration = configuration;
    }

    /// Returns the addresses of this node that its dataplane lists.
    fn known_addresses(&self) -> Option<LocalAddresses> {
        let observed = self.local_addresses.as_ref()?;
        Some(LocalAddresses {
            all: without_unused_link_local(&observed.all, &self.effective),
            of_proxies: observed.of_proxies.clone(),
        })
    }

    fn flowtable_interfaces(&self) -> Option<BTreeSet<Arc<str>>> {
        match &self.interfaces {
            Some(Interfaces::Known(all)) => flowtable_interfaces(all, &self.effective),
            Some(Interfaces::Unknown) | None => None,
        }
    }

    /// Returns what the engine asks for of the node's network namespace.
    pub(crate) fn watch_scope(&self) -> WatchScope {
        match asks_for_flowtable(&self.effective) {
            true => WatchScope::AddressesAndInterfaces,
            false => WatchScope::Addresses,
        }
    }

    fn facts(&self) -> Facts {
        Facts {
            name: Arc::clone(&self.name),
            own: self.catalog.node().cloned(),
            addresses: self.known_addresses().unwrap_or_default(),
            flowtable_interfaces: self.flowtable_interfaces(),
            service_cidrs: self.catalog.service_cidrs().clone(),
        }
    }

    /// Compiles the node's own part of the dataplane. Returns what is outdated as a result, that
    /// part included.
    fn compile_node(&mut self) -> Outdated {
        let effective = Arc::clone(&self.effective);
        let facts = self.facts();
        let (node, config) = (facts.node(), facts.config(&effective));
        let before = self.compiled.as_ref();
        if before.is_some_and(|with| {
            *with.node == node && *with.config == config && with.effective == effective
        }) {
            return Outdated::Nothing;
        }
        let recompile = before.is_none_or(|with| {
            // The rules of Services do not depend on the node's own addresses and interfaces.
            let as_before = Node {
                local_addresses: with.node.local_addresses.clone(),
                proxy_addresses: with.node.proxy_addresses.clone(),
                flowtable_interfaces: with.node.flowtable_interfaces.clone(),
                ..node.clone()
            };
            *with.node != as_before || !with.config.compiles_like(&config)
        });
        // Every configuration gets a new Arc, even with equal content, and nothing else does: the
        // identity of the Arc tells which configuration the kernel is known to implement.
        let same = before.filter(|with| *with.config == config && with.effective == effective);
        let config = same.map_or_else(|| Arc::new(config), |with| Arc::clone(&with.config));
        let node = Arc::new(node);
        self.dataplane
            .set_node(Arc::clone(&node), Arc::clone(&config));
        self.compiled = Some(CompiledWith {
            node,
            config,
            effective,
        });
        match recompile {
            true => Outdated::Everything,
            false => Outdated::Node,
        }
    }
}

// === impl SourceHealth ===

impl SourceHealth {
    fn apply(&mut self, condition: SourceCondition) {
        match condition {
            SourceCondition::Fresh => self.stale = None,
            SourceCondition::Stale { since, message } => self.stale = Some((since, message)),
            SourceCondition::Manifests(unreadable) => {
                self.unreadable = Some(unreadable.iter().map(ToString::to_string).collect());
            }
        }
    }
}

// === impl Configuration ===

impl Configuration {
    /// Returns the current or last assignment.
    pub(crate) fn assignment(&self) -> Option<&Assignment> {
        match self {
            Configuration::Assigned(assignment) | Configuration::LastGood(assignment) => {
                Some(assignment)
            }
            Configuration::Awaited { .. } | Configuration::Default => None,
        }
    }

    /// Returns `next` with the values in force of the fields that cannot be read.
    fn keep_unreadable(&self, next: Assignment) -> Assignment {
        let before = match self {
            Configuration::Awaited { last_good } => last_good.as_deref(),
            _ => self.assignment(),
        };
        let Some(before) = before.filter(|_| !next.unreadable.is_empty()) else {
            return next;
        };
        Assignment {
            spec: with_fields_of(next.spec, &before.spec, &next.unreadable),
            ..next
        }
    }
}

#[cfg(test)]
mod tests;
