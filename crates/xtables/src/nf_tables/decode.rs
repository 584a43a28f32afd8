//! Decodes expressions to a rule, as written by Signpost or by any version of `iptables-nft`.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use netlink::nf_tables::{
    Expression, ListedRule, MetaKey, Operator, PayloadBase, Rule as Encoded, Verdict,
};

use super::layout::Address;
use crate::extension::{decode_comment, decode_match, decode_target};
use crate::{AddressMatch, Family, InterfaceMatch, Match, Protocol, Rule, Target};

/// Offset and length of the destination port in TCP, UDP and SCTP headers.
const DESTINATION_PORT: (u32, u32) = (2, 2);

/// Decodes a listed rule, if Signpost could have written it.
pub(super) fn rule(listed: &ListedRule<'_>, family: Family) -> Option<Rule> {
    decode(&listed.decode().ok()?, family)
}

/// Decodes a rule. Accepts its header fields in any order, because they only match packets.
pub(super) fn decode(encoded: &Encoded, family: Family) -> Option<Rule> {
    let mut reading = Reading::new(family, encoded.comment.clone());
    let mut rest = encoded.expressions.as_slice();
    while let [first, behind @ ..] = rest {
        // Expressions behind the target would never be evaluated.
        if reading.target.is_some() {
            return None;
        }
        rest = match first {
            Expression::Counter => behind,
            Expression::Immediate(verdict) => {
                reading.target = Some(verdict_target(verdict));
                behind
            }
            Expression::Target(module) => {
                let (name, revision) = (&*module.name, module.revision);
                let target = decode_target(name, revision, &module.payload, family)?;
                reading.target = Some(target);
                behind
            }
            Expression::Match(module) => {
                reading.take_match(&module.name, module.revision, &module.payload)?;
                behind
            }
            loaded => {
                let (question, behind) = Question::parse(loaded, behind)?;
                reading.take_question(&question)?;
                behind
            }
        };
    }
    reading.rule()
}

fn verdict_target(verdict: &Verdict) -> Target {
    match verdict {
        Verdict::Accept => Target::Accept,
        Verdict::Drop => Target::Drop,
        Verdict::Return => Target::Return,
        Verdict::Jump(chain) => Target::Jump(Arc::clone(chain)),
        Verdict::Goto(chain) => Target::Goto(Arc::clone(chain)),
    }
}

/// A value that is loaded from a packet and compared with constants.
struct Question<'a> {
    loaded: &'a Expression,
    /// The mask that is applied to the loaded value; `None` for all of it.
    mask: Option<&'a [u8]>,
    inverted: bool,
    first: &'a [u8],
    /// Equal to `first`, except for a range.
    last: &'a [u8],
}

/// The part of a rule decoded so far.
struct Reading {
    family: Family,
    rule: Rule,
    target: Option<Target>,
}

// === impl Question ===

impl<'a> Question<'a> {
    /// Parses the comparison that begins with `loaded`, and returns it with the expressions behind
    /// it.
    fn parse(
        loaded: &'a Expression,
        behind: &'a [Expression],
    ) -> Option<(Question<'a>, &'a [Expression])> {
        let (Expression::Payload { to: register, .. } | Expression::Meta { to: register, .. }) =
            loaded
        else {
            return None;
        };
        let (mask, behind) = match behind {
            [
                Expression::Bitwise {
                    from,
                    to,
                    mask,
                    xor,
                },
                behind @ ..,
            ] if [from, to] == [register; 2] && xor.iter().all(|byte| *byte == 0) => {
                (Some(mask.as_slice()), behind)
            }
            behind => (None, behind),
        };
        let (comparison, behind) = behind.split_first()?;
        let (from, operator, first, last) = match comparison {
            Expression::Compare {
                from,
                operator,
                value,
            } => (from, operator, value, value),
            Expression::Range {
                from,
                operator,
                first,
                last,
            } => (from, operator, first, last),
            _ => return None,
        };
        let question = Question {
            loaded,
            mask,
            inverted: *operator == Operator::NotEqual,
            first,
            last,
        };
        (from == register).then_some((question, behind))
    }

    /// The constant, unless it is a range.
    fn value(&self) -> Option<&'a [u8]> {
        (self.first == self.last).then_some(self.first)
    }

    /// The constant of a comparison that has no mask and is not inverted.
    fn plain(&self) -> Option<&'a [u8]> {
        let is_plain = self.mask.is_none() && !self.inverted;
        is_plain.then_some(self.value()).flatten()
    }
}

// === impl Reading ===

impl Reading {
    fn new(family: Family, comment: Option<Arc<str>>) -> Reading {
        let rule = Rule {
            comment,
            ..Rule::always(Target::Return)
        };
        Reading {
            family,
            rule,
            target: None,
        }
    }

    /// Returns the rule; `None` without a target, because Signpost writes no such rule.
    fn rule(self) -> Option<Rule> {
        let target = self.target?;
        Some(Rule {
            target,
            ..self.rule
        })
    }

    fn take_match(&mut self, name: &str, revision: u8, payload: &[u8]) -> Option<()> {
        if let Some(comment) = decode_comment(name, revision, payload) {
            return set(&mut self.rule.comment, comment.into());
        }
        let asked = decode_match(name, revision, payload, self.rule.protocol)?;
        self.rule.matches.push(asked);
        Some(())
    }

    fn take_question(&mut self, question: &Question<'_>) -> Option<()> {
        match question.loaded {
            Expression::Meta { key, .. } => match key {
                MetaKey::InputInterfaceName => set(&mut self.rule.input, interface(question)?),
                MetaKey::TransportProtocol => {
                    let &[number] = question.plain()? else {
                        return None;
                    };
                    set(&mut self.rule.protocol, Protocol::from_number(number)?)
                }
                MetaKey::Mark => {
                    self.rule.matches.push(mark(question)?);
                    Some(())
                }
            },
            Expression::Payload {
                base: PayloadBase::Network,
                offset,
                length,
                ..
            } => {
                let asked = address(question, *length, self.family)?;
                match Address::at(*offset, self.family)? {
                    Address::Source => set(&mut self.rule.source, asked),
                    Address::Destination => set(&mut self.rule.destination, asked),
                }
            }
            Expression::Payload {
                base: PayloadBase::Transport,
                offset,
                length,
                ..
            } if (*offset, *length) == DESTINATION_PORT => {
                self.rule.protocol?;
                self.rule.matches.push(destination_ports(question)?);
                Some(())
            }
            _ => None,
        }
    }
}

/// Sets a header field; `None` if it is already set, because a rule matches each field once.
fn set<T>(field: &mut Option<T>, value: T) -> Option<()> {
    field.replace(value).is_none().then_some(())
}

fn interface(question: &Question<'_>) -> Option<InterfaceMatch> {
    if question.mask.is_some() {
        return None;
    }
    let value = question.value()?;
    // A name that is compared to its end is followed by zeros, if by anything.
    let end = value.iter().position(|byte| *byte == 0);
    let (name, padding) = value.split_at(end.unwrap_or(value.len()));
    if padding.iter().any(|byte| *byte != 0) {
        return None;
    }
    Some(InterfaceMatch {
        name: std::str::from_utf8(name).ok()?.into(),
        is_prefix: padding.is_empty(),
        inverted: question.inverted,
    })
}

/// Newer versions match a mark without an xtables match.
fn mark(question: &Question<'_>) -> Option<Match> {
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_ne_bytes);
    let value = number(question.value()?)?;
    let mask = match question.mask {
        Some(mask) => number(mask)?,
        None => u32::MAX,
    };
    (!question.inverted).then_some(Match::Mark { value, mask })
}

/// Newer versions match ports without an xtables match.
fn destination_ports(question: &Question<'_>) -> Option<Match> {
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u16::from_be_bytes);
    let (first, last) = (number(question.first)?, number(question.last)?);
    let is_plain = question.mask.is_none() && !question.inverted && first <= last;
    is_plain.then_some(Match::DestinationPorts { first, last })
}

/// An address range is matched by a mask or, since 1.8.7, by loading only whole bytes of it.
fn address(question: &Question<'_>, length: u32, family: Family) -> Option<AddressMatch> {
    let value = question.value()?;
    if u32::try_from(value.len()).ok()? != length {
        return None;
    }
    let prefix_length = match question.mask {
        Some(mask) => {
            let bits = u128::from_be_bytes(whole(mask)?);
            let is_whole = mask.len() == value.len() && length == Address::length(family);
            (is_whole && bits.leading_ones() == bits.count_ones()).then_some(bits.count_ones())?
        }
        None => length * 8,
    };
    let prefix_length = u8::try_from(prefix_length).ok()?;
    let range = match family {
        Family::Ipv4 => {
            let address = Ipv4Addr::from(whole(value)?);
            IpNet::V4(Ipv4Net::new(address, prefix_length).ok()?)
        }
        Family::Ipv6 => {
            let address = Ipv6Addr::from(whole::<16>(value)?);
            IpNet::V6(Ipv6Net::new(address, prefix_length).ok()?)
        }
    };
    // A range with host bits set never matches.
    (range == range.trunc()).then_some(AddressMatch {
        range,
        inverted: question.inverted,
    })
}

/// Pads `bytes` with zeros to `N`; `None` if there are more than `N`.
fn whole<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let mut whole = [0; N];
    whole.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(whole)
}
