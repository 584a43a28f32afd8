//! Session affinity: nf_tables sends a returning client to its previous endpoint.
//!
//! IPVS chooses an endpoint for a new client. When the packet leaves IPVS, it still has the mark of
//! the virtual server and already the endpoint's address: both are stored. The client's next packet
//! that opens a connection to the same virtual server is redirected before IPVS sees it, as long as
//! its endpoint accepts new connections. The mark identifies all that matters of a frontend here.
//!
//! A client's entry is in the map of its Service's namespace or, if that is full, in the one of all
//! Services. A flood of clients therefore takes affinity from the namespaces that use the same map
//! and from clients that found their own map full, and from no others.

use std::time::Duration;

use dataplane::Family;
use netlink::nf_tables::{
    DataType, Expression, MapUpdate, MetaKey, NatKind, Register, Rule, Verdict, jhash,
    reciprocal_scale,
};
use nftables_model::{
    Address, AffinityTimeout, ChainWithRules, FULL_AFFINITY_MAP_TIMEOUT, STICKY_MODULUS,
    STICKY_SEED, STICKY_SLOTS, after, load_address, load_port, lookup_number, name, number_comment,
    regular, rule,
};

use crate::layout::{CLIENT_MAPS, SetName};

/// nft identifies a value by the first of its registers only. Its listing of a rule that uses a
/// later register shows what that register held before.
const SLOT_COMMENT: &str = "meta mark . meta mark: in the place of the second, the slot that the map of clients has for saddr";

/// Virtual servers with affinity that share chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AffinityGroup {
    /// The timeout in seconds, less than [`TIMEOUTS`]. What an older version wrote need not be an
    /// [`AffinityTimeout`].
    seconds: u32,
    /// The number of their affinity map.
    map: u8,
}

/// The bits of a group's number that have the timeout. Kubernetes allows a day: 86,400 seconds.
const TIMEOUT_BITS: u32 = 17;
/// The first timeout that does not fit into them.
const TIMEOUTS: u32 = 1 << TIMEOUT_BITS;
/// The seed of a namespace's hash. Any number works as long as it never changes: what packets have
/// stored outlives the agent.
const NAMESPACE_SEED: u32 = 0;

// === impl AffinityGroup ===

impl AffinityGroup {
    /// The group of the Services of `namespace` with this timeout. Each namespace uses
    /// one map, which its name determines: a tenant can fill no more than that one and the map of
    /// all Services.
    pub(crate) fn of(namespace: &str, timeout: AffinityTimeout) -> AffinityGroup {
        let hash = jhash(namespace.as_bytes(), NAMESPACE_SEED);
        let map = reciprocal_scale(hash, CLIENT_MAPS.into());
        AffinityGroup {
            seconds: timeout.seconds(),
            map: u8::try_from(map + 1).unwrap_or(CLIENT_MAPS),
        }
    }

    /// The group with this number; `None` if there is none.
    pub(crate) fn parse(number: u32) -> Option<AffinityGroup> {
        let map = u8::try_from(number >> TIMEOUT_BITS).ok()?;
        (1..=CLIENT_MAPS).contains(&map).then_some(AffinityGroup {
            seconds: number % TIMEOUTS,
            map,
        })
    }

    /// Its number in the maps of chains.
    pub(crate) fn number(self) -> u32 {
        (u32::from(self.map) << TIMEOUT_BITS) | self.seconds
    }

    /// The map of its clients.
    pub(crate) fn clients(self) -> SetName {
        SetName::NamespaceClients(self.map)
    }

    /// The maps of its clients, in the order in which they are searched and filled.
    fn all_clients(self) -> [SetName; 2] {
        [self.clients(), SetName::Clients]
    }

    fn timeout(self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    /// The name of the chain that sends clients to their endpoints.
    pub(crate) fn return_chain(self) -> String {
        format!("return-{}-clients-{}", self.seconds, self.map)
    }

    /// The name of the chain that stores the endpoints of clients.
    pub(crate) fn learn_chain(self) -> String {
        format!("learn-{}-clients-{}", self.seconds, self.map)
    }

    /// Both chains.
    pub(crate) fn chains(self, family: Family) -> [ChainWithRules; 2] {
        let clients = self.all_clients();
        let send_back = clients.map(|clients| send_back(family, clients, self.timeout()));
        let forget = clients.map(|clients| forget(family, clients));
        let remember = clients.map(|clients| remember(family, clients, self.timeout()));
        [
            regular(
                &self.return_chain(),
                send_back.into_iter().chain(forget).collect(),
            ),
            regular(
                &self.learn_chain(),
                remember
                    .into_iter()
                    .chain([record_full_affinity_map()])
                    .collect(),
            ),
        ]
    }
}

/// Continues in the chain that `chains` has for the group of the packet's virtual server.
pub(super) fn by_group(chains: SetName) -> Rule {
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
fn send_back(family: Family, clients: SetName, timeout: Duration) -> Rule {
    let (client, value) = load_client(family);
    let slot = after(value, 4);
    let endpoint = after(slot, 4);
    let port = after(endpoint, DataType::address(family).width());
    let mut expressions = vec![load_mark(slot)];
    expressions.extend(client);
    expressions.extend([
        Expression::LookupValue {
            set: name(clients.as_str()),
            from: Register(0),
            to: value,
        },
        load_mark(value),
        Expression::LookupValue {
            set: name(SetName::Slots.as_str()),
            from: value,
            to: endpoint,
        },
        learn(clients, MapUpdate::Update { timeout }, value),
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
fn forget(family: Family, clients: SetName) -> Rule {
    let (mut expressions, value) = load_client(family);
    expressions.extend([
        load_mark(value),
        load_mark(after(value, 4)),
        learn(clients, MapUpdate::Delete, value),
    ]);
    rule(expressions)
}

/// Stores the endpoint to which IPVS has sent the packet, for `timeout` from now, and ends the
/// chain. Does not match if the map is full.
fn remember(family: Family, clients: SetName, timeout: Duration) -> Rule {
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
        learn(clients, MapUpdate::Update { timeout }, value),
        Expression::Immediate(Verdict::Return),
    ]);
    rule(expressions)
}

/// Records that a client of the packet's virtual server found no free entry. nft 1.0.6 lists a mark
/// with its bytes reversed, except in a concatenation: hence the value.
fn record_full_affinity_map() -> Rule {
    let value = after(Register(0), 4);
    rule(vec![
        load_mark(Register(0)),
        load_mark(value),
        load_mark(after(value, 4)),
        learn(
            SetName::FullAffinityMaps,
            MapUpdate::Update {
                timeout: FULL_AFFINITY_MAP_TIMEOUT,
            },
            value,
        ),
    ])
}

fn learn(set: SetName, how: MapUpdate, value: Register) -> Expression {
    Expression::Learn {
        set: name(set.as_str()),
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
