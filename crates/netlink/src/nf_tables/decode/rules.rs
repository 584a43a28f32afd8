//! Decodes attributes to rules.

use std::sync::Arc;
use std::time::Duration;

use super::{Result, decode_verdict, missing, unknown};
use crate::nf_tables::encode::{
    RULE_COMMENT, checksums, ct_number, meta_number, port_unreachable, settable_ct_number,
};
use crate::nf_tables::{
    CtKey, Direction, Expression, Family, FibField, MapUpdate, MetaKey, Module, NatKind,
    NumberGenerator, Operator, PayloadBase, Register, RejectKind, Rule, SettableCtKey,
};
use crate::wire::Attributes;

/// Decodes the rule with these attributes.
pub(crate) fn rule_of(attributes: &Attributes<'_>, family: Family) -> Result<Rule> {
    let expressions: Result<_> = attributes
        .nested(4)
        .into_iter()
        .flatten()
        .map(|(_, element)| expression(&Attributes::parse(element), family))
        .collect();
    expressions.map(|expressions| Rule {
        expressions,
        comment: attributes.get(7).and_then(comment),
    })
}

/// Finds the comment in a rule's user data: type, length and value, where the value ends with a
/// zero.
fn comment(mut notes: &[u8]) -> Option<Arc<str>> {
    while let &[kind, length, ref rest @ ..] = notes {
        let (value, rest) = rest.split_at_checked(usize::from(length))?;
        if kind == RULE_COMMENT {
            let text = std::str::from_utf8(value.strip_suffix(&[0])?).ok()?;
            return Some(text.into());
        }
        notes = rest;
    }
    None
}

/// Decodes a register. The kernel reports `NFT_REG_1` to `NFT_REG_4` if a value begins at a
/// multiple of 16 bytes, and `NFT_REG32_*` otherwise; both denote the same registers.
fn register(attributes: &Attributes<'_>, kind: u16) -> Result<Register> {
    let number = attributes
        .u32(kind)
        .ok_or(missing("expression", "register"))?;
    let index = match number {
        1..=4 => (number - 1) * 4,
        8..=23 => number - 8,
        _ => return Err(unknown("expression", "register")),
    };
    u8::try_from(index)
        .map(Register)
        .map_err(|_| unknown("expression", "register"))
}

fn value(attributes: &Attributes<'_>, kind: u16) -> Result<Vec<u8>> {
    attributes
        .nested(kind)
        .and_then(|data| data.get(1))
        .map(<[u8]>::to_vec)
        .ok_or(missing("expression", "value"))
}

const CT_KEYS: [CtKey; 9] = [
    CtKey::State,
    CtKey::Status,
    CtKey::Ipv4Source,
    CtKey::Ipv4Destination,
    CtKey::Ipv6Source,
    CtKey::Ipv6Destination,
    CtKey::DestinationPort,
    CtKey::Direction,
    CtKey::Labels,
];

fn expression(element: &Attributes<'_>, family: Family) -> Result<Expression> {
    let name = element.string(1).ok_or(missing("expression", "name"))?;
    let data = element.nested(2).unwrap_or_else(|| Attributes::parse(&[]));
    let number = |kind| data.u32(kind).ok_or(missing("expression", "number"));
    match name {
        "payload" => {
            let base = match number(2)? {
                1 => PayloadBase::Network,
                2 => PayloadBase::Transport,
                _ => return Err(unknown("payload", "base")),
            };
            let (offset, length) = (number(3)?, number(4)?);
            // What is absent is 0.
            let checksum = [6, 7, 8].map(|kind| data.u32(kind).unwrap_or_default());
            match data.get(5) {
                Some(_) if checksum == checksums(family, base) => Ok(Expression::SetPayload {
                    base,
                    offset,
                    length,
                    from: register(&data, 5)?,
                }),
                Some(_) => Err(unknown("payload", "checksum")),
                None => Ok(Expression::Payload {
                    base,
                    offset,
                    length,
                    to: register(&data, 1)?,
                }),
            }
        }
        "meta" => {
            let code = number(2)?;
            let key = [
                MetaKey::Mark,
                MetaKey::InputInterfaceName,
                MetaKey::TransportProtocol,
            ]
            .into_iter()
            .find(|key| meta_number(*key) == code)
            .ok_or(unknown("meta", "key"))?;
            match data.get(3) {
                Some(_) => Ok(Expression::SetMeta {
                    key,
                    from: register(&data, 3)?,
                }),
                None => Ok(Expression::Meta {
                    key,
                    to: register(&data, 1)?,
                }),
            }
        }
        "ct" => {
            let code = number(2)?;
            if data.get(4).is_some() {
                let labels = SettableCtKey::Labels;
                return match code == settable_ct_number(labels) {
                    true => Ok(Expression::SetCt {
                        key: labels,
                        from: register(&data, 4)?,
                    }),
                    false => Err(unknown("ct", "key to set")),
                };
            }
            Ok(Expression::Ct {
                key: CT_KEYS
                    .into_iter()
                    .find(|key| ct_number(*key) == code)
                    .ok_or(unknown("ct", "key"))?,
                direction: match data.u8(3) {
                    None => None,
                    Some(0) => Some(Direction::Original),
                    Some(_) => Some(Direction::Reply),
                },
                to: register(&data, 1)?,
            })
        }
        "cmp" => Ok(Expression::Compare {
            from: register(&data, 1)?,
            operator: operator(number(2)?).ok_or(unknown("cmp", "operator"))?,
            value: value(&data, 3)?,
        }),
        "range" => Ok(Expression::Range {
            from: register(&data, 1)?,
            operator: operator(number(2)?).ok_or(unknown("range", "operator"))?,
            first: value(&data, 3)?,
            last: value(&data, 4)?,
        }),
        "bitwise" => Ok(Expression::Bitwise {
            from: register(&data, 1)?,
            to: register(&data, 2)?,
            mask: value(&data, 4)?,
            xor: value(&data, 5)?,
        }),
        "lookup" => lookup(&data),
        "immediate" if data.nested(2).is_some_and(|data| data.get(1).is_some()) => {
            Ok(Expression::Load {
                value: value(&data, 2)?,
                to: register(&data, 1)?,
            })
        }
        "immediate" => {
            let verdict = data.nested(2).and_then(|data| data.nested(2));
            let verdict = verdict.ok_or(unknown("immediate", "data"))?;
            decode_verdict(&verdict).map(Expression::Immediate)
        }
        "numgen" => Ok(Expression::Numgen {
            generator: match number(3)? {
                0 => NumberGenerator::Incremental,
                1 => NumberGenerator::Random,
                _ => return Err(unknown("numgen", "type")),
            },
            modulus: number(2)?,
            offset: data.u32(4).unwrap_or(0),
            to: register(&data, 1)?,
        }),
        "hash" => match number(7)? {
            0 => Ok(Expression::Hash {
                from: register(&data, 1)?,
                length: number(3)?,
                modulus: number(4)?,
                seed: data.u32(5).unwrap_or(0),
                offset: data.u32(6).unwrap_or(0),
                to: register(&data, 2)?,
            }),
            _ => Err(unknown("hash", "type")),
        },
        "dynset" => learn(&data),
        "fib" => match (number(2)?, number(3)?) {
            (3, flags @ (1 | 2)) => Ok(Expression::FibType {
                field: if flags == 1 {
                    FibField::Source
                } else {
                    FibField::Destination
                },
                to: register(&data, 1)?,
            }),
            _ => Err(unknown("fib", "result")),
        },
        "nat" => match number(1)? {
            1 => Ok(Expression::Nat {
                kind: NatKind::Destination,
                family: [Family::Ipv4, Family::Ipv6]
                    .into_iter()
                    .find(|f| data.u32(2) == Some(u32::from(f.number())))
                    .ok_or(unknown("nat", "family"))?,
                address: register(&data, 3)?,
                port: register(&data, 5)?,
            }),
            _ => Err(unknown("nat", "type")),
        },
        "masq" => match data.u32(1) {
            Some(0x10) => Ok(Expression::Masquerade),
            _ => Err(unknown("masq", "flags")),
        },
        "reject" => match (number(1)?, data.u8(2)) {
            (0, Some(code)) if code == port_unreachable(family) => {
                Ok(Expression::Reject(RejectKind::PortUnreachable))
            }
            (1, _) => Ok(Expression::Reject(RejectKind::TcpReset)),
            _ => Err(unknown("reject", "type")),
        },
        "flow_offload" => {
            let flowtable = data.string(1).ok_or(missing("flow_offload", "flowtable"))?;
            Ok(Expression::Offload {
                flowtable: flowtable.into(),
            })
        }
        "counter" => Ok(Expression::Counter),
        "match" => module(&data).map(Expression::Match),
        "target" => module(&data).map(Expression::Target),
        _ => Err(unknown("rule", "expression")),
    }
}

/// `enum nft_cmp_ops`, and all values of `enum nft_range_ops`.
fn operator(number: u32) -> Option<Operator> {
    match number {
        0 => Some(Operator::Equal),
        1 => Some(Operator::NotEqual),
        _ => None,
    }
}

/// `enum nft_match_attributes`, and `enum nft_target_attributes`, which has the same numbers.
fn module(data: &Attributes<'_>) -> Result<Module> {
    let revision = data.u32(2).ok_or(missing("module", "revision"))?;
    Ok(Module {
        name: data.string(1).ok_or(missing("module", "name"))?.into(),
        revision: u8::try_from(revision).map_err(|_| unknown("module", "revision"))?,
        payload: data.get(3).ok_or(missing("module", "payload"))?.to_vec(),
    })
}

fn learn(data: &Attributes<'_>) -> Result<Expression> {
    let set = data.string(1).ok_or(missing("dynset", "set"))?.into();
    let timeout = || {
        let bytes = data.get(6).and_then(|bytes| bytes.try_into().ok());
        let milliseconds = bytes.map(u64::from_be_bytes);
        milliseconds.ok_or(missing("dynset", "timeout"))
    };
    let how = match data.u32(3) {
        Some(1) => MapUpdate::Update {
            timeout: Duration::from_millis(timeout()?),
        },
        Some(2) => MapUpdate::Delete,
        _ => return Err(unknown("dynset", "operation")),
    };
    Ok(Expression::Learn {
        set,
        how,
        key: register(data, 4)?,
        value: register(data, 5)?,
    })
}

fn lookup(data: &Attributes<'_>) -> Result<Expression> {
    let set = data.string(1).ok_or(missing("lookup", "set"))?.into();
    let from = register(data, 2)?;
    // NFT_LOOKUP_F_INV.
    if data.u32(5).unwrap_or(0) != 0 {
        return Err(unknown("lookup", "flags"));
    }
    Ok(match data.u32(3) {
        None => Expression::Lookup { set, from },
        Some(0) => Expression::LookupVerdict { set, from },
        Some(_) => Expression::LookupValue {
            set,
            from,
            to: register(data, 3)?,
        },
    })
}
