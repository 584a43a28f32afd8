//! Encodes rules as attributes.

use crate::nf_tables::{
    CtKey, Direction, Expression, Family, FibField, MapUpdate, MetaKey, NatKind, NumberGenerator,
    Operator, PayloadBase, Register, RejectKind, Rule, SettableCtKey, Verdict,
};
use crate::wire::Writer;

/// `NFTA_DATA_VERDICT` of `enum nft_data_attributes`.
pub(super) fn add_verdict(writer: &mut Writer, verdict: &Verdict) {
    let (code, chain): (i32, Option<&str>) = match verdict {
        Verdict::Drop => (0, None),
        Verdict::Accept => (1, None),
        Verdict::Jump(chain) => (-3, Some(chain)),
        Verdict::Goto(chain) => (-4, Some(chain)),
        Verdict::Return => (-5, None),
    };
    let open = writer.nest(2);
    writer.bytes(1, &code.to_be_bytes());
    if let Some(chain) = chain {
        writer.string(2, chain);
    }
    writer.close(open);
}

/// `NFTNL_UDATA_RULE_COMMENT` of libnftnl's include/libnftnl/udata.h.
pub(crate) const RULE_COMMENT: u8 = 0;

pub(super) fn add_rule(writer: &mut Writer, family: Family, rule: &Rule) {
    let list = writer.nest(4);
    for expression in &rule.expressions {
        let element = writer.nest(1);
        writer.string(1, expression.name());
        let open = writer.nest(2);
        add_expression(writer, family, expression);
        writer.close(open);
        writer.close(element);
    }
    writer.close(list);
    if rule.expressions.iter().any(is_module) {
        // NFTA_RULE_COMPAT_PROTO and NFTA_RULE_COMPAT_FLAGS.
        let compat = writer.nest(5);
        writer.u32(1, u32::from(protocol_asked(&rule.expressions)));
        writer.u32(2, 0);
        writer.close(compat);
    }
    if let Some(comment) = &rule.comment {
        let length = u8::try_from(comment.len() + 1).expect("comments are short");
        let note = [&[RULE_COMMENT, length], comment.as_bytes(), &[0]].concat();
        writer.bytes(7, &note);
    }
}

fn is_module(expression: &Expression) -> bool {
    matches!(expression, Expression::Match(_) | Expression::Target(_))
}

/// The transport protocol of all packets that match these expressions; 0 for any. Extensions for
/// one protocol refuse a rule for another.
fn protocol_asked(expressions: &[Expression]) -> u8 {
    let asked = expressions.windows(2).find_map(|pair| match pair {
        [
            Expression::Meta {
                key: MetaKey::TransportProtocol,
                to,
            },
            Expression::Compare {
                from,
                operator: Operator::Equal,
                value,
            },
        ] if to == from => value.first().copied(),
        _ => None,
    });
    asked.unwrap_or(0)
}

/// `NFT_REG32_00`.
fn register(register: Register) -> u32 {
    8 + u32::from(register.0)
}

impl Expression {
    /// The kernel's name of the expression.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Expression::Payload { .. } | Expression::SetPayload { .. } => "payload",
            Expression::Meta { .. } | Expression::SetMeta { .. } => "meta",
            Expression::Ct { .. } | Expression::SetCt { .. } => "ct",
            Expression::Compare { .. } => "cmp",
            Expression::Range { .. } => "range",
            Expression::Bitwise { .. } => "bitwise",
            Expression::Lookup { .. }
            | Expression::LookupValue { .. }
            | Expression::LookupVerdict { .. } => "lookup",
            Expression::Immediate(_) | Expression::Load { .. } => "immediate",
            Expression::Numgen { .. } => "numgen",
            Expression::Hash { .. } => "hash",
            Expression::Learn { .. } => "dynset",
            Expression::FibType { .. } => "fib",
            Expression::Nat { .. } => "nat",
            Expression::Masquerade => "masq",
            Expression::Reject(_) => "reject",
            Expression::Offload { .. } => "flow_offload",
            Expression::Counter => "counter",
            Expression::Match(_) => "match",
            Expression::Target(_) => "target",
        }
    }
}

fn add_expression(writer: &mut Writer, family: Family, expression: &Expression) {
    match expression {
        Expression::Payload {
            base,
            offset,
            length,
            to,
        } => {
            writer.u32(1, register(*to));
            writer.u32(2, base_number(*base));
            writer.u32(3, *offset);
            writer.u32(4, *length);
        }
        Expression::SetPayload {
            base,
            offset,
            length,
            from,
        } => {
            writer.u32(2, base_number(*base));
            writer.u32(3, *offset);
            writer.u32(4, *length);
            writer.u32(5, register(*from));
            for (kind, value) in (6..).zip(checksums(family, *base)) {
                writer.u32(kind, value);
            }
        }
        Expression::Meta { key, to } => {
            writer.u32(1, register(*to));
            writer.u32(2, meta_number(*key));
        }
        Expression::SetMeta { key, from } => {
            writer.u32(2, meta_number(*key));
            writer.u32(3, register(*from));
        }
        Expression::Ct { key, direction, to } => {
            writer.u32(1, register(*to));
            writer.u32(2, ct_number(*key));
            if let Some(direction) = direction {
                writer.u8(
                    3,
                    match direction {
                        Direction::Original => 0,
                        Direction::Reply => 1,
                    },
                );
            }
        }
        Expression::SetCt { key, from } => {
            writer.u32(2, settable_ct_number(*key));
            writer.u32(4, register(*from));
        }
        Expression::Load { value, to } => {
            writer.u32(1, register(*to));
            data(writer, 2, value);
        }
        Expression::Compare {
            from,
            operator,
            value,
        } => {
            writer.u32(1, register(*from));
            writer.u32(2, operator_number(*operator));
            data(writer, 3, value);
        }
        Expression::Range {
            from,
            operator,
            first,
            last,
        } => {
            writer.u32(1, register(*from));
            writer.u32(2, operator_number(*operator));
            data(writer, 3, first);
            data(writer, 4, last);
        }
        Expression::Bitwise {
            from,
            to,
            mask,
            xor,
        } => {
            writer.u32(1, register(*from));
            writer.u32(2, register(*to));
            writer.u32(
                3,
                u32::try_from(mask.len()).expect("a mask fits the registers"),
            );
            data(writer, 4, mask);
            data(writer, 5, xor);
        }
        Expression::Lookup { set, from } => {
            writer.string(1, set);
            writer.u32(2, register(*from));
        }
        Expression::LookupValue { set, from, to } => {
            writer.string(1, set);
            writer.u32(2, register(*from));
            writer.u32(3, register(*to));
        }
        Expression::LookupVerdict { set, from } => {
            writer.string(1, set);
            writer.u32(2, register(*from));
            // NFT_REG_VERDICT.
            writer.u32(3, 0);
        }
        Expression::Immediate(verdict) => {
            writer.u32(1, 0);
            let open = writer.nest(2);
            add_verdict(writer, verdict);
            writer.close(open);
        }
        Expression::Numgen {
            generator,
            modulus,
            offset,
            to,
        } => {
            writer.u32(1, register(*to));
            writer.u32(2, *modulus);
            writer.u32(
                3,
                match generator {
                    NumberGenerator::Incremental => 0,
                    NumberGenerator::Random => 1,
                },
            );
            writer.u32(4, *offset);
        }
        Expression::Hash {
            from,
            length,
            modulus,
            seed,
            offset,
            to,
        } => {
            writer.u32(1, register(*from));
            writer.u32(2, register(*to));
            writer.u32(3, *length);
            writer.u32(4, *modulus);
            writer.u32(5, *seed);
            writer.u32(6, *offset);
            // NFT_HASH_JENKINS.
            writer.u32(7, 0);
        }
        Expression::Learn {
            set,
            how,
            key,
            value,
        } => {
            writer.string(1, set);
            writer.u32(3, learning_number(*how));
            writer.u32(4, register(*key));
            writer.u32(5, register(*value));
            if let MapUpdate::Update { timeout } = how {
                let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
                writer.bytes(6, &milliseconds.to_be_bytes());
            }
        }
        Expression::FibType { field, to } => {
            writer.u32(1, register(*to));
            // NFT_FIB_RESULT_ADDRTYPE.
            writer.u32(2, 3);
            writer.u32(
                3,
                match field {
                    FibField::Source => 1,
                    FibField::Destination => 2,
                },
            );
        }
        Expression::Nat {
            kind: NatKind::Destination,
            family: of,
            address,
            port,
        } => {
            writer.u32(1, 1);
            writer.u32(2, u32::from(of.number()));
            writer.u32(3, register(*address));
            writer.u32(5, register(*port));
        }
        // NF_NAT_RANGE_PROTO_RANDOM_FULLY: sequential ports collide between CPUs.
        Expression::Masquerade => writer.u32(1, 0x10),
        Expression::Reject(RejectKind::PortUnreachable) => {
            // NFT_REJECT_ICMP_UNREACH with ICMP_PORT_UNREACH or ICMPV6_PORT_UNREACH.
            writer.u32(1, 0);
            writer.u8(2, port_unreachable(family));
        }
        // NFT_REJECT_TCP_RST.
        Expression::Reject(RejectKind::TcpReset) => writer.u32(1, 1),
        // NFTA_FLOW_TABLE_NAME.
        Expression::Offload { flowtable } => writer.string(1, flowtable),
        // Without numbers the counter begins at zero.
        Expression::Counter => {}
        Expression::Match(module) | Expression::Target(module) => {
            writer.string(1, &module.name);
            writer.u32(2, u32::from(module.revision));
            writer.bytes(3, &module.payload);
        }
    }
}

fn data(writer: &mut Writer, kind: u16, value: &[u8]) {
    let open = writer.nest(kind);
    writer.bytes(1, value);
    writer.close(open);
}

/// The checksums to update when bytes of this header are written: `NFTA_PAYLOAD_CSUM_TYPE`,
/// `_CSUM_OFFSET` and `_CSUM_FLAGS`. That of IPv4 is `check` of `struct iphdr`. With
/// `NFT_PAYLOAD_L4CSUM_PSEUDOHDR` the kernel adds the difference to the checksum of TCP or UDP,
/// unless a datagram has none, whether the bytes are of the pseudo header or of the header itself
/// (`nft_payload_l4csum_update`).
pub(crate) fn checksums(family: Family, base: PayloadBase) -> [u32; 3] {
    match (family, base) {
        (Family::Ipv4, PayloadBase::Network) => [1, 10, 1],
        _ => [0, 0, 1],
    }
}

/// `enum nft_payload_bases`.
fn base_number(base: PayloadBase) -> u32 {
    match base {
        PayloadBase::Network => 1,
        PayloadBase::Transport => 2,
    }
}

/// The code of "port unreachable" in ICMP and ICMPv6.
pub(crate) fn port_unreachable(family: Family) -> u8 {
    match family {
        Family::Ipv4 => 3,
        Family::Ipv6 => 4,
    }
}

/// `enum nft_cmp_ops`, and `enum nft_range_ops`.
fn operator_number(operator: Operator) -> u32 {
    match operator {
        Operator::Equal => 0,
        Operator::NotEqual => 1,
    }
}

/// `enum nft_meta_keys`.
pub(crate) fn meta_number(key: MetaKey) -> u32 {
    match key {
        MetaKey::Mark => 3,
        MetaKey::InputInterfaceName => 6,
        MetaKey::TransportProtocol => 16,
    }
}

/// `enum nft_ct_keys`.
pub(crate) fn ct_number(key: CtKey) -> u32 {
    match key {
        CtKey::State => 0,
        CtKey::Direction => 1,
        CtKey::Status => 2,
        CtKey::DestinationPort => 12,
        CtKey::Labels => 13,
        CtKey::Ipv4Source => 19,
        CtKey::Ipv4Destination => 20,
        CtKey::Ipv6Source => 21,
        CtKey::Ipv6Destination => 22,
    }
}

/// The values of `enum nft_ct_keys` that can be set.
pub(crate) fn settable_ct_number(key: SettableCtKey) -> u32 {
    match key {
        SettableCtKey::Labels => 13,
    }
}

/// `enum nft_dynset_ops`.
pub(crate) fn learning_number(how: MapUpdate) -> u32 {
    match how {
        MapUpdate::Update { .. } => 1,
        MapUpdate::Delete => 2,
    }
}
