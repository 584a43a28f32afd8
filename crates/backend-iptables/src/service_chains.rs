//! The chains of one Service port, and the rules that lead to them.

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::{
    Affinity, Config, Family, Frontend, FrontendKey, FrontendKind, LocalDetection, Masquerade,
    Scheduler, ServicePortName, Target as Endpoint, TrafficPolicy,
};
use ipnet::IpNet;
use xtables::{AddressMatch, InterfaceMatch, Match, Recent, Rule, Target, Which};

use crate::comment;
use crate::names;
use crate::rules::{Chain, Rank};

/// How much of what people read goes into the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comments {
    /// At every rule of a Service.
    Everywhere,
    /// Where frontends are found: elsewhere a comment costs 288 bytes of the kernel and a step of
    /// every packet.
    AtFrontends,
}

/// The chains of one Service port in table nat, by name; `None`: not needed.
pub(crate) type NamedChains = Vec<(Arc<str>, Option<Chain>)>;

/// All frontends that packets of one Service port and family come by.
pub(crate) struct ServicePortChains<'a> {
    pub(crate) family: Family,
    pub(crate) config: &'a Config,
    pub(crate) comments: Comments,
    pub(crate) port: &'a ServicePortName,
    pub(crate) frontends: Vec<(FrontendKey, &'a Frontend)>,
}

/// The kinds of chains of a Service port. kube-proxy's names, whose jobs they have.
const CLUSTER: &str = "SVC";
const LOCAL: &str = "SVL";
const EXTERNAL: &str = "EXT";
const SOURCES: &str = "FW";

/// Every chain in table nat that a Service port can have, but for those of source ranges.
pub(crate) fn names_of(port: &ServicePortName) -> [Arc<str>; 3] {
    [CLUSTER, LOCAL, EXTERNAL].map(|kind| names::of_service_port(kind, port))
}

/// What one frontend's packets are given in table nat: always something that ends the table's
/// rules, or an external IP that is also one of the node's own addresses would be looked up as a
/// node port next.
pub(crate) fn target(frontend: &Frontend) -> Target {
    let port = &frontend.service_port;
    if !frontend.source_ranges.is_empty() && is_served(frontend) {
        let name = names::of_ranges(SOURCES, port, &frontend.source_ranges);
        return Target::Goto(name);
    }
    behind_sources(frontend)
}

/// What those get who may connect.
fn behind_sources(frontend: &Frontend) -> Target {
    let goto = |kind| Target::Goto(names::of_service_port(kind, &frontend.service_port));
    match (frontend.kind, frontend.policy) {
        _ if !is_served(frontend) => Target::Accept,
        (FrontendKind::ClusterIp, TrafficPolicy::Cluster) => goto(CLUSTER),
        (FrontendKind::ClusterIp, TrafficPolicy::Local) => goto(LOCAL),
        _ => goto(EXTERNAL),
    }
}

/// Whether anybody is sent to an endpoint.
fn is_served(frontend: &Frontend) -> bool {
    match (frontend.kind, frontend.policy) {
        (FrontendKind::ClusterIp, TrafficPolicy::Local) => !frontend.local.is_empty(),
        (_, TrafficPolicy::Cluster) => !frontend.cluster.is_empty(),
        (_, TrafficPolicy::Local) => !frontend.cluster.is_empty() || !frontend.local.is_empty(),
    }
}

/// What one frontend's packets are given in table filter: those that table nat left as they were.
/// The chain it needs there, too.
pub(crate) fn refusal(frontend: &Frontend) -> (Option<Target>, Option<(Arc<str>, Chain)>) {
    let for_strangers = match frontend.policy {
        TrafficPolicy::Cluster => &frontend.cluster,
        TrafficPolicy::Local => &frontend.local,
    };
    let ranges = &frontend.source_ranges;
    match (for_strangers.is_empty(), frontend.has_endpoints) {
        (false, _) if ranges.is_empty() => (None, None),
        // Whoever may connect was sent to an endpoint and is no longer addressed to this.
        (false, _) | (true, true) => (Some(Target::Drop), None),
        (true, false) if ranges.is_empty() => (Some(Target::Reject), None),
        (true, false) => {
            let name = names::of_ranges(SOURCES, &frontend.service_port, ranges);
            let chain = sources(frontend, &Target::Reject, Target::Drop);
            (Some(Target::Goto(Arc::clone(&name))), Some((name, chain)))
        }
    }
}

/// Sends those who may connect to `allowed`, and everyone else to `others`.
fn sources(frontend: &Frontend, allowed: &Target, others: Target) -> Chain {
    let within = |range: &IpNet| Rule {
        source: Some(AddressMatch::within(*range)),
        ..Rule::always(allowed.clone())
    };
    let rules = frontend.source_ranges.iter().map(within);
    Chain {
        rules: rules.chain([Rule::always(others)]).collect(),
        services: vec![frontend.service_port.service.clone()],
        rank: Rank::Sources,
    }
}

/// Asks whether a pod of this node sent the packet, or whether none did; `None` where that cannot be
/// told.
fn local_source(config: &Config, family: Family, inverted: bool) -> Option<Rule> {
    let mut rule = Rule::always(Target::Return);
    match &config.local_detection {
        LocalDetection::None => return None,
        LocalDetection::Source { .. } => {
            let range = config.local_detection.source(family)?;
            let source = AddressMatch {
                inverted,
                ..AddressMatch::within(range)
            };
            // The kernel has no word for a question that everybody answers with yes.
            let asks = inverted || range.prefix_len() > 0;
            rule.source = asks.then_some(source);
        }
        LocalDetection::Interface(wanted) => {
            let (name, is_prefix) = match wanted {
                dataplane::InterfaceMatch::Named(name) => (name, false),
                dataplane::InterfaceMatch::Prefix(prefix) => (prefix, true),
            };
            rule.input = Some(InterfaceMatch {
                name: Arc::clone(name),
                is_prefix,
                inverted,
            });
        }
    }
    Some(rule)
}

/// Sets the mark that asks for masquerade.
pub(crate) fn mark(config: &Config) -> Target {
    let bit = config.mark.value();
    Target::Mark {
        value: bit,
        mask: bit,
    }
}

// === impl ServicePortChains ===

impl ServicePortChains<'_> {
    /// Every chain it has in table nat, or had and does not need.
    pub(crate) fn render(&self) -> NamedChains {
        let [cluster, local, external] = names_of(self.port);
        let mut chains = vec![
            (cluster, self.balance(|frontend| &frontend.cluster)),
            (local, self.balance(|frontend| &frontend.local)),
            (external, self.external()),
        ];
        for (_, frontend) in &self.frontends {
            if let (Target::Goto(name), false) =
                (target(frontend), frontend.source_ranges.is_empty())
            {
                let chain = sources(frontend, &behind_sources(frontend), Target::Accept);
                chains.push((name, Some(chain)));
            }
        }
        chains
    }

    fn chain(&self, rules: Vec<Rule>, rank: Rank) -> Chain {
        Chain {
            rules: rules.into(),
            services: vec![self.port.service.clone()],
            rank,
        }
    }

    /// Chooses one of the endpoints that any frontend has.
    fn balance(&self, targets: impl Fn(&Frontend) -> &Arc<[Endpoint]>) -> Option<Chain> {
        let (_, frontend) = self
            .frontends
            .iter()
            .find(|(_, frontend)| !targets(frontend).is_empty())?;
        let targets = targets(frontend);
        let mut rules = Vec::with_capacity(targets.len() + 1);
        rules.extend(self.cluster_ip_mark());
        let clients = |target: &Endpoint, what| Match::Recent {
            list: names::of_clients(self.port, target),
            what,
        };
        let deliver = |matches, target: &Endpoint| Rule {
            // DNAT to a port is refused without a protocol.
            protocol: Some(self.port.protocol),
            matches,
            comment: self.comment(|| format!("{} -> {target}", self.port)),
            ..Rule::always(Target::DestinationNat {
                address: target.address,
                port: target.port.get(),
            })
        };
        if let Affinity::ClientIp { timeout } = frontend.affinity {
            let seconds = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX).max(1);
            rules.extend(targets.iter().map(|target| {
                let matches = vec![
                    clients(target, Recent::Check { seconds }),
                    clients(target, Recent::Set),
                ];
                deliver(matches, target)
            }));
        }
        for (target, left) in targets.iter().zip((1..=targets.len()).rev()) {
            let mut matches = Vec::new();
            if left > 1 {
                matches.push(share(frontend.scheduler, left));
            }
            if frontend.affinity != Affinity::None {
                matches.push(clients(target, Recent::Set));
            }
            rules.push(deliver(matches, target));
        }
        Some(self.chain(rules, Rank::Balance))
    }

    /// Marks packets to the cluster IP for masquerade. Other frontends share the chain, and a node
    /// port may be reached by the same address where the node has the cluster IP, too: the port is
    /// part of the question.
    fn cluster_ip_mark(&self) -> Option<Rule> {
        let (address, protocol, port) = self.frontends.iter().find_map(|(key, frontend)| {
            let FrontendKey::Address {
                address,
                protocol,
                port,
            } = *key
            else {
                return None;
            };
            (frontend.kind == FrontendKind::ClusterIp).then_some((address, protocol, port))
        })?;
        let mut rule = match self.config.masquerade {
            Masquerade::All => Rule::always(Target::Return),
            Masquerade::NonLocal => local_source(self.config, self.family, true)?,
        };
        rule.matches.push(Match::DestinationPorts {
            first: port.get(),
            last: port.get(),
        });
        Some(Rule {
            destination: Some(host(address)),
            protocol: Some(protocol),
            target: mark(self.config),
            ..rule
        })
    }

    /// What external frontends have in common.
    fn external(&self) -> Option<Chain> {
        let (_, frontend) = self.frontends.iter().find(|(_, frontend)| {
            frontend.kind != FrontendKind::ClusterIp && is_served(frontend)
        })?;
        let [cluster, local, _] = names_of(self.port);
        let to = |name: Arc<str>, targets: &[Endpoint]| match targets.is_empty() {
            true => Target::Accept,
            false => Target::Goto(name),
        };
        let cluster = to(cluster, &frontend.cluster);
        let marking = Rule::always(mark(self.config));
        let mut rules = Vec::new();
        if frontend.policy == TrafficPolicy::Cluster {
            rules.extend([marking, Rule::always(cluster)]);
            return Some(self.chain(rules, Rank::External));
        }
        // Pods of this node and this node itself are inside the cluster, and reach every endpoint as
        // they would by the cluster IP; everyone else reaches this node's endpoints only, with his
        // own address. The pod is asked about first, so that a source that is both keeps its own.
        if let Some(from_pod) = local_source(self.config, self.family, false) {
            rules.push(Rule {
                target: cluster.clone(),
                ..from_pod
            });
        }
        let from_node = |rule| Rule {
            matches: vec![Match::LocalAddress(Which::Source)],
            ..rule
        };
        rules.push(from_node(marking));
        rules.push(from_node(Rule::always(cluster)));
        rules.push(Rule::always(to(local, &frontend.local)));
        Some(self.chain(rules, Rank::External))
    }

    fn comment(&self, text: impl FnOnce() -> String) -> Option<Arc<str>> {
        (self.comments == Comments::Everywhere).then(|| comment::of(&text()))
    }
}

/// Exactly this address.
pub(crate) fn host(address: IpAddr) -> AddressMatch {
    AddressMatch::within(IpNet::from(address))
}

/// What a rule asks that takes its share of what the rules before it have left, for itself and those
/// behind it, `left` in all: 1/n, 1/(n-1), …, 1. What iptables cannot do is done at random.
fn share(scheduler: Scheduler, left: usize) -> Match {
    match scheduler {
        Scheduler::RoundRobin => Match::Nth {
            every: u32::try_from(left).unwrap_or(u32::MAX),
        },
        _ => Match::Random {
            probability: probability(left),
        },
    }
}

/// One in `left`, of [`Match::CERTAIN`].
fn probability(left: usize) -> u32 {
    let left = u64::try_from(left).unwrap_or(u64::MAX);
    let share = (u64::from(Match::CERTAIN) + left / 2) / left;
    u32::try_from(share).unwrap_or(Match::CERTAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_is_given_the_same_share() {
        for count in [1_usize, 2, 3, 5, 7, 250] {
            let mut left = 1.0;
            for position in (1..=count).rev() {
                let share = left * f64::from(probability(position)) / f64::from(Match::CERTAIN);
                let fair = 1.0 / f64::from(u32::try_from(count).expect("is small"));
                assert!((share - fair).abs() < 1e-6, "{share} of {fair}");
                left -= share;
            }
            assert!(left.abs() < 1e-9, "{left} goes nowhere");
        }
    }
}
