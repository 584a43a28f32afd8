//! The chains: the fixed ones, and one group of chains for each number of endpoints in use.
//!
//! Hooks and priorities are those of kube-proxy, for the same reasons: DNAT before filtering, so
//! that filters see endpoints; refusals at filter priority 0, because rejecting before DNAT needs
//! kernel 5.9. Only DNAT is one step earlier, because other programs redirect at kube-proxy's
//! priority.

mod affinity;
mod chain_id;
pub(crate) mod numbered;
mod rule_parts;
mod source_ranges;

use dataplane::{Config, Family, Node};
use netlink::nf_tables::{
    ChainKind, DataType, Expression, FibField, HookPoint, MetaKey, Operator, Register, Rule,
    Verdict,
};
pub(crate) use nftables_model::regular;
use nftables_model::{
    CountedPackets, CountedRule, REFUSE_ARRIVALS, REFUSE_CLUSTER_IPS, REFUSE_NODE_PORTS,
    REFUSE_SERVICES, RESTRICT, base, counted_rules, refusal_chains,
};

pub(crate) use self::chain_id::{ChainId, chain_behind, external_local};
pub(crate) use self::numbered::{ChainRole, Counter, NumberedChain, Placement, SlotChoice};
use self::rule_parts::{
    Address, address_type_local, after, compare, counted, ct_dnat, ct_new, family_of, in_range,
    load_address, load_protocol_and_port, local_source, lookup_chain, mark, member, rule,
    to_node_port_address, verdict,
};
pub(crate) use self::source_ranges::allow_sources;
use crate::layout::{self, Keyed, SetName};
use crate::table::ChainWithRules;

/// `NF_IP_PRI_NAT_DST`.
const DSTNAT: i32 = -100;
/// Before all other DNAT, such as the host ports of the CNI plugin portmap. Of two chains with the
/// same priority the kernel runs the one first that was attached last, and the first one that
/// redirects a connection ends the traversal.
const REDIRECTION: i32 = DSTNAT - 1;
/// Before DNAT: a source that is not allowed is dropped while the packet still has its original
/// destination.
const BEFORE_DSTNAT: i32 = DSTNAT - 10;
/// `NF_IP_PRI_FILTER`.
const FILTER: i32 = 0;
/// `NF_IP_PRI_NAT_SRC`.
const SRCNAT: i32 = 100;
/// Before Signpost or another program rewrites the source.
const BEFORE_SRCNAT: i32 = SRCNAT - 10;

/// The chain that finds the packet's frontend.
pub(crate) const DISPATCH: &str = "dispatch";

/// The chains that only lead to [`RESTRICT`].
pub(crate) const ENTRANCES: [&str; 2] = ["filter-prerouting", "filter-output-before-nat"];

/// The rules that count packets.
pub const COUNTED: [CountedRule; 10] = counted_rules(CountedRule {
    chain: DISPATCH,
    packets: CountedPackets::NewConnections,
});

/// The chains that exist in every table.
pub(crate) fn fixed(family: Family, node: &Node, config: &Config) -> Vec<ChainWithRules> {
    let jump = |chain: &str| verdict(Verdict::Jump(layout::name(chain)));
    let new = |chain: &str| {
        let mut rule = ct_new();
        rule.expressions.extend(jump(chain).expressions);
        rule
    };
    let mut chains = vec![
        base(
            "nat-prerouting",
            ChainKind::Nat,
            HookPoint::Prerouting,
            REDIRECTION,
            vec![jump("dispatch")],
        ),
        base(
            "nat-output",
            ChainKind::Nat,
            HookPoint::Output,
            REDIRECTION,
            vec![jump("dispatch")],
        ),
        base(
            "nat-postrouting",
            ChainKind::Nat,
            HookPoint::Postrouting,
            SRCNAT,
            vec![jump("masquerading")],
        ),
        // Connections to a process on this node do not traverse postrouting.
        base(
            "nat-input-learn",
            ChainKind::Nat,
            HookPoint::Input,
            BEFORE_SRCNAT,
            vec![jump("learn")],
        ),
        base(
            "nat-postrouting-learn",
            ChainKind::Nat,
            HookPoint::Postrouting,
            BEFORE_SRCNAT,
            vec![jump("learn")],
        ),
        base(
            ENTRANCES[0],
            ChainKind::Filter,
            HookPoint::Prerouting,
            BEFORE_DSTNAT,
            vec![new(RESTRICT)],
        ),
        base(
            ENTRANCES[1],
            ChainKind::Filter,
            HookPoint::Output,
            BEFORE_DSTNAT,
            vec![new(RESTRICT)],
        ),
        base(
            "filter-input",
            ChainKind::Filter,
            HookPoint::Input,
            FILTER,
            vec![
                new(REFUSE_SERVICES),
                new(REFUSE_NODE_PORTS),
                new(REFUSE_ARRIVALS),
            ],
        ),
        base(
            "filter-forward",
            ChainKind::Filter,
            HookPoint::Forward,
            FILTER,
            vec![new(REFUSE_SERVICES), new(REFUSE_CLUSTER_IPS)],
        ),
        base(
            "filter-output",
            ChainKind::Filter,
            HookPoint::Output,
            FILTER,
            vec![new(REFUSE_SERVICES), new(REFUSE_CLUSTER_IPS)],
        ),
        regular(DISPATCH, dispatch(family, config)),
        regular(
            &external_local(Keyed::Address),
            external_local_rules(family, config, Keyed::Address),
        ),
        regular(
            &external_local(Keyed::NodePort),
            external_local_rules(family, config, Keyed::NodePort),
        ),
        regular("masquerading", masquerade(family, config)),
        regular("learn", affinity::learn(family)),
    ];
    chains.extend(refusal_chains(family, node, config));
    chains
}

/// The rules that find the packet's frontend. They count new connections: only the first packet of
/// a connection traverses a chain of type nat.
fn dispatch(family: Family, config: &Config) -> Vec<Rule> {
    let to_node = to_node_port_address(family, config);
    [
        (SetName::Services, Vec::new()),
        (SetName::NodePorts, to_node),
    ]
    .map(|(set, when)| counted(lookup_chain(family, set, SetName::ServiceChains, when)))
    .into()
}

/// The rules for external policy Local. Pods of this node and the node itself are inside the
/// cluster: they reach every endpoint, as with the cluster IP. All other clients reach only this
/// node's endpoints, and keep their source address.
fn external_local_rules(family: Family, config: &Config, keyed: Keyed) -> Vec<Rule> {
    let choose = |set, when| lookup_chain(family, set, SetName::LocalChains, when);
    let mut rules = Vec::new();
    if let Some(local) = local_source(family, config, Operator::Equal) {
        rules.push(choose(keyed.short_circuits(), local));
    }
    let mut marked = address_type_local(FibField::Source);
    marked.extend(mark(config).expressions);
    rules.push(rule(marked));
    let from_here = address_type_local(FibField::Source);
    rules.push(choose(keyed.short_circuits(), from_here));
    rules.push(choose(keyed.locals(), Vec::new()));
    rules
}

/// Masquerades marked packets and clears the mark: a tunnel sends the same packet, encapsulated,
/// through these hooks again. Also masquerades packets that an endpoint sent to itself, and packets
/// whose source is a Service address, to which no endpoint could reply.
fn masquerade(family: Family, config: &Config) -> Vec<Rule> {
    let bit = config.mark.value();
    let load = Expression::Meta {
        key: MetaKey::Mark,
        to: Register(0),
    };
    let masked = Expression::Bitwise {
        from: Register(0),
        to: Register(0),
        mask: bit.to_ne_bytes().to_vec(),
        xor: vec![0; 4],
    };
    let cleared = Expression::Bitwise {
        from: Register(0),
        to: Register(0),
        mask: u32::MAX.to_ne_bytes().to_vec(),
        xor: bit.to_ne_bytes().to_vec(),
    };
    let set = Expression::SetMeta {
        key: MetaKey::Mark,
        from: Register(0),
    };
    let marked = rule(vec![
        load.clone(),
        masked,
        compare(Operator::NotEqual, &[0; 4]),
        load,
        cleared,
        set,
        Expression::Masquerade,
    ]);
    let width = DataType::address(family).width();
    let destination = after(Register(0), width);
    let protocol = after(destination, width);
    let mut hairpin = ct_dnat();
    hairpin.extend([
        load_address(family, Address::Source, Register(0)),
        load_address(family, Address::Destination, destination),
    ]);
    hairpin.extend(load_protocol_and_port(protocol));
    hairpin.push(Expression::Lookup {
        set: layout::name(SetName::Hairpins.as_str()),
        from: Register(0),
    });
    hairpin.push(Expression::Masquerade);
    let redirected = |source: Vec<Expression>| {
        let mut expressions = ct_dnat();
        expressions.extend(source);
        expressions.push(Expression::Masquerade);
        rule(expressions)
    };
    let cluster_ip = member(family, Address::Source, SetName::ClusterIps);
    let mut rules = vec![marked, rule(hairpin), redirected(cluster_ip)];
    let cidrs = config.service_cidrs.iter();
    let cidrs = cidrs.filter(|cidr| family_of(cidr) == family);
    rules.extend(cidrs.map(|cidr| redirected(in_range(Address::Source, cidr, Operator::Equal))));
    rules
}

#[cfg(test)]
mod counted_tests;
