//! Replies on connections of IPVS.

use dataplane::Family;
use netlink::nf_tables::{
    CtKey, DataType, Direction, Expression, MetaKey, Operator, PayloadBase, Register, Rule, Verdict,
};
use nftables_model::{compare, name, rule};

use super::marks::labelled;
use crate::layout::TAKEN_LABEL;

pub(super) const RESTORE_SOURCE: &str = "restore-source";

/// `IP_CT_DIR_ORIGINAL`.
pub(super) const ORIGINAL: u8 = 0;
/// `IP_CT_DIR_REPLY`.
const REPLY: u8 = 1;

/// Sends replies on connections of IPVS to [`RESTORE_SOURCE`].
pub(super) fn replies() -> Rule {
    let mut expressions = direction(REPLY);
    expressions.extend(labelled(TAKEN_LABEL));
    expressions.push(Expression::Immediate(Verdict::Jump(name(RESTORE_SOURCE))));
    rule(expressions)
}

/// Sets the source of replies to what the client has connected to. IPVS identifies a connection in
/// replies by the addresses and ports of client and endpoint (`ip_vs_conn_out_get`), before source
/// NAT. Where a client has two connections from one port to one endpoint, by way of two Services, two
/// ports or two addresses, IPVS sets the source of the newer one in replies on both. conntrack
/// distinguishes them, because nf_nat has changed the source port of the newer one.
pub(super) fn restore_source(family: Family) -> Vec<Rule> {
    let (key, offset) = match family {
        Family::Ipv4 => (CtKey::Ipv4Destination, 12),
        Family::Ipv6 => (CtKey::Ipv6Destination, 8),
    };
    let original = |key| Expression::Ct {
        key,
        direction: Some(Direction::Original),
        to: Register(0),
    };
    let width = DataType::address(family).width();
    vec![rule(vec![
        // ICMP errors have no ports.
        Expression::Meta {
            key: MetaKey::TransportProtocol,
            to: Register(0),
        },
        compare(Operator::NotEqual, &[icmp(family)]),
        original(key),
        Expression::SetPayload {
            base: PayloadBase::Network,
            offset,
            length: u32::try_from(width).expect("an address is short"),
            from: Register(0),
        },
        original(CtKey::DestinationPort),
        Expression::SetPayload {
            base: PayloadBase::Transport,
            offset: 0,
            length: 2,
            from: Register(0),
        },
    ])]
}

/// The number of ICMP or ICMPv6.
fn icmp(family: Family) -> u8 {
    match family {
        Family::Ipv4 => 1,
        Family::Ipv6 => 58,
    }
}

/// Matches packets in this direction of their connection.
pub(super) fn direction(direction: u8) -> Vec<Expression> {
    vec![
        Expression::Ct {
            key: CtKey::Direction,
            direction: None,
            to: Register(0),
        },
        compare(Operator::Equal, &[direction]),
    ]
}
