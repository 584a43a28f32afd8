//! Rules that refuse what is for a Service and has no endpoint, and what chains are made of.

use std::sync::Arc;

use dataplane::{Config, Family, Node, Protocol};
use netlink::nf_tables::{
    Chain, ChainKind, Expression, Hook, HookPoint, MetaKey, Operator, Register, RejectKind, Rule,
    Verdict,
};

use crate::contents::ChainWithRules;
use crate::key;
use crate::parts::{Address, compare, family_of, in_range, member, rule, verdict};

/// What refuses, where `rejected` matches who has no endpoints. Who has none at all says so; who has some, but none that may be used here, drops. So does
/// who got one between this lookup and the last: its client tries again.
pub fn reject_or_drop(mut rejected: Vec<Expression>) -> Vec<Rule> {
    rejected.push(Expression::Reject(RejectKind::PortUnreachable));
    vec![rule(rejected), verdict(Verdict::Drop)]
}

/// What is still addressed to a cluster IP after DNAT has no frontend: a port the Service does not
/// have, or an address no Service has.
pub fn refuse_cluster_ips(family: Family, config: &Config, cluster_ips: &str) -> Vec<Rule> {
    let mut known = member(family, Address::Destination, cluster_ips);
    known.push(Expression::Reject(RejectKind::PortUnreachable));
    let mut rules = vec![rule(known)];
    for cidr in &config.service_cidrs {
        if family_of(cidr) == family {
            let mut unallocated = in_range(Address::Destination, cidr, Operator::Equal);
            unallocated.extend(verdict(Verdict::Drop).expressions);
            rules.push(rule(unallocated));
        }
    }
    rules
}

/// What arrives for a cluster IP that is also on a device of this node, and for a port that the
/// Service does not have. The node's own address is left out: should a Service have been given it,
/// the node stays reachable. Where that address is not known, nothing is refused.
///
/// The node's own processes were refused on the way out. What is refused goes to `chain`.
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

/// What has a port, and nothing else: an address that a device has goes on answering pings and what
/// keeps a link alive.
pub fn reject_ports() -> Vec<Rule> {
    let reject = |protocol: Protocol| {
        rule(vec![
            Expression::Meta {
                key: MetaKey::TransportProtocol,
                to: Register(0),
            },
            compare(Operator::Equal, &[protocol.number()]),
            Expression::Reject(RejectKind::PortUnreachable),
        ])
    };
    Protocol::ALL.map(reject).into()
}

/// A chain at a hook.
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
