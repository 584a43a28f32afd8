//! Session affinity: nf_tables sends a returning client to its previous endpoint.
//!
//! IPVS chooses an endpoint for a new client. When the packet leaves IPVS, it still has the mark of
//! the virtual server and already the endpoint's address: both are stored. The client's next packet
//! that opens a connection to the same virtual server is redirected before IPVS sees it, as long as
//! its endpoint accepts new connections. The mark identifies all that matters of a frontend here,
//! so one map of clients is enough for all frontends.

use std::time::Duration;

use dataplane::Family;
use netlink::nf_tables::{DataType, Expression, MapUpdate, MetaKey, NatKind, Register, Rule};
use nftables_model::{
    Address, ChainWithRules, STICKY_MODULUS, STICKY_SEED, STICKY_SLOTS, after, load_address,
    load_port, lookup_number, name, number_comment, regular, rule,
};

use crate::layout::SetName;

/// nft identifies a value by the first of its registers only. Its listing of a rule that uses a
/// later register shows what that register held before.
const SLOT_COMMENT: &str =
    "meta mark . meta mark: in the place of the second, the slot that @clients has for saddr";

/// The name of the chain that sends clients of a Service with this timeout to their endpoints.
pub(crate) fn return_chain(seconds: u32) -> String {
    format!("return-{seconds}")
}

/// The name of the chain that stores the endpoints of such clients.
pub(crate) fn learn_chain(seconds: u32) -> String {
    format!("learn-{seconds}")
}

/// Both chains for Services with this timeout.
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

/// Continues in the chain that `chains` has for the timeout of the packet's virtual server.
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

/// Sends a client to its previous endpoint, and extends its entry to `timeout` from now. Clears the
/// mark, since a redirected packet is not for IPVS.
///
/// The value of a client's entry begins with its mark, so that it can be used in place as a key of
/// slots. nft 1.0.6 aborts when it lists a value of a map as part of a key. Therefore the mark is
/// loaded again, and the register that nft shows as the slot is loaded beforehand.
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
        learn(MapUpdate::Update { timeout }, value),
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

/// Deletes the entry of a client whose endpoint is gone. Updates by packets do not replace the
/// value of an entry, so the slot of a removed endpoint would stay as long as its client returns.
fn forget(family: Family) -> Rule {
    let (mut expressions, value) = load_client(family);
    expressions.extend([
        load_mark(value),
        load_mark(after(value, 4)),
        learn(MapUpdate::Delete, value),
    ]);
    rule(expressions)
}

/// Stores the endpoint to which IPVS has sent the packet, for `timeout` from now. Does not match if
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
    expressions.extend([
        load_mark(value),
        learn(MapUpdate::Update { timeout }, value),
    ]);
    rule(expressions)
}

fn learn(how: MapUpdate, value: Register) -> Expression {
    Expression::Learn {
        set: name(SetName::Clients.as_str()),
        how,
        key: Register(0),
        value,
    }
}

/// Loads the key of a client's entry. Returns the next free register.
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
