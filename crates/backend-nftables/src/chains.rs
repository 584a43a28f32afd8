//! The chains: fixed ones, and those that choose for each number of endpoints in use.
//!
//! Hooks and priorities are kube-proxy's, and for its reasons: DNAT before filtering so that filters see
//! endpoints; refusals at filter priority 0, because rejecting before DNAT needs kernel 5.9. DNAT alone
//! is one step earlier, because other programs redirect at the priority that it would share.

mod affinity;
mod lead;
mod numbered;
mod rule_parts;
mod source_ranges;

use std::sync::Arc;

use dataplane::{Config, Family, Node};
use netlink::nf_tables::{
    ChainKind, DataType, Expression, FibField, HookPoint, MetaKey, Operator, Register, Rule,
    Verdict,
};
pub(crate) use nftables_model::regular;
use nftables_model::{base, refuse_arrivals, refuse_cluster_ips, reject_or_drop, reject_ports};

pub(crate) use self::lead::{Lead, chain_behind, external_local, refuse};
pub(crate) use self::numbered::{Counter, Draw, Job, NumberedChain, Placement};
use self::rule_parts::{
    Address, address_type_local, after, compare, ct_dnat, ct_new, family_of, in_range,
    load_address, load_protocol_and_port, local_source, lookup_chain, lookup_member, mark, member,
    not_loopback, rule, to_node_port_address, verdict,
};
pub(crate) use self::source_ranges::{ALLOW_SOURCES, allow_sources};
use crate::layout::{self, Keyed, SetName};
use crate::table::ChainWithRules;

/// `NF_IP_PRI_NAT_DST`.
const DSTNAT: i32 = -100;
/// Ahead of everyone else's DNAT, such as the host ports of CNI plugin portmap: of chains with the same
/// priority the kernel asks the one first that was attached last, and one that redirects a connection is
/// the last that is asked.
const REDIRECTION: i32 = DSTNAT - 1;
/// Before DNAT: what may not connect is dropped while it still has the address it asked for.
const BEFORE_DSTNAT: i32 = DSTNAT - 10;
/// `NF_IP_PRI_FILTER`.
const FILTER: i32 = 0;
/// `NF_IP_PRI_NAT_SRC`.
const SRCNAT: i32 = 100;
/// Before sources are rewritten, by us or by anybody else.
const BEFORE_SRCNAT: i32 = SRCNAT - 10;

/// Every chain that is always there.
pub(crate) fn fixed(family: Family, node: &Node, config: &Config) -> Vec<ChainWithRules> {
    let jump = |chain: &str| verdict(Verdict::Jump(layout::name(chain)));
    let new = |chain: &str| {
        let mut rule = ct_new();
        rule.expressions.extend(jump(chain).expressions);
        rule
    };
    vec![
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
        // A connection to a process on this node does not pass postrouting.
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
            "filter-prerouting",
            ChainKind::Filter,
            HookPoint::Prerouting,
            BEFORE_DSTNAT,
            vec![new("restrict")],
        ),
        base(
            "filter-output-before-nat",
            ChainKind::Filter,
            HookPoint::Output,
            BEFORE_DSTNAT,
            vec![new("restrict")],
        ),
        base(
            "filter-input",
            ChainKind::Filter,
            HookPoint::Input,
            FILTER,
            vec![
                new("refuse-services"),
                new("refuse-nodeports"),
                new("refuse-arrivals"),
            ],
        ),
        base(
            "filter-forward",
            ChainKind::Filter,
            HookPoint::Forward,
            FILTER,
            vec![new("refuse-services"), new("refuse-cluster-ips")],
        ),
        base(
            "filter-output",
            ChainKind::Filter,
            HookPoint::Output,
            FILTER,
            vec![new("refuse-services"), new("refuse-cluster-ips")],
        ),
        regular("dispatch", dispatch(family, config)),
        regular(
            &external_local(Keyed::Address),
            ask_who(family, config, Keyed::Address),
        ),
        regular(
            &external_local(Keyed::NodePort),
            ask_who(family, config, Keyed::NodePort),
        ),
        regular("masquerading", masquerade(family, config)),
        regular("learn", affinity::learn(family)),
        regular(
            "restrict",
            vec![goto_member(
                family,
                SetName::Restrictions,
                Vec::new(),
                layout::name(ALLOW_SOURCES),
            )],
        ),
        regular("refuse-services", refuse_services(family)),
        regular("refuse-nodeports", vec![refuse_nodeports(family, config)]),
        regular(
            "refuse-cluster-ips",
            refuse_cluster_ips(family, config, SetName::ClusterIps.as_str()),
        ),
        regular(
            "refuse-arrivals",
            refuse_arrivals(
                family,
                node,
                SetName::ClusterIps.as_str(),
                layout::name("refuse-ports"),
            )
            .into_iter()
            .collect(),
        ),
        regular("refuse-ports", reject_ports()),
        regular(
            &refuse(Keyed::Address),
            reject_or_drop(lookup_member(family, Keyed::Address.rejects())),
        ),
        regular(
            &refuse(Keyed::NodePort),
            reject_or_drop(lookup_member(family, Keyed::NodePort.rejects())),
        ),
    ]
}

/// Finds the frontend.
fn dispatch(family: Family, config: &Config) -> Vec<Rule> {
    vec![
        lookup_chain(
            family,
            SetName::Services,
            SetName::ServiceChains,
            Vec::new(),
        ),
        lookup_chain(
            family,
            SetName::NodePorts,
            SetName::ServiceChains,
            to_node_port_address(family, config),
        ),
    ]
}

/// External policy Local. Pods of this node and this node itself are inside the cluster, and reach
/// every endpoint as they would by the cluster IP; everyone else reaches this node's endpoints only,
/// with his own address.
fn ask_who(family: Family, config: &Config, keyed: Keyed) -> Vec<Rule> {
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

/// Masquerades what was marked and takes the mark off: a tunnel sends the same packet through these
/// hooks once more, in its envelope. Then packets that an endpoint sent to itself, and those whose
/// source is an address of Services, where no endpoint could send a reply.
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

/// A packet that was redirected has its endpoint: a Service that claims the endpoint's address, and has
/// none itself, must not refuse it.
fn refuse_services(family: Family) -> Vec<Rule> {
    let mut redirected = ct_dnat();
    redirected.extend(verdict(Verdict::Return).expressions);
    let refused = goto_member(
        family,
        SetName::Refusals,
        Vec::new(),
        refuse(Keyed::Address),
    );
    vec![rule(redirected), refused]
}

fn refuse_nodeports(family: Family, config: &Config) -> Rule {
    let to_node = match config.node_ports.of(family) {
        // Input sees only what is for this node.
        None => not_loopback(family),
        Some(_) => to_node_port_address(family, config),
    };
    let refuse = refuse(Keyed::NodePort);
    goto_member(family, SetName::NodePortRefusals, to_node, refuse)
}

/// On with `chain` for what is in `set`, if it is what `when` says.
fn goto_member(family: Family, set: SetName, mut when: Vec<Expression>, chain: Arc<str>) -> Rule {
    when.extend(lookup_member(family, set));
    when.extend(verdict(Verdict::Goto(chain)).expressions);
    rule(when)
}
