//! Encodes a rule as nf_tables expressions.

use ipnet::IpNet;
use netlink::nf_tables::{
    Expression, MetaKey, Module, Operator, PayloadBase, Register, Rule as Encoded, Verdict,
};

use super::layout::{Address, COMMENT_LIMIT};
use crate::extension::{Extension, encode_comment, encode_match, encode_target};
use crate::{AddressMatch, Family, InterfaceMatch, Rule, Target};

/// The only register that `iptables-nft` uses: each value is compared before the next is loaded.
const REGISTER: Register = Register(0);

/// Encodes a rule as `iptables-nft` writes it, in the same order, with two exceptions. Ports and
/// marks use the xtables matches, which every version reads. An address range is compared under a
/// mask regardless of its length, because versions before 1.8.7 take a partial address for a whole
/// one.
pub(super) fn encode(rule: &Rule, family: Family) -> Encoded {
    // Interface, protocol, addresses, a match or two, counter, target: two or three expressions
    // each.
    let mut expressions = Vec::with_capacity(14);
    if let Some(input) = &rule.input {
        ask_input(input, &mut expressions);
    }
    if let Some(protocol) = rule.protocol {
        expressions.push(Expression::Meta {
            key: MetaKey::TransportProtocol,
            to: REGISTER,
        });
        expressions.push(compare(false, vec![protocol.number()]));
    }
    for (asked, address) in [
        (&rule.source, Address::Source),
        (&rule.destination, Address::Destination),
    ] {
        if let Some(asked) = asked {
            ask_address(asked, address, &mut expressions);
        }
    }
    for asked in &rule.matches {
        let extension = encode_match(asked, rule.protocol);
        expressions.push(Expression::Match(module(extension)));
    }
    // A comment in the rule's user data costs packets nothing; a match that always matches does.
    let (note, spoken) = match &rule.comment {
        Some(comment) if comment.len() > COMMENT_LIMIT => (None, Some(comment)),
        comment => (comment.clone(), None),
    };
    if let Some(comment) = spoken {
        expressions.push(Expression::Match(module(encode_comment(comment))));
    }
    expressions.push(Expression::Counter);
    expressions.extend(end(&rule.target, family));
    Encoded {
        expressions,
        comment: note,
    }
}

fn end(target: &Target, family: Family) -> Option<Expression> {
    let verdict = match target {
        Target::Accept => Verdict::Accept,
        Target::Drop => Verdict::Drop,
        Target::Return => Verdict::Return,
        Target::Jump(chain) => Verdict::Jump(chain.clone()),
        Target::Goto(chain) => Verdict::Goto(chain.clone()),
        Target::DestinationNat { .. }
        | Target::Masquerade
        | Target::Mark { .. }
        | Target::Reject => {
            let extension = encode_target(target, family)?;
            return Some(Expression::Target(module(extension)));
        }
    };
    Some(Expression::Immediate(verdict))
}

/// Compares a whole name with its terminating zero, and a prefix without one.
fn ask_input(input: &InterfaceMatch, expressions: &mut Vec<Expression>) {
    let mut name = input.name.as_bytes().to_vec();
    if !input.is_prefix {
        name.push(0);
    }
    expressions.push(Expression::Meta {
        key: MetaKey::InputInterfaceName,
        to: REGISTER,
    });
    expressions.push(compare(input.inverted, name));
}

fn ask_address(asked: &AddressMatch, address: Address, expressions: &mut Vec<Expression>) {
    let (network, mask) = match asked.range {
        IpNet::V4(range) => (
            range.network().octets().to_vec(),
            range.netmask().octets().to_vec(),
        ),
        IpNet::V6(range) => (
            range.network().octets().to_vec(),
            range.netmask().octets().to_vec(),
        ),
    };
    let family = match asked.range {
        IpNet::V4(_) => Family::Ipv4,
        IpNet::V6(_) => Family::Ipv6,
    };
    expressions.push(Expression::Payload {
        base: PayloadBase::Network,
        offset: address.offset(family),
        length: Address::length(family),
        to: REGISTER,
    });
    if asked.range.prefix_len() < asked.range.max_prefix_len() {
        expressions.push(Expression::Bitwise {
            from: REGISTER,
            to: REGISTER,
            xor: vec![0; mask.len()],
            mask,
        });
    }
    expressions.push(compare(asked.inverted, network));
}

fn compare(inverted: bool, value: Vec<u8>) -> Expression {
    let operator = match inverted {
        true => Operator::NotEqual,
        false => Operator::Equal,
    };
    Expression::Compare {
        from: REGISTER,
        operator,
        value,
    }
}

fn module(extension: Extension) -> Module {
    Module {
        name: extension.name.into(),
        revision: extension.revision,
        payload: extension.payload,
    }
}
