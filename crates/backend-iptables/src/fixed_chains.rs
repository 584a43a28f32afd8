//! The chains that always exist: from the built-in chains to the entrances of the trees.

use std::collections::BTreeMap;
use std::sync::Arc;

use backend::FORWARDING_MARKS;
use dataplane::{Config, Family, Node, Protocol};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use xtables::{AddressMatch, BuiltIn, Match, PacketEnd, Rule, States, TableName, Target};

use crate::rules::{Chain, Rank};
use crate::service_chains::host;
use crate::tree::Tree;
use crate::trees::{TreeName, Trees};

pub(crate) const SERVICES: &str = "SIGNPOST-SERVICES";
pub(crate) const NODE_PORTS: &str = "SIGNPOST-NODEPORTS";
const POSTROUTING: &str = "SIGNPOST-POSTROUTING";
const MASQUERADE: &str = "SIGNPOST-MASQUERADE";
const HAIRPINS: &str = "SIGNPOST-HAIRPINS";
const SOURCES: &str = "SIGNPOST-SOURCES";
pub(crate) const INPUT: &str = "SIGNPOST-INPUT";
pub(crate) const FORWARD: &str = "SIGNPOST-FORWARD";
pub(crate) const OUTPUT: &str = "SIGNPOST-OUTPUT";
pub(crate) const ARRIVING: &str = "SIGNPOST-ARRIVING";
pub(crate) const LEAVING: &str = "SIGNPOST-LEAVING";
pub(crate) const REFUSALS: &str = "SIGNPOST-REFUSALS";
pub(crate) const NODE_PORT_REFUSALS: &str = "SIGNPOST-NODEPORT-REFUSALS";
pub(crate) const CLUSTER_IPS: &str = "SIGNPOST-CLUSTER-IPS";
pub(crate) const UNREDIRECTED: &str = "SIGNPOST-UNREDIRECTED";
const HEALTH_CHECKS: &str = "SIGNPOST-HEALTH-CHECKS";

/// The treatment of packets that conntrack considers invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Invalid {
    /// They are not forwarded: a packet without its NAT would make the receiver reset the
    /// connection (kubernetes#74839).
    #[default]
    Dropped,
    /// They are forwarded: conntrack is set to be liberal, so there are none.
    LetThrough,
}

/// Renders every fixed chain of `table`.
pub(crate) fn render(
    table: TableName,
    family: Family,
    node: &Node,
    config: &Config,
    invalid: Invalid,
    trees: &Trees,
) -> Vec<(Arc<str>, Chain)> {
    let tree = |name| trees.get(name);
    let entrance = |name| tree(name).map_or_else(Vec::new, |tree| tree.entrance());
    let used = |name| tree(name).is_some_and(|tree| !tree.is_empty());
    match table {
        TableName::Nat => {
            let mut services = entrance(TreeName::Services);
            if used(TreeName::NodePorts) {
                services.extend(to_node_ports(family, config, NODE_PORTS, Hook::Nat));
            }
            let mut postrouting = vec![Rule {
                matches: vec![marked(config)],
                ..Rule::always(Target::Goto(MASQUERADE.into()))
            }];
            postrouting.extend(from_services(family, config, used(TreeName::Sources)));
            if used(TreeName::Hairpins) {
                postrouting.push(Rule {
                    matches: vec![Match::ConnectionState(States::DNAT)],
                    ..Rule::always(Target::Goto(HAIRPINS.into()))
                });
            }
            // Clears the mark: a tunnel sends the same packet, encapsulated, through this chain
            // again (kubernetes#92035).
            let unmark = Target::Mark {
                value: 0,
                mask: config.mark.value(),
            };
            let masquerade = [unmark, Target::Masquerade].map(Rule::always).to_vec();
            vec![
                chain(NODE_PORTS, Rank::Entrance, entrance(TreeName::NodePorts)),
                chain(HAIRPINS, Rank::Entrance, entrance(TreeName::Hairpins)),
                chain(SOURCES, Rank::Entrance, entrance(TreeName::Sources)),
                chain(MASQUERADE, Rank::Inner, masquerade),
                chain(SERVICES, Rank::Outer, services),
                chain(POSTROUTING, Rank::Outer, postrouting),
            ]
        }
        TableName::Filter => {
            let jump_if_used =
                |name, chain: &str| used(name).then(|| Rule::always(Target::Jump(chain.into())));
            let refusals = jump_if_used(TreeName::Refusals, REFUSALS);
            let mut arriving: Vec<Rule> = refusals.clone().into_iter().collect();
            if used(TreeName::NodePortRefusals) {
                let hook = Hook::Input;
                arriving.extend(to_node_ports(family, config, NODE_PORT_REFUSALS, hook));
            }
            if used(TreeName::ClusterIps) {
                arriving.extend(to_cluster_ips(family, node));
            }
            let mut leaving: Vec<Rule> = refusals.into_iter().collect();
            leaving.extend(jump_if_used(TreeName::ClusterIps, CLUSTER_IPS));
            // A packet that is still addressed to a Service CIDR has no Service.
            let cidrs = config.service_cidrs.iter();
            let cidrs = cidrs.filter(|cidr| family_of(cidr) == family);
            leaving.extend(cidrs.map(|cidr| Rule {
                destination: Some(AddressMatch::within(*cidr)),
                ..Rule::always(Target::Drop)
            }));
            let new = |to: &str| Rule {
                matches: vec![Match::ConnectionState(States::NEW)],
                ..Rule::always(Target::Jump(to.into()))
            };
            let mut input: Vec<Rule> = Vec::new();
            input.extend(jump_if_used(TreeName::HealthChecks, HEALTH_CHECKS));
            input.push(new(ARRIVING));
            vec![
                chain(
                    REFUSALS,
                    Rank::Entrance,
                    tree(TreeName::Refusals).map_or_else(Vec::new, refusals_entrance),
                ),
                chain(
                    NODE_PORT_REFUSALS,
                    Rank::Entrance,
                    tree(TreeName::NodePortRefusals).map_or_else(Vec::new, refusals_entrance),
                ),
                chain(CLUSTER_IPS, Rank::Entrance, entrance(TreeName::ClusterIps)),
                // Always there, so that no leaf of the tree ever leads to an empty chain.
                chain(UNREDIRECTED, Rank::Balance, refuse_unredirected()),
                chain(
                    HEALTH_CHECKS,
                    Rank::Entrance,
                    entrance(TreeName::HealthChecks),
                ),
                chain(ARRIVING, Rank::Inner, arriving),
                chain(LEAVING, Rank::Inner, leaving),
                chain(INPUT, Rank::Outer, input),
                chain(FORWARD, Rank::Outer, forward(config, invalid, new(LEAVING))),
                chain(OUTPUT, Rank::Outer, vec![new(LEAVING)]),
            ]
        }
    }
}

/// Masquerades redirected packets whose source is a Service address, to which no endpoint could
/// reply. A process uses such a source if the address it connects to is also on a device of this
/// node. Cluster IPs outside of all known ranges are in a tree.
fn from_services(family: Family, config: &Config, has_others: bool) -> Vec<Rule> {
    let redirected = |target| Rule {
        matches: vec![Match::ConnectionState(States::DNAT)],
        ..Rule::always(target)
    };
    let cidrs = config.service_cidrs.iter();
    let cidrs = cidrs.filter(|cidr| family_of(cidr) == family);
    let within = |cidr: &IpNet| Rule {
        source: Some(AddressMatch::within(*cidr)),
        ..redirected(Target::Masquerade)
    };
    let others = has_others.then(|| redirected(Target::Jump(SOURCES.into())));
    cidrs.map(within).chain(others).collect()
}

/// Refuses packets that arrive for a cluster IP which is also on a device of this node, on a port
/// that the Service does not have. Exempt are packets to the node's own address, so that the node
/// stays reachable if a Service is given that address, and packets without a port, so that such an
/// address keeps answering pings; and packets that another mode forwards by their mark. If the
/// node's address is unknown, nothing is refused.
fn to_cluster_ips(family: Family, node: &Node) -> Vec<Rule> {
    let Some(own) = node.address(family) else {
        return Vec::new();
    };
    let forwarded = Rule {
        matches: vec![Match::Mark {
            value: FORWARDING_MARKS.value,
            mask: FORWARDING_MARKS.mask,
        }],
        ..Rule::always(Target::Return)
    };
    let to = |asked| Rule {
        destination: Some(AddressMatch::outside(own.into())),
        protocol: Some(asked),
        ..Rule::always(Target::Jump(CLUSTER_IPS.into()))
    };
    [forwarded]
        .into_iter()
        .chain(Protocol::ALL.map(to))
        .collect()
}

/// Refuses packets that are still addressed to a cluster IP: their port is none of the Service's. But a
/// connection that began while the rules were missing, before a start or until a repair, is so at any
/// port. Until the agent has deleted it, its packets are dropped: if they were rejected, the client
/// would not try again.
fn refuse_unredirected() -> Vec<Rule> {
    let first = Rule {
        matches: vec![Match::UnconfirmedConnection],
        ..Rule::always(Target::Reject)
    };
    vec![first, Rule::always(Target::Drop)]
}

/// The jumps from the built-in chains.
pub(crate) fn entries(table: TableName) -> BTreeMap<BuiltIn, Vec<Rule>> {
    let to = |at, chain: &str| {
        let rule = Rule {
            comment: Some("signpost".into()),
            ..Rule::always(Target::Jump(chain.into()))
        };
        (at, vec![rule])
    };
    match table {
        TableName::Nat => BTreeMap::from([
            to(BuiltIn::Prerouting, SERVICES),
            to(BuiltIn::Output, SERVICES),
            to(BuiltIn::Postrouting, POSTROUTING),
        ]),
        TableName::Filter => BTreeMap::from([
            to(BuiltIn::Input, INPUT),
            to(BuiltIn::Forward, FORWARD),
            to(BuiltIn::Output, OUTPUT),
        ]),
    }
}

/// The rules that lead into a tree of refused addresses or node ports. A redirected packet is exempt,
/// as it has an endpoint: a Service without endpoints may claim the endpoint's address, or have its
/// port for a node port.
pub(crate) fn refusals_entrance(tree: &Tree) -> Vec<Rule> {
    let mut refused = tree.entrance();
    if !refused.is_empty() {
        let redirected = Rule {
            matches: vec![Match::ConnectionState(States::DNAT)],
            ..Rule::always(Target::Return)
        };
        refused.insert(0, redirected);
    }
    refused
}

/// The rules for forwarded packets: refusals first. Then accepts what a firewall with a default of
/// drop must let through: redirected connections that Signpost masquerades, and packets of known
/// connections.
fn forward(config: &Config, invalid: Invalid, refusing: Rule) -> Vec<Rule> {
    let state = |states, target| Rule {
        matches: vec![Match::ConnectionState(states)],
        ..Rule::always(target)
    };
    let mut rules = vec![refusing];
    if invalid == Invalid::Dropped {
        rules.push(state(States::INVALID, Target::Drop));
    }
    rules.push(Rule {
        matches: vec![marked(config)],
        ..Rule::always(Target::Accept)
    });
    let known = States::RELATED.or(States::ESTABLISHED);
    rules.push(state(known, Target::Accept));
    rules
}

fn marked(config: &Config) -> Match {
    let bit = config.mark.value();
    Match::Mark {
        value: bit,
        mask: bit,
    }
}

/// Where packets are matched against node ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hook {
    /// In table nat, for packets to any destination.
    Nat,
    /// At hook input, for packets to this node.
    Input,
}

/// Sends packets to the node's addresses that accept node ports to `chain`. Loopback addresses
/// never do: replies to a redirected packet would be martians.
fn to_node_ports(family: Family, config: &Config, chain: &str, hook: Hook) -> Vec<Rule> {
    let jump = Rule::always(Target::Jump(chain.into()));
    let Some(addresses) = config.node_ports.of(family) else {
        let loopback: IpNet = match family {
            Family::Ipv4 => Ipv4Net::new_assert([127, 0, 0, 0].into(), 8).into(),
            Family::Ipv6 => Ipv6Net::new_assert(std::net::Ipv6Addr::LOCALHOST, 128).into(),
        };
        return vec![Rule {
            destination: Some(AddressMatch::outside(loopback)),
            matches: match hook {
                Hook::Nat => vec![Match::LocalAddress(PacketEnd::Destination)],
                Hook::Input => Vec::new(),
            },
            ..jump
        }];
    };
    let addresses = addresses.iter().filter(|address| !address.is_loopback());
    let rule = |address: &std::net::IpAddr| Rule {
        destination: Some(host(*address)),
        ..jump.clone()
    };
    addresses.map(rule).collect()
}

fn family_of(range: &IpNet) -> Family {
    Family::of(range.addr())
}

fn chain(name: &str, rank: Rank, rules: Vec<Rule>) -> (Arc<str>, Chain) {
    let chain = Chain {
        rules: rules.into(),
        services: Vec::new(),
        rank,
    };
    (name.into(), chain)
}
