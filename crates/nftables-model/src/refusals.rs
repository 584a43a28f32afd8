//! The chains that refuse packets to Services: those that reject or drop what has no endpoint and
//! count it; and constructors of chains.

use backend::FORWARDING_MARKS;
use dataplane::{Config, Family, Node, Protocol};
use netlink::nf_tables::{
    Chain, ChainKind, Expression, Hook, HookPoint, MetaKey, Operator, Register, RejectKind, Rule,
    Verdict,
};

use crate::contents::ChainWithRules;
use crate::key::{self, FrontendFields};
use crate::packet_counters::{
    ALLOW_SOURCES, REFUSE, REFUSE_CLUSTER_IPS, REFUSE_NODE_PORT, REFUSE_PORTS, REFUSE_UNREDIRECTED,
};
use crate::parts::{
    Address, compare, counted, ct_confirmed, ct_dnat, family_of, in_range, lookup_frontend, marked,
    member, not_loopback, rule, to_node_port_address, verdict,
};
use crate::source_ranges::RESTRICT;

/// The chain for packets to an address of a Service without endpoints.
pub const REFUSE_SERVICES: &str = "refuse-services";
/// The same for node ports.
pub const REFUSE_NODE_PORTS: &str = "refuse-nodeports";
/// The chain for packets that arrive for a cluster IP which is also on a device of this node.
pub const REFUSE_ARRIVALS: &str = "refuse-arrivals";

/// The set of every cluster IP.
const CLUSTER_IPS: &str = "cluster-ips";

/// Returns the chains that refuse packets, except [`ALLOW_SOURCES`]. Base chains lead to the first
/// one before DNAT and to the others after it. The table has the sets that they look up:
/// `cluster-ips`, `restrictions`, `refusals`, `rejects`, and for node ports `nodeport-refusals`,
/// `nodeport-rejects` and `nodeport-addresses`.
pub fn refusal_chains(family: Family, node: &Node, config: &Config) -> [ChainWithRules; 9] {
    let frontends = |set| lookup_frontend(family, FrontendFields::AddressAndPort, set);
    let node_ports = |set| lookup_frontend(family, FrontendFields::Port, set);
    let to_node = match config.node_ports.of(family) {
        // The input hook only sees packets to this node.
        None => not_loopback(family),
        Some(_) => to_node_port_address(family, config),
    };
    let to_refused_node_port = [to_node, node_ports("nodeport-refusals")].concat();
    [
        regular(
            RESTRICT,
            vec![goto(frontends("restrictions"), ALLOW_SOURCES)],
        ),
        regular(
            REFUSE_SERVICES,
            vec![leave_redirected(), goto(frontends("refusals"), REFUSE)],
        ),
        regular(
            REFUSE_NODE_PORTS,
            vec![
                leave_redirected(),
                goto(to_refused_node_port, REFUSE_NODE_PORT),
            ],
        ),
        regular(REFUSE_CLUSTER_IPS, refuse_cluster_ips(family, config)),
        regular(REFUSE_UNREDIRECTED, refuse_unredirected()),
        regular(
            REFUSE_ARRIVALS,
            refuse_arrivals(family, node).into_iter().collect(),
        ),
        regular(REFUSE_PORTS, reject_ports()),
        regular(REFUSE, reject_or_drop(frontends("rejects"))),
        regular(
            REFUSE_NODE_PORT,
            reject_or_drop(node_ports("nodeport-rejects")),
        ),
    ]
}

/// Leaves a redirected packet alone, as it has an endpoint: a Service without endpoints may claim the
/// endpoint's address, or have its port for a node port.
fn leave_redirected() -> Rule {
    let mut redirected = ct_dnat();
    redirected.extend(verdict(Verdict::Return).expressions);
    rule(redirected)
}

/// Sends packets that match `when` to `chain`.
fn goto(mut when: Vec<Expression>, chain: &str) -> Rule {
    when.extend(verdict(Verdict::Goto(key::name(chain))).expressions);
    rule(when)
}

/// Rules for packets without a usable endpoint; `rejected` matches frontends without any endpoints.
/// Packets to those are rejected. Packets to a frontend that has endpoints, but none that may be
/// used here, are dropped. So are packets to a frontend that got its first endpoint since the
/// previous lookup: the client retries.
fn reject_or_drop(mut rejected: Vec<Expression>) -> Vec<Rule> {
    rejected.push(Expression::Reject(RejectKind::PortUnreachable));
    vec![counted(rule(rejected)), counted(verdict(Verdict::Drop))]
}

/// Rules for packets that are still addressed to a cluster IP after DNAT, and so have no frontend:
/// they use a port that the Service does not have, which is rejected, or an address that no Service
/// has, which is dropped. Those to a cluster IP go to the rules of [`refuse_unredirected`].
fn refuse_cluster_ips(family: Family, config: &Config) -> Vec<Rule> {
    let known = member(family, Address::Destination, CLUSTER_IPS);
    let mut rules = vec![goto(known, REFUSE_UNREDIRECTED)];
    for cidr in &config.service_cidrs {
        if family_of(cidr) == family {
            let mut unallocated = in_range(Address::Destination, cidr, Operator::Equal);
            unallocated.extend(verdict(Verdict::Drop).expressions);
            rules.push(counted(rule(unallocated)));
        }
    }
    rules
}

/// Rules for packets to a cluster IP that were not redirected. They are rejected, but for those of a
/// connection that began while the rules were missing, before a start or until a repair: the kernel
/// does not redirect it any more, at any port. If it is to a frontend, the agent deletes it, and the
/// client that tries again is served; if it were rejected, the client would give up.
fn refuse_unredirected() -> Vec<Rule> {
    let mut begun = ct_confirmed();
    begun.extend(verdict(Verdict::Drop).expressions);
    let reject = vec![Expression::Reject(RejectKind::PortUnreachable)];
    vec![counted(rule(begun)), counted(rule(reject))]
}

/// A rule for packets that arrive for a cluster IP that is also on a device of this node, with a
/// port that the Service does not have: they go to [`REFUSE_PORTS`]. The node's own address is excluded:
/// even if a Service is given it, the node stays reachable. Returns `None` if that address is
/// unknown.
///
/// Packets from the node's own processes were already rejected on output.
fn refuse_arrivals(family: Family, node: &Node) -> Option<Rule> {
    let own = node.address(family)?;
    let mut known = in_range(Address::Destination, &own.into(), Operator::NotEqual);
    known.extend(member(family, Address::Destination, CLUSTER_IPS));
    Some(goto(known, REFUSE_PORTS))
}

/// Rules that reject packets of protocols with ports, except those that another mode forwards by
/// their mark. An address on a device still answers pings, and protocols that keep a link alive
/// still work.
fn reject_ports() -> Vec<Rule> {
    let mut forwarded = marked(FORWARDING_MARKS.value, FORWARDING_MARKS.mask);
    forwarded.push(Expression::Immediate(Verdict::Return));
    let reject = |protocol: Protocol| {
        counted(rule(vec![
            Expression::Meta {
                key: MetaKey::TransportProtocol,
                to: Register(0),
            },
            compare(Operator::Equal, &[protocol.number()]),
            Expression::Reject(RejectKind::PortUnreachable),
        ]))
    };
    [rule(forwarded)]
        .into_iter()
        .chain(Protocol::ALL.map(reject))
        .collect()
}

/// A base chain.
pub fn base(
    name: &str,
    kind: ChainKind,
    point: HookPoint,
    priority: i32,
    rules: Vec<Rule>,
) -> ChainWithRules {
    let hook = Hook {
        kind,
        point,
        priority,
    };
    ChainWithRules {
        chain: Chain {
            name: key::name(name),
            hook: Some(hook),
        },
        rules,
    }
}

/// A chain that only verdicts lead to.
pub fn regular(name: &str, rules: Vec<Rule>) -> ChainWithRules {
    ChainWithRules {
        chain: Chain {
            name: key::name(name),
            hook: None,
        },
        rules,
    }
}
