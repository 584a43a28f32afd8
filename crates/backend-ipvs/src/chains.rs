//! The chains. All of them always exist, and none is for a single Service.
//!
//! Packets that IPVS forwards do not come from prerouting: they are delivered to this node, and
//! IPVS sends them out through output and postrouting. Hence the marks, on packets on their way to
//! IPVS and on packets from IPVS, so that no rule takes the latter for new ones.

pub(crate) mod affinity;
mod marks;
mod replies;

use dataplane::{Config, Family, Masquerade, Node, Protocol};
use netlink::nf_tables::{
    ADDRESS_TYPE_LOCAL, ChainKind, DataType, Expression, FibField, HookPoint, MetaKey, NatKind,
    Operator, Register, RejectKind, Rule, Verdict,
};
use nftables_model::{
    Address, ChainWithRules, CountedRule, FrontendFields, REFUSE_ARRIVALS, REFUSE_CLUSTER_IPS,
    REFUSE_NODE_PORTS, REFUSE_SERVICES, RESTRICT, RefusalReason, address_type_local, after, base,
    compare, counted, counted_rules, ct_dnat, ct_new, family_of, in_range, load_address,
    load_frontend, load_mark, load_port, load_protocol_and_port, local_source, lookup_frontend,
    marked, member, name, refusal_chains, regular, rule, to_node_port_address, verdict,
};

use self::marks::{label, labelled, set_mark};
use self::replies::{ORIGINAL, RESTORE_SOURCE, direction, replies, restore_source};
use crate::layout::{
    ANY_MASK, DONE, MARKED, MARKED_MASK, MASQUERADE_LABEL, STEERED, SetName, TAKEN_LABEL,
};

/// Before everything that processes outgoing packets.
const BEFORE_ALL: i32 = -301;
/// Before the rerouting below.
const BEFORE_ROUTE: i32 = -160;
/// After `NF_IP_PRI_MANGLE`, where other programs set marks; before IPVS, which processes outgoing
/// packets at -98.
const ROUTE: i32 = -149;
/// Before the DNAT of other programs.
const PREROUTING: i32 = -110;
/// Before `NF_IP_PRI_NAT_DST` and the DNAT of other programs: the kernel runs the chain with the
/// lowest priority first.
const RETURN: i32 = -101;
/// `NF_IP_PRI_FILTER`.
const FILTER: i32 = 0;
/// After IPVS, which processes packets to this node at 99.
const AFTER_IPVS: i32 = 110;
/// After `NF_IP_PRI_NAT_DST`, where all programs have their DNAT; before IPVS, which processes
/// outgoing packets at -98.
const AFTER_DSTNAT: i32 = -99;
/// `NF_IP_PRI_NAT_SRC`.
const SRCNAT: i32 = 100;
/// Before that.
const BEFORE_SRCNAT: i32 = SRCNAT - 1;

pub(crate) const DISPATCH: &str = "dispatch";
const LEARN: &str = "learn";
const TAKE: &str = "take";
const TAKE_CLUSTER_IP: &str = "take-cluster-ip";
const TAKE_MASQUERADED: &str = "take-masqueraded";
/// The chain that refuses what IPVS does not take.
pub(crate) const REFUSE_UNTAKEN: &str = "after-ipvs";

/// The chains that only lead to [`RESTRICT`].
pub(crate) const ENTRANCES: [&str; 1] = ["restrict-output"];

/// The rules that count packets.
pub const COUNTED: [CountedRule; 10] = counted_rules(CountedRule::refusing(
    REFUSE_UNTAKEN,
    RefusalReason::NotTakenByIpvs,
));

/// Renders every chain except [`ALLOW_SOURCES`].
pub(crate) fn fixed(family: Family, node: &Node, config: &Config) -> Vec<ChainWithRules> {
    let filter =
        |name, point, priority, rules| base(name, ChainKind::Filter, point, priority, rules);
    let mut chains = vec![
        filter(
            "filter-prerouting",
            HookPoint::Prerouting,
            PREROUTING,
            vec![
                leave_done(),
                new_jump(RESTRICT),
                leave_redirected(),
                steer(),
                new_jump(DISPATCH),
            ],
        ),
        filter(
            "second-pass",
            HookPoint::Output,
            BEFORE_ALL,
            vec![verdict(Verdict::Jump(name(LEARN))), set_done()],
        ),
        filter(
            ENTRANCES[0],
            HookPoint::Output,
            BEFORE_ROUTE,
            vec![leave_done(), new_jump(RESTRICT)],
        ),
        base(
            "route-output",
            ChainKind::Route,
            HookPoint::Output,
            ROUTE,
            vec![
                leave_done(),
                leave_redirected(),
                steer(),
                new_jump(DISPATCH),
            ],
        ),
        base(
            "nat-prerouting",
            ChainKind::Nat,
            HookPoint::Prerouting,
            RETURN,
            vec![
                affinity::by_group(SetName::ReturnChains),
                leave_restricted(family),
                keep_destination(family),
            ],
        ),
        base(
            "nat-output",
            ChainKind::Nat,
            HookPoint::Output,
            RETURN,
            vec![
                affinity::by_group(SetName::ReturnChains),
                leave_restricted(family),
                keep_destination(family),
            ],
        ),
        filter(
            "release-prerouting",
            HookPoint::Prerouting,
            AFTER_DSTNAT,
            vec![release()],
        ),
        base(
            "release-output",
            ChainKind::Route,
            HookPoint::Output,
            AFTER_DSTNAT,
            vec![release()],
        ),
        regular(LEARN, vec![affinity::by_group(SetName::LearningChains)]),
        filter(
            "filter-input",
            HookPoint::Input,
            FILTER,
            vec![
                leave_marked(),
                new_jump(REFUSE_SERVICES),
                new_jump(REFUSE_NODE_PORTS),
                new_jump(REFUSE_ARRIVALS),
            ],
        ),
        filter(
            "filter-forward",
            HookPoint::Forward,
            FILTER,
            vec![new_jump(REFUSE_SERVICES), new_jump(REFUSE_CLUSTER_IPS)],
        ),
        filter(
            "filter-output",
            HookPoint::Output,
            FILTER,
            vec![
                leave_marked(),
                new_jump(REFUSE_SERVICES),
                new_jump(REFUSE_CLUSTER_IPS),
            ],
        ),
        filter(
            REFUSE_UNTAKEN,
            HookPoint::Input,
            AFTER_IPVS,
            refuse_untaken(),
        ),
        filter("unmark", HookPoint::Postrouting, BEFORE_SRCNAT, unmark()),
        regular(RESTORE_SOURCE, restore_source(family)),
        base(
            "nat-postrouting",
            ChainKind::Nat,
            HookPoint::Postrouting,
            SRCNAT,
            masquerade(family, config),
        ),
        regular(DISPATCH, dispatch(family, config)),
        regular(TAKE, vec![label(TAKEN_LABEL)]),
        regular(TAKE_CLUSTER_IP, take_cluster_ip(family, config)),
        regular(
            TAKE_MASQUERADED,
            vec![label(MASQUERADE_LABEL), label(TAKEN_LABEL)],
        ),
    ];
    chains.extend(refusal_chains(family, node, config));
    chains
}

/// Renders the chains that remain while connections of IPVS end after another mode has taken over.
/// They send no new connection anywhere.
pub(crate) fn ending(family: Family) -> Vec<ChainWithRules> {
    let filter =
        |name, point, priority, rules| base(name, ChainKind::Filter, point, priority, rules);
    let [reset, reject] = untaken();
    vec![
        filter(
            "filter-prerouting",
            HookPoint::Prerouting,
            PREROUTING,
            vec![leave_done(), leave_taken(), leave_redirected(), steer()],
        ),
        filter(
            "second-pass",
            HookPoint::Output,
            BEFORE_ALL,
            vec![set_done()],
        ),
        base(
            "route-output",
            ChainKind::Route,
            HookPoint::Output,
            ROUTE,
            vec![leave_done(), leave_taken(), leave_redirected(), steer()],
        ),
        filter(
            REFUSE_UNTAKEN,
            HookPoint::Input,
            AFTER_IPVS,
            vec![reset, reject, replies()],
        ),
        filter(
            "unmark",
            HookPoint::Postrouting,
            BEFORE_SRCNAT,
            [replies()].into_iter().chain(take_marks_off()).collect(),
        ),
        regular(RESTORE_SOURCE, restore_source(family)),
        // Without any chain of type nat, the kernel translates the addresses of no connection, and
        // those that were masqueraded would end.
        base(
            "nat-postrouting",
            ChainKind::Nat,
            HookPoint::Postrouting,
            SRCNAT,
            Vec::new(),
        ),
    ]
}

/// The rules that find the packet's frontend and its mark.
fn dispatch(family: Family, config: &Config) -> Vec<Rule> {
    let mut rules = vec![
        take(family, SetName::Services, Vec::new(), TAKE_CLUSTER_IP),
        take(family, SetName::Externals, Vec::new(), TAKE_MASQUERADED),
    ];
    let by_policy = |short_circuits, locals, to: &[Expression], rules: &mut Vec<Rule>| {
        let when = |more: Vec<Expression>| [to, &more].concat();
        if let Some(local) = local_source(family, config, Operator::Equal) {
            rules.push(take(family, short_circuits, when(local), TAKE));
        }
        let from_here = address_type_local(FibField::Source);
        rules.push(take(
            family,
            short_circuits,
            when(from_here),
            TAKE_MASQUERADED,
        ));
        rules.push(take(family, locals, to.to_vec(), TAKE));
    };
    by_policy(SetName::ShortCircuits, SetName::Locals, &[], &mut rules);
    // A packet to an address that refuses must not be looked up as a node port of another Service
    // afterwards.
    let mut refused = lookup(family, SetName::Refusals);
    refused.push(Expression::Immediate(Verdict::Return));
    rules.push(rule(refused));
    let to_node = to_node_port_address(family, config);
    rules.push(take(
        family,
        SetName::NodePorts,
        to_node.clone(),
        TAKE_MASQUERADED,
    ));
    by_policy(
        SetName::NodePortShortCircuits,
        SetName::NodePortLocals,
        &to_node,
        &mut rules,
    );
    rules
}

/// For packets that match `when`, sets the mark that `set` has for the frontend, and continues in
/// `chain`.
fn take(family: Family, set: SetName, mut when: Vec<Expression>, chain: &str) -> Rule {
    when.extend(load_frontend(family, fields(set), Register(0)).0);
    when.extend([
        Expression::LookupValue {
            set: name(set.as_str()),
            from: Register(0),
            to: Register(0),
        },
        Expression::SetMeta {
            key: MetaKey::Mark,
            from: Register(0),
        },
        Expression::Immediate(Verdict::Goto(name(chain))),
    ]);
    rule(when)
}

fn take_cluster_ip(family: Family, config: &Config) -> Vec<Rule> {
    let asked = match config.masquerade {
        Masquerade::All => Some(Vec::new()),
        Masquerade::NonLocal => local_source(family, config, Operator::NotEqual),
    };
    let masqueraded = asked.map(|mut when| {
        when.extend(label(MASQUERADE_LABEL).expressions);
        rule(when)
    });
    masqueraded
        .into_iter()
        .chain([label(TAKEN_LABEL)])
        .collect()
}

/// Accepts packets that IPVS has forwarded and that return through the loopback device.
fn leave_done() -> Rule {
    rule(vec![
        load_mark(),
        compare(Operator::Equal, &DONE.to_ne_bytes()),
        Expression::Immediate(Verdict::Accept),
    ])
}

/// Leaves the mark that the table of a mode which has returned has set, in chains before these: its
/// label is on the connection already.
fn leave_taken() -> Rule {
    let mut expressions = marked(MARKED, MARKED_MASK);
    expressions.push(Expression::Immediate(Verdict::Accept));
    rule(expressions)
}

/// Keeps redirected connections from IPVS, whether affinity or another program has redirected them.
fn leave_redirected() -> Rule {
    let mut expressions = ct_dnat();
    expressions.push(Expression::Immediate(Verdict::Accept));
    rule(expressions)
}

/// Leaves frontends with source ranges to the DNAT of other programs. kube-proxy in mode iptables
/// drops packets to such addresses at input which it has not redirected, and both serve during a
/// takeover.
fn leave_restricted(family: Family) -> Rule {
    let mut restricted = lookup(family, SetName::Restrictions);
    restricted.push(Expression::Immediate(Verdict::Return));
    rule(restricted)
}

/// Translates the destination of packets for IPVS to itself: the kernel then skips the DNAT of
/// other programs, such as host ports, which come later. The connection does not count as
/// redirected.
fn keep_destination(family: Family) -> Rule {
    let address = Register(0);
    let port = after(address, DataType::address(family).width());
    let mut expressions = marked(MARKED, MARKED_MASK);
    expressions.extend([
        load_address(family, Address::Destination, address),
        load_port(port),
        Expression::Nat {
            kind: NatKind::Destination,
            family,
            address,
            port,
        },
    ]);
    rule(expressions)
}

/// Clears the mark of packets that were redirected after they got it, by another mode while both
/// exist or by another program: they are not for IPVS.
fn release() -> Rule {
    let mut expressions = marked(MARKED, MARKED_MASK);
    expressions.extend(ct_dnat());
    expressions.extend(set_mark(0));
    rule(expressions)
}

/// Exempts packets to and from IPVS from refusals, as they have an endpoint: a Service without
/// endpoints may claim the endpoint's address.
fn leave_marked() -> Rule {
    let mut expressions = marked(MARKED, ANY_MASK);
    expressions.push(Expression::Immediate(Verdict::Accept));
    rule(expressions)
}

/// Marks packets that IPVS has forwarded: they traverse output with the mark of their virtual
/// server.
fn set_done() -> Rule {
    let mut expressions = marked(MARKED, MARKED_MASK);
    expressions.extend(set_mark(DONE));
    rule(expressions)
}

/// Sends all packets of a client on a connection of IPVS to IPVS. Packets that open a connection
/// are dispatched after this, so that a client whose endpoint is gone gets another one.
fn steer() -> Rule {
    let mut expressions = labelled(TAKEN_LABEL);
    expressions.extend(direction(ORIGINAL));
    expressions.extend(set_mark(STEERED));
    rule(expressions)
}

/// Refuses and counts packets that IPVS did not take: they must not reach a process that listens on all
/// addresses.
fn refuse_untaken() -> Vec<Rule> {
    let [reset, reject] = untaken();
    let learn = verdict(Verdict::Jump(name(LEARN)));
    vec![counted(reset), counted(reject), learn, replies()]
}

fn untaken() -> [Rule; 2] {
    let untaken = || {
        let mut expressions = marked(MARKED, MARKED_MASK);
        expressions.extend([
            Expression::FibType {
                field: FibField::Destination,
                to: Register(0),
            },
            compare(Operator::NotEqual, &ADDRESS_TYPE_LOCAL.to_ne_bytes()),
        ]);
        expressions
    };
    let mut reset = untaken();
    reset.extend([
        Expression::Meta {
            key: MetaKey::TransportProtocol,
            to: Register(0),
        },
        compare(Operator::Equal, &[Protocol::Tcp.number()]),
        Expression::Reject(RejectKind::TcpReset),
    ]);
    let mut reject = untaken();
    reject.push(Expression::Reject(RejectKind::PortUnreachable));
    [rule(reset), rule(reject)]
}

/// Clears the marks of outgoing packets. A packet that IPVS forwards to a process on this node
/// comes back through the loopback device, and is marked accordingly.
fn unmark() -> Vec<Rule> {
    let learn = verdict(Verdict::Jump(name(LEARN)));
    [learn, replies()]
        .into_iter()
        .chain(take_marks_off())
        .collect()
}

fn take_marks_off() -> [Rule; 2] {
    let mut to_this_node = marked(MARKED, ANY_MASK);
    to_this_node.extend(address_type_local(FibField::Destination));
    to_this_node.extend(set_mark(DONE));
    to_this_node.push(Expression::Immediate(Verdict::Accept));
    let mut leaving = marked(MARKED, ANY_MASK);
    leaving.extend(set_mark(0));
    [rule(to_this_node), rule(leaving)]
}

/// Masquerades packets labelled for it, packets that an endpoint sent to itself, and packets whose
/// source is a Service address, to which no endpoint could reply.
fn masquerade(family: Family, config: &Config) -> Vec<Rule> {
    let masqueraded = |mut when: Vec<Expression>| {
        when.push(Expression::Masquerade);
        rule(when)
    };
    let taken = |more: Vec<Expression>| {
        let mut expressions = labelled(TAKEN_LABEL);
        expressions.extend(more);
        masqueraded(expressions)
    };
    let width = DataType::address(family).width();
    let destination = after(Register(0), width);
    let mut hairpin = vec![
        load_address(family, Address::Source, Register(0)),
        load_address(family, Address::Destination, destination),
    ];
    hairpin.extend(load_protocol_and_port(after(destination, width)));
    hairpin.push(Expression::Lookup {
        set: name(SetName::Hairpins.as_str()),
        from: Register(0),
    });
    let cluster_ip = member(family, Address::Source, SetName::ClusterIps.as_str());
    let mut rules = vec![
        masqueraded(labelled(MASQUERADE_LABEL)),
        taken(hairpin),
        taken(cluster_ip),
    ];
    let cidrs = config.service_cidrs.iter();
    let cidrs = cidrs.filter(|cidr| family_of(cidr) == family);
    rules.extend(cidrs.map(|cidr| taken(in_range(Address::Source, cidr, Operator::Equal))));
    rules
}

/// The fields of a frontend in the keys of `set`.
fn fields(set: SetName) -> FrontendFields {
    set.fields().unwrap_or(FrontendFields::AddressAndPort)
}

/// Matches packets to frontends in `set`.
fn lookup(family: Family, set: SetName) -> Vec<Expression> {
    lookup_frontend(family, fields(set), set.as_str())
}

/// Jumps to `chain` with packets that open a connection.
fn new_jump(chain: &str) -> Rule {
    let mut rule = ct_new();
    rule.expressions
        .push(Expression::Immediate(Verdict::Jump(name(chain))));
    rule
}
