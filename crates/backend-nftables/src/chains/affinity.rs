//! Session affinity without a chain or rule for any single Service.
//!
//! The first packet of a connection stores the slot of its endpoint, once the connection is known
//! to leave or to arrive. The client's next connection reads that slot and gets the same endpoint
//! as long as the endpoint has the slot. When an endpoint is removed, the same transaction removes
//! its slot, and its clients are assigned new endpoints.

use std::time::Duration;

use dataplane::Family;
use netlink::nf_tables::{
    CtKey, DataType, Direction, Expression, MapUpdate, MetaKey, NatKind, Register, Rule, Verdict,
};
use nftables_model::FULL_AFFINITY_MAP_TIMEOUT;

use super::rule_parts::{
    Address, after, ct_dnat, load_address, load_frontend_at, load_port, load_protocol_and_port,
    lookup_number, number_comment, rule,
};
use crate::layout::{self, AffinityMap, Keyed, STICKY_MODULUS, STICKY_SEED, STICKY_SLOTS, SetName};

/// nft identifies a value by the first of its registers only. Its listing of a rule that uses a
/// later register shows what that register held before.
const SLOT_COMMENT: &str = "meta mark: in its place, the slot that @clients has for saddr";

/// Sends a client to the endpoint it had before, and deletes its entry if that endpoint no longer
/// exists. `first` is the first slot that the client may get.
///
/// The endpoint's key is placed so that the client's value, a port and a slot, falls on its last
/// two fields. nft 1.0.6 aborts when it lists a value of a map as part of a key. Therefore the port
/// is loaded again, and the register that nft shows as the slot is loaded beforehand.
///
/// If the frontend has a separate affinity map, that map is searched first, then the shared one.
/// The shared one holds clients that found the separate map full or came before it existed.
pub(super) fn return_to_endpoint(
    family: Family,
    keyed: Keyed,
    affinity_map: AffinityMap,
    first: u32,
) -> Vec<Rule> {
    let affinity_maps = affinity_maps(keyed, affinity_map);
    let send = affinity_maps
        .iter()
        .map(|clients| sent_before(family, keyed, *clients, first));
    let forget = affinity_maps
        .iter()
        .map(|clients| forget(family, keyed, *clients));
    send.chain(forget).collect()
}

/// The affinity maps of a frontend, in the order in which they are searched and filled.
fn affinity_maps(keyed: Keyed, affinity_map: AffinityMap) -> Vec<SetName> {
    let own = match affinity_map {
        AffinityMap::Shared => None,
        AffinityMap::Reserved(_) => Some(keyed.clients(affinity_map)),
    };
    own.into_iter()
        .chain([keyed.clients(AffinityMap::Shared)])
        .collect()
}

fn sent_before(family: Family, keyed: Keyed, clients: SetName, first: u32) -> Rule {
    let (client, end) = load_client(family, keyed);
    let (port, slot) = (end, after(end, 4));
    let start = Register(slot.0 - frontend_width(family, keyed));
    let (frontend, _) = load_frontend_at(family, keyed, start);
    let mark = |to| Expression::Meta {
        key: MetaKey::Mark,
        to,
    };
    let mut sent_before = vec![mark(slot)];
    sent_before.extend(client);
    sent_before.push(Expression::LookupValue {
        set: layout::name(clients.as_str()),
        from: Register(0),
        to: port,
    });
    if first != 0 {
        sent_before.push(Expression::Bitwise {
            from: slot,
            to: slot,
            mask: (!first).to_ne_bytes().to_vec(),
            xor: first.to_ne_bytes().to_vec(),
        });
    }
    sent_before.extend(frontend);
    sent_before.extend([
        Expression::LookupValue {
            set: layout::name(keyed.endpoints().as_str()),
            from: start,
            to: Register(0),
        },
        Expression::Nat {
            kind: NatKind::Destination,
            family,
            address: Register(0),
            port: after(Register(0), DataType::address(family).width()),
        },
    ]);
    Rule {
        expressions: sent_before,
        comment: Some(SLOT_COMMENT.into()),
    }
}

/// Deletes the entry of a client whose endpoint no longer exists. Updates by packets do not replace
/// the value of an entry, so the slot of a removed endpoint would stay as long as its client
/// returns.
fn forget(family: Family, keyed: Keyed, clients: SetName) -> Rule {
    let (mut forget, port) = load_client(family, keyed);
    forget.extend([
        load_port(port),
        Expression::Meta {
            key: MetaKey::Mark,
            to: after(port, 4),
        },
        Expression::Learn {
            set: layout::name(clients.as_str()),
            how: MapUpdate::Delete,
            key: Register(0),
            value: port,
        },
    ]);
    rule(forget)
}

/// Checks for each redirected connection whether its client is to be remembered. The port of a
/// cluster IP may equal a node port; the entry that is then written matches no endpoint of the node
/// port.
pub(super) fn learn(family: Family) -> Vec<Rule> {
    [Keyed::Address, Keyed::NodePort]
        .map(|keyed| {
            let mut expressions = ct_dnat();
            let (original, end) = load_original_frontend(family, keyed, Register(0));
            let set = keyed.affinities();
            expressions.extend(lookup_number(original, end, set, SetName::LearningChains));
            Rule {
                expressions,
                comment: Some(number_comment(set)),
            }
        })
        .into()
}

/// Stores a client's endpoint for `timeout` from now: in the frontend's separate affinity map, if
/// it has one, else in the shared one. The rule of a full map does not match; if all are full, the
/// frontend is recorded as one with a full map.
pub(super) fn remember(
    family: Family,
    keyed: Keyed,
    affinity_map: AffinityMap,
    timeout: Duration,
) -> Vec<Rule> {
    let affinity_maps = affinity_maps(keyed, affinity_map).into_iter();
    let mut rules: Vec<_> = affinity_maps
        .map(|clients| put(family, keyed, clients, timeout))
        .collect();
    rules.push(record_full_affinity_map(family, keyed));
    rules
}

/// Records that a client of a frontend found no free entry.
fn record_full_affinity_map(family: Family, keyed: Keyed) -> Rule {
    let (mut expressions, end) = load_original_frontend(family, keyed, Register(0));
    expressions.extend([
        original_port(end),
        Expression::Meta {
            key: MetaKey::Mark,
            to: after(end, 4),
        },
        Expression::Learn {
            set: layout::name(keyed.full_affinity_maps().as_str()),
            how: MapUpdate::Update {
                timeout: FULL_AFFINITY_MAP_TIMEOUT,
            },
            key: Register(0),
            value: end,
        },
    ]);
    rule(expressions)
}

fn put(family: Family, keyed: Keyed, clients: SetName, timeout: Duration) -> Rule {
    let address = DataType::address(family).width();
    let behind_client = after(Register(0), address);
    let (original, end) = load_original_frontend(family, keyed, behind_client);
    let mut expressions = vec![
        load_address(family, Address::Destination, Register(0)),
        load_port(behind_client),
    ];
    expressions.push(Expression::Hash {
        from: Register(0),
        length: u32::try_from(address + 4).expect("an address has sixteen bytes at the most"),
        modulus: STICKY_MODULUS,
        seed: STICKY_SEED,
        offset: STICKY_SLOTS,
        to: after(end, 4),
    });
    expressions.push(Expression::Ct {
        key: match family {
            Family::Ipv4 => CtKey::Ipv4Source,
            Family::Ipv6 => CtKey::Ipv6Source,
        },
        direction: Some(Direction::Original),
        to: Register(0),
    });
    expressions.extend(original);
    expressions.extend([
        original_port(end),
        Expression::Learn {
            set: layout::name(clients.as_str()),
            how: MapUpdate::Update { timeout },
            key: Register(0),
            value: end,
        },
        Expression::Immediate(Verdict::Return),
    ]);
    rule(expressions)
}

/// Loads the key of a client's entry, starting at register 0. Returns the next free register.
fn load_client(family: Family, keyed: Keyed) -> (Vec<Expression>, Register) {
    let mut expressions = vec![load_address(family, Address::Source, Register(0))];
    let mut next = after(Register(0), DataType::address(family).width());
    if keyed == Keyed::Address {
        expressions.push(load_address(family, Address::Destination, next));
        next = after(next, DataType::address(family).width());
    }
    expressions.extend(load_protocol_and_port(next));
    (expressions, after(next, 8))
}

/// The number of registers that a frontend's key takes.
fn frontend_width(family: Family, keyed: Keyed) -> u8 {
    load_frontend_at(family, keyed, Register(0)).1.0
}

/// Like `load_frontend_at`, with the destination of the connection before DNAT.
fn load_original_frontend(
    family: Family,
    keyed: Keyed,
    start: Register,
) -> (Vec<Expression>, Register) {
    let original = |key, to| Expression::Ct {
        key,
        direction: Some(Direction::Original),
        to,
    };
    let mut expressions = Vec::new();
    let mut next = start;
    if keyed == Keyed::Address {
        let key = match family {
            Family::Ipv4 => CtKey::Ipv4Destination,
            Family::Ipv6 => CtKey::Ipv6Destination,
        };
        expressions.push(original(key, next));
        next = after(next, DataType::address(family).width());
    }
    expressions.push(Expression::Meta {
        key: MetaKey::TransportProtocol,
        to: next,
    });
    expressions.push(original_port(after(next, 4)));
    (expressions, after(next, 8))
}

fn original_port(to: Register) -> Expression {
    Expression::Ct {
        key: CtKey::DestinationPort,
        direction: Some(Direction::Original),
        to,
    }
}
