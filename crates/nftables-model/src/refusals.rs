//! Rules that reject or drop packets to Services without endpoints and count them, and constructors
//! of chains.

use std::sync::Arc;

use backend::FORWARDING_MARKS;
use dataplane::{Config, Family, Node, Protocol};
use netlink::nf_tables::{
    Chain, ChainKind, Expression, Hook, HookPoint, MetaKey, Operator, Register, RejectKind, Rule,
    Verdict,
};

use crate::contents::ChainWithRules;
use crate::key;
use crate::packet_counters::REFUSE_UNREDIRECTED;
use crate::parts::{
    Address, compare, counted, ct_confirmed, family_of, in_range, marked, member, rule, verdict,
};

/// Rules for packets without a usable endpoint; `rejected` matches frontends without any endpoints.
/// Packets to those are rejected. Packets to a frontend that has endpoints, but none that may be
/// used here, are dropped. So are packets to a frontend that got its first endpoint since the
/// previous lookup: the client retries.
pub fn reject_or_drop(mut rejected: Vec<Expression>) -> Vec<Rule> {
    rejected.push(Expression::Reject(RejectKind::PortUnreachable));
    vec![counted(rule(rejected)), counted(verdict(Verdict::Drop))]
}

/// Rules for packets that are still addressed to a cluster IP after DNAT, and so have no frontend:
/// they use a port that the Service does not have, which is rejected, or an address that no Service
/// has, which is dropped. Those to a cluster IP go to the rules of [`refuse_unredirected`].
pub fn refuse_cluster_ips(family: Family, config: &Config, cluster_ips: &str) -> Vec<Rule> {
    let mut known = member(family, Address::Destination, cluster_ips);
    known.extend(verdict(Verdict::Goto(key::name(REFUSE_UNREDIRECTED))).expressions);
    let mut rules = vec![rule(known)];
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
pub fn refuse_unredirected() -> Vec<Rule> {
    let mut begun = ct_confirmed();
    begun.extend(verdict(Verdict::Drop).expressions);
    let reject = vec![Expression::Reject(RejectKind::PortUnreachable)];
    vec![counted(rule(begun)), counted(rule(reject))]
}

/// A rule for packets that arrive for a cluster IP that is also on a device of this node, with a
/// port that the Service does not have: they go to `chain`. The node's own address is excluded:
/// even if a Service is given it, the node stays reachable. Returns `None` if that address is
/// unknown.
///
/// Packets from the node's own processes were already rejected on output.
pub fn refuse_arrivals(
    family: Family,
    node: &Node,
    cluster_ips: &str,
    chain: Arc<str>,
) -> Option<Rule> {
    let own = node.address(family)?;
    let mut known = in_range(Address::Destination, &own.into(), Operator::NotEqual);
    known.extend(member(family, Address::Destination, cluster_ips));
    known.extend(verdict(Verdict::Goto(chain)).expressions);
    Some(rule(known))
}

/// Rules that reject packets of protocols with ports, except those that another mode forwards by
/// their mark. An address on a device still answers pings, and protocols that keep a link alive
/// still work.
pub fn reject_ports() -> Vec<Rule> {
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
