//! The chains. All of them are always there, and none is about one Service.
//!
//! What IPVS sends on does not come from prerouting: it is delivered to this node, and IPVS sends it out
//! through output and postrouting. Hence the marks: of packets on their way to IPVS, and of those that
//! come from there, which nothing here may take for new ones.

pub(crate) mod affinity;
mod marks;

use dataplane::{Config, Family, Masquerade, Node, Protocol};
use netlink::nf_tables::{
    ADDRESS_TYPE_LOCAL, ChainKind, CtKey, DataType, Expression, FibField, HookPoint, MetaKey,
    Operator, Register, RejectKind, Rule, Verdict,
};
use nftables_model::{
    Address, ChainWithRules, FrontendFields, address_type_local, after, base, compare, ct_dnat,
    ct_new, family_of, in_range, load_address, load_frontend, load_protocol_and_port, local_source,
    member, name, not_loopback, refuse_arrivals, refuse_cluster_ips, regular, reject_or_drop,
    reject_ports, rule, verdict,
};

use self::marks::{label, labelled, load_mark, marked, set_mark};
use crate::layout::{
    ANY_MASK, DONE, MARKED, MARKED_MASK, MASQUERADE_LABEL, STEERED, SetName, TAKEN_LABEL,
};

/// Ahead of everything that looks at what leaves this node.
const BEFORE_ALL: i32 = -301;
/// Ahead of the rerouting below.
const BEFORE_ROUTE: i32 = -160;
/// Behind `NF_IP_PRI_MANGLE`, where others set marks; ahead of IPVS, which takes what this node sends at
/// -98.
const ROUTE: i32 = -149;
/// Ahead of the DNAT of other programs.
const PREROUTING: i32 = -110;
/// Ahead of `NF_IP_PRI_NAT_DST` and of the DNAT of other programs, of which the kernel asks the lowest
/// first.
const RETURN: i32 = -101;
/// `NF_IP_PRI_FILTER`.
const FILTER: i32 = 0;
/// IPVS takes what is for this node at 99.
const AFTER_IPVS: i32 = 110;
/// Behind `NF_IP_PRI_NAT_DST`, where the DNAT of all programs is; ahead of IPVS, which takes what this node sends at -98.
const AFTER_DSTNAT: i32 = -99;
/// `NF_IP_PRI_NAT_SRC`.
const SRCNAT: i32 = 100;
/// Ahead of that.
const BEFORE_SRCNAT: i32 = SRCNAT - 1;

/// The chain that lets through who may connect.
pub(crate) const ALLOW_SOURCES: &str = "allow-sources";

const DISPATCH: &str = "dispatch";
const LEARN: &str = "learn";
const TAKE: &str = "take";
const TAKE_CLUSTER_IP: &str = "take-cluster-ip";
const TAKE_MASQUERADED: &str = "take-masqueraded";
const REFUSE: &str = "refuse";
const REFUSE_NODE_PORT: &str = "nodeport-refuse";
const REFUSE_PORTS: &str = "refuse-ports";

/// Every chain but [`ALLOW_SOURCES`].
pub(crate) fn fixed(family: Family, node: &Node, config: &Config) -> Vec<ChainWithRules> {
    let filter =
        |name, point, priority, rules| base(name, ChainKind::Filter, point, priority, rules);
    let cluster_ips = SetName::ClusterIps.as_str();
    vec![
        filter(
            "filter-prerouting",
            HookPoint::Prerouting,
            PREROUTING,
            vec![
                leave_done(),
                new_jump("restrict"),
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
            "restrict-output",
            HookPoint::Output,
            BEFORE_ROUTE,
            vec![leave_done(), new_jump("restrict")],
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
            vec![affinity::by_timeout(SetName::ReturnChains)],
        ),
        base(
            "nat-output",
            ChainKind::Nat,
            HookPoint::Output,
            RETURN,
            vec![affinity::by_timeout(SetName::ReturnChains)],
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
        regular(LEARN, vec![affinity::by_timeout(SetName::LearningChains)]),
        filter(
            "filter-input",
            HookPoint::Input,
            FILTER,
            vec![
                leave_marked(),
                new_jump("refuse-services"),
                new_jump("refuse-nodeports"),
                new_jump("refuse-arrivals"),
            ],
        ),
        filter(
            "filter-forward",
            HookPoint::Forward,
            FILTER,
            vec![new_jump("refuse-services"), new_jump("refuse-cluster-ips")],
        ),
        filter(
            "filter-output",
            HookPoint::Output,
            FILTER,
            vec![
                leave_marked(),
                new_jump("refuse-services"),
                new_jump("refuse-cluster-ips"),
            ],
        ),
        filter("after-ipvs", HookPoint::Input, AFTER_IPVS, refuse_untaken()),
        filter("unmark", HookPoint::Postrouting, BEFORE_SRCNAT, unmark()),
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
        regular(
            "restrict",
            vec![goto_member(
                family,
                SetName::Restrictions,
                Vec::new(),
                ALLOW_SOURCES,
            )],
        ),
        regular(
            "refuse-services",
            vec![
                return_redirected(),
                goto_member(family, SetName::Refusals, Vec::new(), REFUSE),
            ],
        ),
        regular("refuse-nodeports", vec![refuse_node_ports(family, config)]),
        regular(
            "refuse-cluster-ips",
            refuse_cluster_ips(family, config, cluster_ips),
        ),
        regular(
            "refuse-arrivals",
            refuse_arrivals(family, node, cluster_ips, name(REFUSE_PORTS))
                .into_iter()
                .collect(),
        ),
        regular(REFUSE_PORTS, reject_ports()),
        regular(REFUSE, reject_or_drop(lookup(family, SetName::Rejects))),
        regular(
            REFUSE_NODE_PORT,
            reject_or_drop(lookup(family, SetName::NodePortRejects)),
        ),
    ]
}

/// What is left while connections end that IPVS has taken, once another mode serves: nothing here leads a new connection
/// anywhere.
pub(crate) fn ending() -> Vec<ChainWithRules> {
    let filter =
        |name, point, priority, rules| base(name, ChainKind::Filter, point, priority, rules);
    let [reset, reject] = untaken();
    vec![
        filter(
            "filter-prerouting",
            HookPoint::Prerouting,
            PREROUTING,
            vec![leave_done(), leave_redirected(), steer()],
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
            vec![leave_done(), leave_redirected(), steer()],
        ),
        filter(
            "after-ipvs",
            HookPoint::Input,
            AFTER_IPVS,
            vec![reset, reject],
        ),
        filter(
            "unmark",
            HookPoint::Postrouting,
            BEFORE_SRCNAT,
            take_marks_off().into(),
        ),
    ]
}

/// Finds the frontend, and with it the mark.
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
    // An address that refuses must not be looked up as a node port of another Service next.
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

/// Gives the packet the mark that its frontend has in `set`, if it is what `when` says, and goes on with
/// `chain`.
fn take(family: Family, set: SetName, mut when: Vec<Expression>, chain: &str) -> Rule {
    when.extend(load(family, set));
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

/// What IPVS has sent on, and comes back through the loopback device.
fn leave_done() -> Rule {
    rule(vec![
        load_mark(),
        compare(Operator::Equal, &DONE.to_ne_bytes()),
        Expression::Immediate(Verdict::Accept),
    ])
}

/// What affinity, or another program, has redirected is not for IPVS, nor is what follows it.
fn leave_redirected() -> Rule {
    let mut expressions = ct_dnat();
    expressions.push(Expression::Immediate(Verdict::Accept));
    rule(expressions)
}

/// As [`leave_marked`], of what affinity has redirected.
fn return_redirected() -> Rule {
    let mut expressions = ct_dnat();
    expressions.push(Expression::Immediate(Verdict::Return));
    rule(expressions)
}

/// What has been redirected since it got its mark is not for IPVS: the rules of another mode, while both are there, or those of
/// another program.
fn release() -> Rule {
    let mut expressions = marked(MARKED, MARKED_MASK);
    expressions.extend(ct_dnat());
    expressions.extend(set_mark(0));
    rule(expressions)
}

/// What is on its way to IPVS, or comes from there, has an endpoint: a Service that claims the
/// endpoint's address, and has none itself, must not refuse it.
fn leave_marked() -> Rule {
    let mut expressions = marked(MARKED, ANY_MASK);
    expressions.push(Expression::Immediate(Verdict::Accept));
    rule(expressions)
}

/// What IPVS has sent on passes output with the mark that it was found by.
fn set_done() -> Rule {
    let mut expressions = marked(MARKED, MARKED_MASK);
    expressions.extend(set_mark(DONE));
    rule(expressions)
}

/// Leads all that a client sends on a connection that IPVS has taken to IPVS. What opens a connection is
/// dispatched behind this: a client whose endpoint is gone gets another one.
fn steer() -> Rule {
    let mut expressions = labelled(TAKEN_LABEL);
    expressions.extend([
        Expression::Ct {
            key: CtKey::Direction,
            direction: None,
            to: Register(0),
        },
        compare(Operator::Equal, &[0]),
    ]);
    expressions.extend(set_mark(STEERED));
    rule(expressions)
}

/// What IPVS did not take must not reach a process that listens on every address.
fn refuse_untaken() -> Vec<Rule> {
    let [reset, reject] = untaken();
    let learn = verdict(Verdict::Jump(name(LEARN)));
    vec![reset, reject, learn]
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

/// Takes the marks off what leaves. What IPVS has led to a process of this node comes back through the
/// loopback device, and says so.
fn unmark() -> Vec<Rule> {
    let learn = verdict(Verdict::Jump(name(LEARN)));
    [learn].into_iter().chain(take_marks_off()).collect()
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

/// Masquerades what was asked for, packets that an endpoint sent to itself, and those whose source is an
/// address of Services, where no endpoint could send a reply.
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

fn refuse_node_ports(family: Family, config: &Config) -> Rule {
    let to_node = match config.node_ports.of(family) {
        // Input sees only what is for this node.
        None => not_loopback(family),
        Some(_) => to_node_port_address(family, config),
    };
    goto_member(family, SetName::NodePortRefusals, to_node, REFUSE_NODE_PORT)
}

fn to_node_port_address(family: Family, config: &Config) -> Vec<Expression> {
    match config.node_ports.of(family) {
        Some(_) => {
            let set = SetName::NodePortAddresses.as_str();
            member(family, Address::Destination, set)
        }
        None => [
            address_type_local(FibField::Destination),
            not_loopback(family),
        ]
        .concat(),
    }
}

/// Loads the key that a set of frontends is asked for.
fn load(family: Family, set: SetName) -> Vec<Expression> {
    let fields = set.fields().unwrap_or(FrontendFields::AddressAndPort);
    load_frontend(family, fields, Register(0)).0
}

/// Matches packets to frontends in `set`.
fn lookup(family: Family, set: SetName) -> Vec<Expression> {
    let mut expressions = load(family, set);
    expressions.push(Expression::Lookup {
        set: name(set.as_str()),
        from: Register(0),
    });
    expressions
}

/// On with `chain` for what is in `set`, if it is what `when` says.
fn goto_member(family: Family, set: SetName, mut when: Vec<Expression>, chain: &str) -> Rule {
    when.extend(lookup(family, set));
    when.extend(verdict(Verdict::Goto(name(chain))).expressions);
    rule(when)
}

/// Jumps to `chain` with what opens a connection.
fn new_jump(chain: &str) -> Rule {
    let mut rule = ct_new();
    rule.expressions
        .push(Expression::Immediate(Verdict::Jump(name(chain))));
    rule
}
