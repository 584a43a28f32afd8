//! The chains of one Service port, and the rules that lead to them.

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::{
    Affinity, Config, Family, Frontend, FrontendKey, FrontendKind, LocalDetection, Masquerade,
    Scheduler, ServicePortName, Target as Endpoint, TrafficPolicy,
};
use ipnet::IpNet;
use xtables::{AddressMatch, InterfaceMatch, Match, PacketEnd, Recent, Rule, Target};

use crate::comment;
use crate::names;
use crate::rules::{Chain, Rank};

/// Which rules have comments in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comments {
    /// Every rule of a Service.
    Everywhere,
    /// Rules that match a frontend. Elsewhere a comment costs 288 bytes of kernel memory and a
    /// match for every packet.
    AtFrontends,
}

/// Whether the endpoints of a Service port with session affinity have lists of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clients {
    /// They have.
    Remembered,
    /// There is no room for them: the port has no affinity.
    Forgotten,
}

/// The chains of one Service port in table nat, by name; `None` if not needed.
pub(crate) type NamedChains = Vec<(Arc<str>, Option<Chain>)>;

/// A Service port in one family, with all of its frontends.
pub(crate) struct ServicePortChains<'a> {
    pub(crate) family: Family,
    pub(crate) config: &'a Config,
    pub(crate) comments: Comments,
    pub(crate) port: &'a ServicePortName,
    pub(crate) clients: Clients,
    pub(crate) frontends: Vec<(FrontendKey, &'a Frontend)>,
}

/// The kinds of chains of a Service port, named after kube-proxy's chains with the same purpose.
const CLUSTER: &str = "SVC";
const LOCAL: &str = "SVL";
const EXTERNAL: &str = "EXT";
const SOURCES: &str = "FW";

/// The names of the chains that a Service port can have in table nat, except those for source
/// ranges.
pub(crate) fn names_of(port: &ServicePortName) -> [Arc<str>; 3] {
    [CLUSTER, LOCAL, EXTERNAL].map(|kind| names::of_service_port(kind, port))
}

/// The first of a Service port's frontends that has `targets`, whose chain chooses among these for
/// all frontends.
pub(crate) fn balanced<'a>(
    frontends: &[(FrontendKey, &'a Frontend)],
    targets: impl Fn(&'a Frontend) -> &'a Arc<[Endpoint]>,
) -> Option<(&'a Frontend, &'a Arc<[Endpoint]>)> {
    let all = frontends.iter();
    let mut all = all.map(|(_, frontend)| (*frontend, targets(frontend)));
    all.find(|(_, targets)| !targets.is_empty())
}

/// The target of a frontend's packets in table nat. It always ends the traversal of the table:
/// otherwise an external IP that is also an address of the node would be looked up as a node port
/// next.
pub(crate) fn target(frontend: &Frontend) -> Target {
    let port = &frontend.service_port;
    if !frontend.source_ranges.is_empty() && is_served(frontend) {
        let name = names::of_ranges(SOURCES, port, &frontend.source_ranges);
        return Target::Goto(name);
    }
    behind_sources(frontend)
}

/// The target of packets from allowed sources.
fn behind_sources(frontend: &Frontend) -> Target {
    let goto = |kind| Target::Goto(names::of_service_port(kind, &frontend.service_port));
    match (frontend.kind, frontend.policy) {
        _ if !is_served(frontend) => Target::Accept,
        (FrontendKind::ClusterIp, TrafficPolicy::Cluster) => goto(CLUSTER),
        (FrontendKind::ClusterIp, TrafficPolicy::Local) => goto(LOCAL),
        _ => goto(EXTERNAL),
    }
}

/// Whether any client is sent to an endpoint.
fn is_served(frontend: &Frontend) -> bool {
    match (frontend.kind, frontend.policy) {
        (FrontendKind::ClusterIp, TrafficPolicy::Local) => !frontend.local.is_empty(),
        (_, TrafficPolicy::Cluster) => !frontend.cluster.is_empty(),
        (_, TrafficPolicy::Local) => !frontend.cluster.is_empty() || !frontend.local.is_empty(),
    }
}

/// The target of a frontend's packets in table filter, which are those that table nat did not
/// redirect, with the chain that this target needs.
pub(crate) fn refusal(frontend: &Frontend) -> (Option<Target>, Option<(Arc<str>, Chain)>) {
    let for_strangers = match frontend.policy {
        TrafficPolicy::Cluster => &frontend.cluster,
        TrafficPolicy::Local => &frontend.local,
    };
    let ranges = &frontend.source_ranges;
    match (for_strangers.is_empty(), frontend.has_endpoints) {
        (false, _) if ranges.is_empty() => (None, None),
        // Packets from allowed sources were redirected and no longer have this destination.
        (false, _) | (true, true) => (Some(Target::Drop), None),
        (true, false) if ranges.is_empty() => (Some(Target::Reject), None),
        (true, false) => {
            let name = names::of_ranges(SOURCES, &frontend.service_port, ranges);
            let chain = sources(frontend, &Target::Reject, Target::Drop);
            (Some(Target::Goto(Arc::clone(&name))), Some((name, chain)))
        }
    }
}

/// A chain that sends allowed sources to `allowed` and all others to `others`.
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

/// A rule that matches packets from pods of this node or, if `inverted`, all other packets. Returns
/// `None` if local pods cannot be detected.
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
            // iptables cannot express a source match that is always true.
            let asks = inverted || range.prefix_len() > 0;
            rule.source = asks.then_some(source);
        }
        LocalDetection::Interface(desired) => {
            let (name, is_prefix) = match desired {
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

/// The target that marks packets for masquerade.
pub(crate) fn mark(config: &Config) -> Target {
    let bit = config.mark.value();
    Target::Mark {
        value: bit,
        mask: bit,
    }
}

// === impl ServicePortChains ===

impl ServicePortChains<'_> {
    /// Renders every chain of the port in table nat, with `None` for chains that it no longer
    /// needs.
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

    /// The chain that chooses among the endpoints of the first frontend that has any.
    fn balance(&self, targets: impl Fn(&Frontend) -> &Arc<[Endpoint]>) -> Option<Chain> {
        let (frontend, targets) = balanced(&self.frontends, targets)?;
        let affinity = match self.clients {
            Clients::Remembered => frontend.affinity,
            Clients::Forgotten => Affinity::None,
        };
        let mut rules = Vec::with_capacity(targets.len() + 1);
        rules.extend(self.cluster_ip_mark());
        let clients = |target: &Endpoint, what| Match::Recent {
            list: names::of_clients(self.port, target),
            what,
        };
        let deliver = |matches, target: &Endpoint| Rule {
            // The kernel refuses DNAT to a port without a protocol match.
            protocol: Some(self.port.protocol),
            matches,
            comment: self.comment(|| format!("{} -> {target}", self.port)),
            ..Rule::always(Target::DestinationNat {
                address: target.address,
                port: target.port.get(),
            })
        };
        if let Affinity::ClientIp { timeout } = affinity {
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
            if affinity != Affinity::None {
                matches.push(clients(target, Recent::Set));
            }
            rules.push(deliver(matches, target));
        }
        Some(self.chain(rules, Rank::Balance))
    }

    /// Marks packets to the cluster IP for masquerade. Other frontends share the chain, and if the
    /// node has the cluster IP, too, a node port may be reached by the same address. Therefore the
    /// rule also matches the port.
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

    /// The chain that all external frontends share.
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
        // Pods of this node and the node itself are inside the cluster: they reach every endpoint,
        // as with the cluster IP. All other clients reach only this node's endpoints, and keep
        // their source address. Pods are matched first, so that a source that is both is not
        // masqueraded.
        if let Some(from_pod) = local_source(self.config, self.family, false) {
            rules.push(Rule {
                target: cluster.clone(),
                ..from_pod
            });
        }
        let from_node = |rule| Rule {
            matches: vec![Match::LocalAddress(PacketEnd::Source)],
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

/// Matches exactly this address.
pub(crate) fn host(address: IpAddr) -> AddressMatch {
    AddressMatch::within(IpNet::from(address))
}

/// The match of a rule that takes its share of the packets left by the rules before it, where
/// `left` rules remain with this one: 1/n, 1/(n-1), …, 1. Schedulers that iptables lacks are
/// replaced by random choice.
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

/// A probability of one in `left`, in units of [`Match::CERTAIN`].
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
