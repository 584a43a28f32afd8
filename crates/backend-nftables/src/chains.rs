//! The chains: fixed ones, and a pair for each number of endpoints in use.
//!
//! Hooks and priorities are kube-proxy's, and for its reasons: DNAT at -100 so that filtering sees
//! endpoints; refusals at filter priority 0, because rejecting before DNAT needs kernel 5.9.

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::{Config, Family, InterfaceMatch, LocalDetection, Masquerade, Scheduler};
use ipnet::IpNet;
use netlink::nf_tables::{
    ADDRESS_TYPE_LOCAL, Chain, ChainKind, CtKey, Expression, FibField, Hook, HookPoint, MetaKey,
    NatKind, NumberGenerator, Operator, PayloadBase, Register, RejectKind, Rule, Verdict,
};

use crate::layout::{self, Keyed, LOCAL_SLOTS, SetName, nft_family};
use crate::table::ChainWithRules;

/// `NF_IP_PRI_NAT_DST`.
const DSTNAT: i32 = -100;
/// `NF_IP_PRI_FILTER`.
const FILTER: i32 = 0;
/// `NF_IP_PRI_NAT_SRC`.
const SRCNAT: i32 = 100;
/// `NF_CT_STATE_BIT(IP_CT_NEW)`.
const CT_STATE_NEW: u32 = 8;
/// `IPS_DST_NAT`.
const CT_STATUS_DNAT: u32 = 1 << 5;

/// The chain that refuses. No name may be one of nft's own words, or nft could not read its own
/// listing.
pub(crate) const REFUSE: &str = "refuse";

/// A chain for one number of endpoints. Once made it stays until the table goes: kernels before 6.2
/// drop an element's hold on a chain late, and a transaction that removes a chain too early fails
/// whole. There are no more of them than there were different numbers of endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BalancingChain {
    pub(crate) keyed: Keyed,
    pub(crate) job: Job,
    pub(crate) count: u32,
}

/// What a balancing chain does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Job {
    /// Chooses one of all endpoints.
    Balance,
    /// Asks for masquerade unless a pod of this node sent the packet, then the same.
    Cluster,
    /// Asks for masquerade, then the same.
    External,
    /// Chooses one of the endpoints of this node.
    Local,
}

// === impl BalancingChain ===

impl BalancingChain {
    pub(crate) fn name(self) -> Arc<str> {
        let prefix = self.keyed.prefix();
        let job = match self.job {
            Job::Balance => "lb",
            Job::Cluster => "cluster",
            Job::External => "external",
            Job::Local => "local",
        };
        format!("{prefix}{job}-{}", self.count).into()
    }

    pub(crate) fn parse(name: &str) -> Option<BalancingChain> {
        let (keyed, rest) = match name.strip_prefix(Keyed::NodePort.prefix()) {
            Some(rest) => (Keyed::NodePort, rest),
            None => (Keyed::Address, name),
        };
        let (job, count) = rest.split_once('-')?;
        let job = match job {
            "lb" => Job::Balance,
            "cluster" => Job::Cluster,
            "external" => Job::External,
            "local" => Job::Local,
            _ => return None,
        };
        let count = count.parse().ok().filter(|count| *count > 0)?;
        let chain = BalancingChain { keyed, job, count };
        // `lb-07` would parse to a chain of another name.
        (*chain.name() == *name).then_some(chain)
    }

    /// The chains it leads to, itself included, those first that others lead to.
    pub(crate) fn closure(self) -> impl Iterator<Item = BalancingChain> {
        let through = matches!(self.job, Job::Cluster | Job::External);
        let needed = through.then(|| self.balance());
        needed.into_iter().chain([self])
    }

    pub(crate) fn render(self, family: Family, config: &Config) -> ChainWithRules {
        let balance = || verdict(Verdict::Goto(self.balance().name()));
        let rules = match self.job {
            Job::External => vec![mark(config), balance()],
            Job::Cluster => mark_cluster(family, config)
                .into_iter()
                .chain([balance()])
                .collect(),
            Job::Balance => self.choose(family, config, 0),
            Job::Local => self.choose(family, config, LOCAL_SLOTS),
        };
        ChainWithRules {
            chain: Chain {
                name: self.name(),
                hook: None,
            },
            rules,
        }
    }

    fn balance(self) -> BalancingChain {
        BalancingChain {
            job: Job::Balance,
            ..self
        }
    }

    /// One slot at random, and behind it the first slot. A commit that takes the last slot away can
    /// fall between a packet's lookup of this chain and its lookup of the slot: nf_tables asks for
    /// the current generation at each lookup, not once a packet. Such a packet gets the first
    /// endpoint, where otherwise it would leave for the cluster IP itself.
    fn choose(self, family: Family, config: &Config, offset: u32) -> Vec<Rule> {
        let generator = match config.scheduler {
            Scheduler::Random => NumberGenerator::Random,
            Scheduler::RoundRobin => NumberGenerator::Incremental,
        };
        let choice = |modulus, generator| {
            let (mut expressions, end) = load_frontend(family, self.keyed);
            expressions.extend([
                Expression::Numgen {
                    generator,
                    modulus,
                    offset,
                    to: end,
                },
                Expression::LookupValue {
                    set: layout::name(self.keyed.endpoints().as_str()),
                    from: Register(0),
                    to: Register(0),
                },
                Expression::Nat {
                    kind: NatKind::Destination,
                    family: nft_family(family),
                    address: Register(0),
                    port: after(Register(0), nft_family(family).address().width()),
                },
            ]);
            Rule { expressions }
        };
        let mut rules = vec![choice(self.count, generator)];
        if self.count > 1 {
            rules.push(choice(1, NumberGenerator::Random));
        }
        rules
    }
}

/// Every chain that is always there.
pub(crate) fn fixed(family: Family, config: &Config) -> Vec<ChainWithRules> {
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
            DSTNAT,
            vec![jump("dispatch")],
        ),
        base(
            "nat-output",
            ChainKind::Nat,
            HookPoint::Output,
            DSTNAT,
            vec![jump("dispatch")],
        ),
        base(
            "nat-postrouting",
            ChainKind::Nat,
            HookPoint::Postrouting,
            SRCNAT,
            vec![jump("masquerading")],
        ),
        base(
            "filter-input",
            ChainKind::Filter,
            HookPoint::Input,
            FILTER,
            vec![new("refuse-services"), new("refuse-nodeports")],
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
            "external-local",
            external_local(family, config, Keyed::Address),
        ),
        regular(
            "nodeport-external-local",
            external_local(family, config, Keyed::NodePort),
        ),
        regular("masquerading", masquerade(family, config)),
        regular(
            "refuse-services",
            vec![lookup_verdict(
                family,
                Keyed::Address,
                SetName::Refusals,
                Vec::new(),
            )],
        ),
        regular("refuse-nodeports", vec![refuse_nodeports(family, config)]),
        regular("refuse-cluster-ips", refuse_cluster_ips(family, config)),
        regular(
            REFUSE,
            vec![rule(vec![Expression::Reject(RejectKind::PortUnreachable)])],
        ),
    ]
}

/// Marks what reaches a cluster IP and is to be masqueraded, if anything is.
fn mark_cluster(family: Family, config: &Config) -> Option<Rule> {
    let mut expressions = match config.masquerade {
        Masquerade::All => Vec::new(),
        Masquerade::NonLocal => local_source(family, config, Operator::NotEqual)?,
    };
    expressions.extend(mark(config).expressions);
    Some(rule(expressions))
}

/// Finds the frontend.
fn dispatch(family: Family, config: &Config) -> Vec<Rule> {
    vec![
        lookup_verdict(family, Keyed::Address, SetName::Services, Vec::new()),
        lookup_verdict(
            family,
            Keyed::NodePort,
            SetName::NodePorts,
            to_node_port_address(family, config),
        ),
    ]
}

/// External policy Local. Pods of this node and this node itself are inside the cluster, and reach
/// every endpoint as they would by the cluster IP; everyone else reaches this node's endpoints only,
/// with his own address.
fn external_local(family: Family, config: &Config, keyed: Keyed) -> Vec<Rule> {
    let mut rules = Vec::new();
    if let Some(local) = local_source(family, config, Operator::Equal) {
        rules.push(lookup_verdict(family, keyed, keyed.short_circuits(), local));
    }
    let mut marked = address_type_local(FibField::Source);
    marked.extend(mark(config).expressions);
    rules.push(rule(marked));
    let from_here = address_type_local(FibField::Source);
    rules.push(lookup_verdict(
        family,
        keyed,
        keyed.short_circuits(),
        from_here,
    ));
    rules.push(lookup_verdict(family, keyed, keyed.locals(), Vec::new()));
    rules
}

/// Masquerades what was marked and takes the mark off: a tunnel sends the same packet through these
/// hooks once more, in its envelope. Then packets that an endpoint sent to itself.
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
    let width = nft_family(family).address().width();
    let destination = after(Register(0), width);
    let protocol = after(destination, width);
    let mut hairpin = vec![
        Expression::Ct {
            key: CtKey::Status,
            direction: None,
            to: Register(0),
        },
        Expression::Bitwise {
            from: Register(0),
            to: Register(0),
            mask: CT_STATUS_DNAT.to_ne_bytes().to_vec(),
            xor: vec![0; 4],
        },
        compare(Operator::NotEqual, &[0; 4]),
        load_address(family, Address::Source, Register(0)),
        load_address(family, Address::Destination, destination),
    ];
    hairpin.extend(load_protocol_and_port(protocol));
    hairpin.push(Expression::Lookup {
        set: layout::name(SetName::Hairpins.as_str()),
        from: Register(0),
    });
    hairpin.push(Expression::Masquerade);
    vec![marked, rule(hairpin)]
}

fn refuse_nodeports(family: Family, config: &Config) -> Rule {
    let to_node = match config.node_ports.of(family) {
        // Input sees only what is for this node.
        None => not_loopback(family),
        Some(_) => to_node_port_address(family, config),
    };
    lookup_verdict(family, Keyed::NodePort, SetName::NodePortRefusals, to_node)
}

/// What is still addressed to a cluster IP after DNAT has no frontend: a port the Service does not
/// have, or an address no Service has.
fn refuse_cluster_ips(family: Family, config: &Config) -> Vec<Rule> {
    let mut known = member(family, Address::Destination, SetName::ClusterIps);
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

#[derive(Debug, Clone, Copy)]
enum Address {
    Source,
    Destination,
}

fn family_of(range: &IpNet) -> Family {
    Family::of(range.addr())
}

fn base(
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
            name: layout::name(name),
            hook: Some(hook),
        },
        rules,
    }
}

fn regular(name: &str, rules: Vec<Rule>) -> ChainWithRules {
    ChainWithRules {
        chain: Chain {
            name: layout::name(name),
            hook: None,
        },
        rules,
    }
}

fn rule(expressions: Vec<Expression>) -> Rule {
    Rule { expressions }
}

fn verdict(verdict: Verdict) -> Rule {
    rule(vec![Expression::Immediate(verdict)])
}

fn compare(operator: Operator, value: &[u8]) -> Expression {
    Expression::Compare {
        from: Register(0),
        operator,
        value: value.to_vec(),
    }
}

/// The register behind a value of `width` bytes.
fn after(register: Register, width: usize) -> Register {
    Register(register.0 + u8::try_from(width / 4).expect("a value fits the registers"))
}

/// Offsets in `struct iphdr` and `struct ipv6hdr`.
fn load_address(family: Family, which: Address, to: Register) -> Expression {
    let (offset, length) = match (family, which) {
        (Family::Ipv4, Address::Source) => (12, 4),
        (Family::Ipv4, Address::Destination) => (16, 4),
        (Family::Ipv6, Address::Source) => (8, 16),
        (Family::Ipv6, Address::Destination) => (24, 16),
    };
    Expression::Payload {
        base: PayloadBase::Network,
        offset,
        length,
        to,
    }
}

fn load_protocol_and_port(to: Register) -> [Expression; 2] {
    [
        Expression::Meta {
            key: MetaKey::TransportProtocol,
            to,
        },
        Expression::Payload {
            base: PayloadBase::Transport,
            offset: 2,
            length: 2,
            to: after(to, 4),
        },
    ]
}

/// Loads a frontend's key from register 0 on; returns the register behind it.
fn load_frontend(family: Family, keyed: Keyed) -> (Vec<Expression>, Register) {
    let mut expressions = Vec::new();
    let mut next = Register(0);
    if keyed == Keyed::Address {
        expressions.push(load_address(family, Address::Destination, next));
        next = after(next, nft_family(family).address().width());
    }
    expressions.extend(load_protocol_and_port(next));
    (expressions, after(next, 8))
}

fn lookup_verdict(family: Family, keyed: Keyed, set: SetName, mut when: Vec<Expression>) -> Rule {
    when.extend(load_frontend(family, keyed).0);
    when.push(Expression::LookupVerdict {
        set: layout::name(set.as_str()),
        from: Register(0),
    });
    rule(when)
}

fn member(family: Family, which: Address, set: SetName) -> Vec<Expression> {
    vec![
        load_address(family, which, Register(0)),
        Expression::Lookup {
            set: layout::name(set.as_str()),
            from: Register(0),
        },
    ]
}

fn in_range(which: Address, range: &IpNet, operator: Operator) -> Vec<Expression> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let network = octets(range.network());
    let mut expressions = vec![load_address(family_of(range), which, Register(0))];
    // nft leaves the mask out where it would mask nothing, and so a listing is shorter.
    if range.prefix_len() < range.max_prefix_len() {
        expressions.push(Expression::Bitwise {
            from: Register(0),
            to: Register(0),
            mask: octets(range.netmask()),
            xor: vec![0; network.len()],
        });
    }
    expressions.push(compare(operator, &network));
    expressions
}

/// Matches packets from pods of this node, or all others; `None` where they cannot be told.
fn local_source(family: Family, config: &Config, operator: Operator) -> Option<Vec<Expression>> {
    match &config.local_detection {
        LocalDetection::None => None,
        LocalDetection::Source { .. } => {
            let range = config.local_detection.source(family)?;
            Some(in_range(Address::Source, &range, operator))
        }
        LocalDetection::Interface(interface) => {
            let value = match interface {
                // Without its terminating zero, a name is compared as a prefix.
                InterfaceMatch::Prefix(prefix) => prefix.as_bytes().to_vec(),
                InterfaceMatch::Named(name) => {
                    let mut value = name.as_bytes().to_vec();
                    value.resize(16, 0);
                    value
                }
            };
            Some(vec![
                Expression::Meta {
                    key: MetaKey::InputInterfaceName,
                    to: Register(0),
                },
                compare(operator, &value),
            ])
        }
    }
}

fn to_node_port_address(family: Family, config: &Config) -> Vec<Expression> {
    match config.node_ports.of(family) {
        Some(_) => member(family, Address::Destination, SetName::NodePortAddresses),
        None => {
            let mut expressions = address_type_local(FibField::Destination);
            expressions.extend(not_loopback(family));
            expressions
        }
    }
}

fn not_loopback(family: Family) -> Vec<Expression> {
    let loopback: IpNet = match family {
        Family::Ipv4 => IpNet::new_assert(IpAddr::from([127, 0, 0, 0]), 8),
        Family::Ipv6 => IpNet::new_assert(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]), 128),
    };
    in_range(Address::Destination, &loopback, Operator::NotEqual)
}

fn address_type_local(field: FibField) -> Vec<Expression> {
    vec![
        Expression::FibType {
            field,
            to: Register(0),
        },
        compare(Operator::Equal, &ADDRESS_TYPE_LOCAL.to_ne_bytes()),
    ]
}

fn ct_new() -> Rule {
    rule(vec![
        Expression::Ct {
            key: CtKey::State,
            direction: None,
            to: Register(0),
        },
        Expression::Bitwise {
            from: Register(0),
            to: Register(0),
            mask: CT_STATE_NEW.to_ne_bytes().to_vec(),
            xor: vec![0; 4],
        },
        compare(Operator::NotEqual, &[0; 4]),
    ])
}

/// `meta mark set meta mark | bit`.
fn mark(config: &Config) -> Rule {
    let bit = config.mark.value();
    rule(vec![
        Expression::Meta {
            key: MetaKey::Mark,
            to: Register(0),
        },
        Expression::Bitwise {
            from: Register(0),
            to: Register(0),
            mask: (!bit).to_ne_bytes().to_vec(),
            xor: bit.to_ne_bytes().to_vec(),
        },
        Expression::SetMeta {
            key: MetaKey::Mark,
            from: Register(0),
        },
    ])
}
