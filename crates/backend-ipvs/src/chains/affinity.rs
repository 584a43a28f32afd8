//! Session affinity: a client that comes back is sent where it was sent before, by nf_tables.
//!
//! IPVS chooses an endpoint for a client that is new. As its packet leaves IPVS, it still has the mark of
//! the virtual server, and already the endpoint's address: that is written down. The next packet of that
//! client that opens a connection to the same virtual server is redirected before IPVS sees it, as long as
//! its endpoint is one of those that new connections may go to. The mark says all of a frontend that
//! matters here, so that one map of clients is enough for all of them.

use std::time::Duration;

use dataplane::Family;
use netlink::nf_tables::{DataType, Expression, Learning, MetaKey, NatKind, Register, Rule};
use nftables_model::{
    Address, ChainWithRules, STICKY_MODULUS, STICKY_SEED, STICKY_SLOTS, after, load_address,
    load_port, lookup_number, name, number_comment, regular, rule,
};

use crate::layout::SetName;

/// nft knows a value by the first of its registers alone. The listing of a rule that uses what lies
/// behind it shows what was there before.
const SLOT_COMMENT: &str =
    "meta mark . meta mark: in the place of the second, the slot that @clients has for saddr";

/// The chain where a client of a Service with this timeout is sent to its endpoint.
pub(crate) fn return_chain(seconds: u32) -> String {
    format!("return-{seconds}")
}

/// The chain where the endpoint of such a client is written down.
pub(crate) fn learn_chain(seconds: u32) -> String {
    format!("learn-{seconds}")
}

/// The two chains of Services with this timeout.
pub(crate) fn chains(family: Family, seconds: u32) -> [ChainWithRules; 2] {
    let timeout = Duration::from_secs(seconds.into());
    [
        regular(
            &return_chain(seconds),
            vec![send_back(family, timeout), forget(family)],
        ),
        regular(&learn_chain(seconds), vec![remember(family, timeout)]),
    ]
}

/// On with what `chains` has for the timeout of the virtual server that the packet's mark stands for.
pub(super) fn by_timeout(chains: SetName) -> Rule {
    let affinities = SetName::Affinities.as_str();
    let expressions = lookup_number(
        vec![load_mark(Register(0))],
        Register(1),
        affinities,
        chains.as_str(),
    );
    Rule {
        expressions: expressions.collect(),
        comment: Some(number_comment(affinities)),
    }
}

/// Sends a client where it was sent before, and lets that be remembered for `timeout` from now. What is
/// redirected here is not for IPVS any more: the mark goes.
///
/// The value of a client begins with its mark, so that it can be used as a key of slots where it lies. nft
/// 1.0.6 aborts when it lists a value of a map as part of a key: the mark is loaded once more, and what
/// nft takes for the slot is loaded beforehand.
fn send_back(family: Family, timeout: Duration) -> Rule {
    let (client, value) = load_client(family);
    let slot = after(value, 4);
    let endpoint = after(slot, 4);
    let port = after(endpoint, DataType::address(family).width());
    let mut expressions = vec![load_mark(slot)];
    expressions.extend(client);
    expressions.extend([
        Expression::LookupValue {
            set: name(SetName::Clients.as_str()),
            from: Register(0),
            to: value,
        },
        load_mark(value),
        Expression::LookupValue {
            set: name(SetName::Slots.as_str()),
            from: value,
            to: endpoint,
        },
        learn(Learning::Update { timeout }, value),
    ]);
    let zero = after(port, 4);
    expressions.extend([
        Expression::Load {
            value: vec![0; 4],
            to: zero,
        },
        Expression::SetMeta {
            key: MetaKey::Mark,
            from: zero,
        },
        Expression::Nat {
            kind: NatKind::Destination,
            family,
            address: endpoint,
            port,
        },
    ]);
    Rule {
        expressions,
        comment: Some(SLOT_COMMENT.into()),
    }
}

/// What packets update keeps its value: the slot of an endpoint that has gone would stay for as long as
/// its client comes back.
fn forget(family: Family) -> Rule {
    let (mut expressions, value) = load_client(family);
    expressions.extend([
        load_mark(value),
        load_mark(after(value, 4)),
        learn(Learning::Delete, value),
    ]);
    rule(expressions)
}

/// Writes down the endpoint that IPVS has sent the packet to, for `timeout` from now. The rule ends where
/// the map is full.
fn remember(family: Family, timeout: Duration) -> Rule {
    let (client, value) = load_client(family);
    let slot = after(value, 4);
    let endpoint = after(slot, 4);
    let width = DataType::address(family).width();
    let mut expressions = vec![
        load_address(family, Address::Destination, endpoint),
        load_port(after(endpoint, width)),
        Expression::Hash {
            from: endpoint,
            length: u32::try_from(width + 4).expect("an address has sixteen bytes at the most"),
            modulus: STICKY_MODULUS,
            seed: STICKY_SEED,
            offset: STICKY_SLOTS,
            to: slot,
        },
    ];
    expressions.extend(client);
    expressions.extend([load_mark(value), learn(Learning::Update { timeout }, value)]);
    rule(expressions)
}

fn learn(how: Learning, value: Register) -> Expression {
    Expression::Learn {
        set: name(SetName::Clients.as_str()),
        how,
        key: Register(0),
        value,
    }
}

/// Loads the key under which a client is remembered; returns the register behind it.
fn load_client(family: Family) -> (Vec<Expression>, Register) {
    let mark = after(Register(0), DataType::address(family).width());
    let client = vec![
        load_address(family, Address::Source, Register(0)),
        load_mark(mark),
    ];
    (client, after(mark, 4))
}

fn load_mark(to: Register) -> Expression {
    Expression::Meta {
        key: MetaKey::Mark,
        to,
    }
}
