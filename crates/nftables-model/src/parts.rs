//! The expressions that rules are composed of.

use std::net::IpAddr;

use dataplane::{Config, Family, InterfaceMatch, LocalDetection};
use ipnet::IpNet;
use netlink::nf_tables::{
    ADDRESS_TYPE_LOCAL, CtKey, DataType, Expression, FibField, MetaKey, Operator, PayloadBase,
    Register, Rule, Verdict,
};

use crate::key::{FrontendFields, name};

/// `NF_CT_STATE_BIT(IP_CT_NEW)`.
const CT_STATE_NEW: u32 = 8;
/// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED)`.
const CT_STATE_ESTABLISHED: u32 = 2;
/// `IPS_DST_NAT`.
const CT_STATUS_DNAT: u32 = 1 << 5;
/// `IPS_CONFIRMED`.
const CT_STATUS_CONFIRMED: u32 = 1 << 3;

/// An address of a packet.
#[derive(Debug, Clone, Copy)]
pub enum Address {
    /// The source address.
    Source,
    /// The destination address.
    Destination,
}

/// The family of a range.
pub fn family_of(range: &IpNet) -> Family {
    Family::of(range.addr())
}

/// A rule of these expressions.
pub fn rule(expressions: Vec<Expression>) -> Rule {
    Rule {
        expressions,
        comment: None,
    }
}

/// A rule that applies `verdict`.
pub fn verdict(verdict: Verdict) -> Rule {
    rule(vec![Expression::Immediate(verdict)])
}

/// The same rule with a counter before its last expression: it counts the packets that match all
/// others. [`PacketCounters`](crate::PacketCounters) reads it.
pub fn counted(mut rule: Rule) -> Rule {
    let last = rule.expressions.len().saturating_sub(1);
    rule.expressions.insert(last, Expression::Counter);
    rule
}

/// Matches if comparing register 0 with `value` succeeds.
pub fn compare(operator: Operator, value: &[u8]) -> Expression {
    Expression::Compare {
        from: Register(0),
        operator,
        value: value.to_vec(),
    }
}

/// Matches packets whose mark has these bits under `mask`.
pub fn marked(bits: u32, mask: u32) -> Vec<Expression> {
    vec![
        load_mark(),
        Expression::Bitwise {
            from: Register(0),
            to: Register(0),
            mask: mask.to_ne_bytes().to_vec(),
            xor: vec![0; 4],
        },
        compare(Operator::Equal, &bits.to_ne_bytes()),
    ]
}

/// Loads the packet's mark.
pub fn load_mark() -> Expression {
    Expression::Meta {
        key: MetaKey::Mark,
        to: Register(0),
    }
}

/// The register behind a value of `width` bytes.
pub fn after(register: Register, width: usize) -> Register {
    Register(register.0 + u8::try_from(width / 4).expect("a value fits the registers"))
}

/// Loads an address, at its offset in `struct iphdr` or `struct ipv6hdr`.
pub fn load_address(family: Family, which: Address, to: Register) -> Expression {
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

/// Loads the protocol and, behind it, the destination port.
pub fn load_protocol_and_port(to: Register) -> [Expression; 2] {
    [
        Expression::Meta {
            key: MetaKey::TransportProtocol,
            to,
        },
        load_port(after(to, 4)),
    ]
}

/// Loads the destination port, whose offset is the same in TCP, UDP and SCTP.
pub fn load_port(to: Register) -> Expression {
    Expression::Payload {
        base: PayloadBase::Transport,
        offset: 2,
        length: 2,
        to,
    }
}

/// Matches packets with an address in `range`, or outside it.
pub fn in_range(which: Address, range: &IpNet, operator: Operator) -> Vec<Expression> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let mut expressions = load_prefix(family_of(range), which, range.prefix_len(), Register(0));
    expressions.push(compare(operator, &octets(range.network())));
    expressions
}

/// Loads the first `bits` bits of an address and clears the others.
pub fn load_prefix(family: Family, which: Address, bits: u8, to: Register) -> Vec<Expression> {
    let width = DataType::address(family).width();
    let mask: Vec<u8> = (0..width)
        .map(|byte| {
            let ones = usize::from(bits).saturating_sub(byte * 8).min(8);
            u8::try_from(0xff00_u16 >> ones & 0xff).unwrap_or(0)
        })
        .collect();
    let mut expressions = vec![load_address(family, which, to)];
    // nft omits a mask that clears nothing, which makes listings shorter.
    if mask.iter().any(|byte| *byte != 0xff) {
        expressions.push(Expression::Bitwise {
            from: to,
            to,
            mask,
            xor: vec![0; width],
        });
    }
    expressions
}

/// Matches packets from pods of this node, or all other packets; `None` if they cannot be
/// distinguished.
pub fn local_source(
    family: Family,
    config: &Config,
    operator: Operator,
) -> Option<Vec<Expression>> {
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

/// Matches packets to other than loopback addresses.
pub(crate) fn not_loopback(family: Family) -> Vec<Expression> {
    let loopback: IpNet = match family {
        Family::Ipv4 => IpNet::new_assert(IpAddr::from([127, 0, 0, 0]), 8),
        Family::Ipv6 => IpNet::new_assert(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]), 128),
    };
    in_range(Address::Destination, &loopback, Operator::NotEqual)
}

/// Matches packets whose source or destination is an address of the node.
pub fn address_type_local(field: FibField) -> Vec<Expression> {
    vec![
        Expression::FibType {
            field,
            to: Register(0),
        },
        compare(Operator::Equal, &ADDRESS_TYPE_LOCAL.to_ne_bytes()),
    ]
}

/// Matches packets of connections without any packet in reply yet.
pub fn ct_new() -> Rule {
    rule(ct_bit(CtKey::State, CT_STATE_NEW))
}

/// Matches packets of connections that have had a packet in reply.
pub fn ct_established() -> Vec<Expression> {
    ct_bit(CtKey::State, CT_STATE_ESTABLISHED)
}

/// Matches packets of connections whose destination was rewritten.
pub fn ct_dnat() -> Vec<Expression> {
    ct_bit(CtKey::Status, CT_STATUS_DNAT)
}

/// Matches packets of connections of which an earlier packet has passed all hooks.
pub(crate) fn ct_confirmed() -> Vec<Expression> {
    ct_bit(CtKey::Status, CT_STATUS_CONFIRMED)
}

fn ct_bit(key: CtKey, bit: u32) -> Vec<Expression> {
    vec![
        Expression::Ct {
            key,
            direction: None,
            to: Register(0),
        },
        Expression::Bitwise {
            from: Register(0),
            to: Register(0),
            mask: bit.to_ne_bytes().to_vec(),
            xor: vec![0; 4],
        },
        compare(Operator::NotEqual, &[0; 4]),
    ]
}

/// Sets the mark bit: `meta mark set meta mark | bit`.
pub fn mark(config: &Config) -> Rule {
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

/// Loads a frontend's key from register `start` on; returns the register behind it.
pub fn load_frontend(
    family: Family,
    fields: FrontendFields,
    start: Register,
) -> (Vec<Expression>, Register) {
    let mut expressions = Vec::new();
    let mut next = start;
    if fields == FrontendFields::AddressAndPort {
        expressions.push(load_address(family, Address::Destination, next));
        next = after(next, DataType::address(family).width());
    }
    expressions.extend(load_protocol_and_port(next));
    (expressions, after(next, 8))
}

/// Matches packets whose source or destination is in `set`.
pub fn member(family: Family, which: Address, set: &str) -> Vec<Expression> {
    vec![
        load_address(family, which, Register(0)),
        Expression::Lookup {
            set: name(set),
            from: Register(0),
        },
    ]
}

/// Matches packets to frontends in `set`, whose keys have these `fields`.
pub fn lookup_frontend(family: Family, fields: FrontendFields, set: &str) -> Vec<Expression> {
    let (mut expressions, _) = load_frontend(family, fields, Register(0));
    expressions.push(Expression::Lookup {
        set: name(set),
        from: Register(0),
    });
    expressions
}

/// Matches packets to the node's addresses that accept node ports: those in the set
/// `nodeport-addresses`, unless all of them do.
pub fn to_node_port_address(family: Family, config: &Config) -> Vec<Expression> {
    match config.node_ports.of(family) {
        Some(_) => member(family, Address::Destination, "nodeport-addresses"),
        None => [
            address_type_local(FibField::Destination),
            not_loopback(family),
        ]
        .concat(),
    }
}
