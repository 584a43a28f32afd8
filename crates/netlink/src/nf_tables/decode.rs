//! Messages to values. What other programs may have put into our table decodes to an error that
//! says what was found, never to something else.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::encode::RULE_COMMENT;
use super::encode::{ct_number, hook_number, meta_number, port_unreachable, set_flags};
use super::{
    Bytes, Chain, ChainKind, CtKey, DataType, Direction, ElementData, Expression, Family, FibField,
    Hook, HookPoint, Learning, MetaKey, NatKind, NumberGenerator, Operator, PayloadBase, Register,
    RejectKind, Rule, Set, SetContent, SetWriter, Verdict,
};
use crate::wire::{Attributes, Message};

/// Something in the kernel that this crate has no value for: not of our making.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// A part that every such object has is not there.
    #[error("{object} without {part}")]
    Missing {
        /// What was being decoded.
        object: &'static str,
        /// What it lacks.
        part: &'static str,
    },
    /// A part has a value we never write.
    #[error("{object} with unknown {part}")]
    Unknown {
        /// What was being decoded.
        object: &'static str,
        /// What of it is unknown.
        part: &'static str,
    },
}

type Result<T> = std::result::Result<T, DecodeError>;

fn missing(object: &'static str, part: &'static str) -> DecodeError {
    DecodeError::Missing { object, part }
}

fn unknown(object: &'static str, part: &'static str) -> DecodeError {
    DecodeError::Unknown { object, part }
}

/// The name of a table.
pub(crate) fn table(message: &Message<'_>) -> Result<Arc<str>> {
    let name = message.attributes().string(1);
    name.map(Arc::from).ok_or(missing("table", "name"))
}

/// A chain, with its name even where the rest is not of our making.
pub(crate) fn chain(message: &Message<'_>) -> Result<(Arc<str>, Result<Chain>)> {
    let attributes = message.attributes();
    let name: Arc<str> = attributes.string(3).ok_or(missing("chain", "name"))?.into();
    let chain = hook(&attributes).map(|hook| Chain {
        name: Arc::clone(&name),
        hook,
    });
    Ok((name, chain))
}

fn hook(attributes: &Attributes<'_>) -> Result<Option<Hook>> {
    let Some(hook) = attributes.nested(4) else {
        return Ok(None);
    };
    let kind = match attributes.string(7) {
        Some("filter") => ChainKind::Filter,
        Some("nat") => ChainKind::Nat,
        _ => return Err(unknown("chain", "type")),
    };
    let number = hook.u32(1).ok_or(missing("chain", "hook"))?;
    let point = [
        HookPoint::Prerouting,
        HookPoint::Input,
        HookPoint::Forward,
        HookPoint::Output,
        HookPoint::Postrouting,
    ]
    .into_iter()
    .find(|point| hook_number(*point) == number)
    .ok_or(unknown("chain", "hook"))?;
    let priority = hook.u32(2).ok_or(missing("chain", "priority"))?;
    Ok(Some(Hook {
        kind,
        point,
        priority: priority.cast_signed(),
    }))
}

/// A rule, with the name of its chain.
pub(crate) fn rule(message: &Message<'_>, family: Family) -> Result<(Arc<str>, Result<Rule>)> {
    let attributes = message.attributes();
    let chain = attributes.string(2).ok_or(missing("rule", "chain"))?.into();
    let expressions: Result<_> = attributes
        .nested(4)
        .into_iter()
        .flatten()
        .map(|(_, element)| expression(&Attributes::parse(element), family))
        .collect();
    let rule = expressions.map(|expressions| Rule {
        expressions,
        comment: attributes.get(7).and_then(comment),
    });
    Ok((chain, rule))
}

/// The comment among what user space has written down with a rule: type, length and value, the
/// value with a zero behind it.
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

/// A set without its elements, with its name even where the rest is not of our making.
pub(crate) fn set(message: &Message<'_>) -> Result<(Arc<str>, Result<Set>)> {
    let attributes = message.attributes();
    let name: Arc<str> = attributes.string(2).ok_or(missing("set", "name"))?.into();
    let set = set_without_elements(&attributes, &name);
    Ok((name, set))
}

fn set_without_elements(attributes: &Attributes<'_>, name: &Arc<str>) -> Result<Set> {
    let flags = attributes.u32(3).unwrap_or(0);
    let key = fields(attributes.u32(4).ok_or(missing("set", "key type"))?)?;
    let content = match (flags & 8, attributes.u32(6)) {
        (0, _) => SetContent::Membership,
        (_, Some(0xffff_ff00)) => SetContent::Verdicts,
        (_, Some(packed)) => SetContent::Values(fields(packed)?),
        (_, None) => return Err(missing("map", "data type")),
    };
    let capacity = attributes.nested(9).and_then(|set| set.u32(1));
    let writer = match capacity {
        Some(capacity) => SetWriter::Packets { capacity },
        None => SetWriter::Transactions,
    };
    if flags != set_flags(&content, writer) {
        return Err(unknown("set", "flags"));
    }
    Ok(Set {
        name: Arc::clone(name),
        key,
        content,
        writer,
    })
}

fn fields(mut packed: u32) -> Result<Vec<DataType>> {
    let mut fields = Vec::new();
    while packed != 0 {
        fields.push(DataType::from_number(packed & 0x3f).ok_or(unknown("set", "key type"))?);
        packed >>= 6;
    }
    fields.reverse();
    Ok(fields)
}

/// The elements of one message.
pub(crate) fn elements(message: &Message<'_>) -> Result<Vec<(Bytes, ElementData)>> {
    let list = message.attributes().nested(3);
    list.into_iter()
        .flatten()
        .map(|(_, element)| {
            let element = Attributes::parse(element);
            let key = element
                .nested(1)
                .and_then(|key| key.get(1))
                .and_then(Bytes::from_slice)
                .map(padded)
                .ok_or(missing("element", "key"))?;
            let data = match element.nested(2) {
                None => ElementData::None,
                Some(data) => match (data.get(1), data.nested(2)) {
                    (Some(value), _) => ElementData::Value(
                        Bytes::from_slice(value).ok_or(unknown("element", "data"))?,
                    ),
                    (None, Some(verdict)) => ElementData::Verdict(decode_verdict(&verdict)?),
                    (None, None) => return Err(unknown("element", "data")),
                },
            };
            Ok((key, data))
        })
        .collect()
}

/// A key of one field comes back with that field's own length; ours are always whole registers.
fn padded(bytes: Bytes) -> Bytes {
    Bytes::new().with(bytes.as_slice())
}

/// The number of the ruleset's generation: `NFTA_GEN_ID`.
pub(crate) fn generation(message: &Message<'_>) -> Result<u32> {
    message
        .attributes()
        .u32(1)
        .ok_or(missing("generation", "number"))
}

fn decode_verdict(attributes: &Attributes<'_>) -> Result<Verdict> {
    let chain = || {
        let name = attributes.string(2).ok_or(missing("verdict", "chain"))?;
        Ok(Arc::from(name))
    };
    match attributes.u32(1).map(u32::cast_signed) {
        Some(0) => Ok(Verdict::Drop),
        Some(1) => Ok(Verdict::Accept),
        Some(-3) => chain().map(Verdict::Jump),
        Some(-4) => chain().map(Verdict::Goto),
        Some(-5) => Ok(Verdict::Return),
        _ => Err(unknown("verdict", "code")),
    }
}

/// The kernel reports `NFT_REG_1` to `NFT_REG_4` where a value begins at a multiple of 16 bytes, and
/// `NFT_REG32_*` elsewhere; both mean the same registers.
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

const CT_KEYS: [CtKey; 7] = [
    CtKey::State,
    CtKey::Status,
    CtKey::Ipv4Source,
    CtKey::Ipv4Destination,
    CtKey::Ipv6Source,
    CtKey::Ipv6Destination,
    CtKey::DestinationPort,
];

fn expression(element: &Attributes<'_>, family: Family) -> Result<Expression> {
    let name = element.string(1).ok_or(missing("expression", "name"))?;
    let data = element.nested(2).unwrap_or_else(|| Attributes::parse(&[]));
    let number = |kind| data.u32(kind).ok_or(missing("expression", "number"));
    match name {
        "payload" => Ok(Expression::Payload {
            base: match number(2)? {
                1 => PayloadBase::Network,
                2 => PayloadBase::Transport,
                _ => return Err(unknown("payload", "base")),
            },
            offset: number(3)?,
            length: number(4)?,
            to: register(&data, 1)?,
        }),
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
            operator: match number(2)? {
                0 => Operator::Equal,
                1 => Operator::NotEqual,
                _ => return Err(unknown("cmp", "operator")),
            },
            value: value(&data, 3)?,
        }),
        "bitwise" => Ok(Expression::Bitwise {
            from: register(&data, 1)?,
            to: register(&data, 2)?,
            mask: value(&data, 4)?,
            xor: value(&data, 5)?,
        }),
        "lookup" => lookup(&data),
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
                family: [Family::Ip, Family::Ip6]
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
            _ => Err(unknown("reject", "type")),
        },
        _ => Err(unknown("rule", "expression")),
    }
}

fn learn(data: &Attributes<'_>) -> Result<Expression> {
    let set = data.string(1).ok_or(missing("dynset", "set"))?.into();
    let timeout = || {
        let bytes = data.get(6).and_then(|bytes| bytes.try_into().ok());
        let milliseconds = bytes.map(u64::from_be_bytes);
        milliseconds.ok_or(missing("dynset", "timeout"))
    };
    let how = match data.u32(3) {
        Some(1) => Learning::Update {
            timeout: Duration::from_millis(timeout()?),
        },
        Some(2) => Learning::Delete,
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
