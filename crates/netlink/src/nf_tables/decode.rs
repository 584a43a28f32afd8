//! Decodes messages to values. Objects of other programs in Signpost's table decode to an error
//! that states what was found, never to something else.

mod rules;

use std::sync::Arc;

use thiserror::Error;

pub(super) use self::rules::rule_of;
use super::encode::{hook_number, set_flags};
use super::{
    Bytes, Chain, ChainKind, DataType, ElementData, Family, Hook, HookPoint, Rule, Set, SetContent,
    SetWriter, Verdict,
};
use crate::wire::{Attributes, Message};

/// Why an object in the kernel cannot be decoded: Signpost did not write it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// A part is missing that every such object has.
    #[error("{object} without {part}")]
    Missing {
        /// The object being decoded.
        object: &'static str,
        /// The missing part.
        part: &'static str,
    },
    /// A part has a value that Signpost never writes.
    #[error("{object} with unknown {part}")]
    Unknown {
        /// The object being decoded.
        object: &'static str,
        /// The part with the unknown value.
        part: &'static str,
    },
}

type Result<T> = std::result::Result<T, DecodeError>;

pub(super) fn missing(object: &'static str, part: &'static str) -> DecodeError {
    DecodeError::Missing { object, part }
}

pub(super) fn unknown(object: &'static str, part: &'static str) -> DecodeError {
    DecodeError::Unknown { object, part }
}

/// Decodes a chain. Returns its name even if Signpost did not write the chain.
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
        Some("route") => ChainKind::Route,
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

/// Decodes a rule, with the name of its chain.
pub(crate) fn rule(message: &Message<'_>, family: Family) -> Result<(Arc<str>, Result<Rule>)> {
    let attributes = message.attributes();
    let chain = attributes.string(2).ok_or(missing("rule", "chain"))?.into();
    Ok((chain, rule_of(&attributes, family)))
}

/// Decodes a set without its elements. Returns its name even if Signpost did not write the set.
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

/// Decodes the elements of one message.
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

/// Pads a key to whole registers, as Signpost's keys are: the kernel returns a key of one field
/// with that field's length.
fn padded(bytes: Bytes) -> Bytes {
    Bytes::new().with(bytes.as_slice())
}

/// Decodes the generation number of the ruleset: `NFTA_GEN_ID`.
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
