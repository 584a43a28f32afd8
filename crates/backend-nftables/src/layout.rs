//! The names and shapes of everything in our tables.
//!
//! A Service is nothing but elements: no chain, set or rule is ever made for one. What grows with
//! the cluster is data in maps, which the kernel adds and removes in constant time; what decides is
//! a fixed handful of chains, and one pair of chains for each number of endpoints in use. No element
//! of a Service is a verdict: for one that leads to a chain, the kernel looks through every map of
//! verdicts that a packet can come to (`nft_chain_validate`).

mod sets;

use dataplane::{Family, FrontendKey};
use netlink::nf_tables::Bytes;
pub(crate) use nftables_model::{
    STICKY_MODULUS, STICKY_SEED, STICKY_SLOTS, address, behind_frontend, frontend, hairpin, name,
    parse_address, parse_target, source, sticky_slot, target,
};

pub(crate) use self::sets::{Keyed, Room, SetName};

/// The name of our table, in each family.
pub const TABLE: &str = "signpost";

/// The name of the table that serves while one of another form is replaced: there for as long as that
/// takes, and no longer.
pub const NEXT: &str = "signpost-next";

/// Slots of the endpoints of this node begin here, those of all endpoints at 0, and neither can grow
/// into the other. The kernel draws a number below the count of endpoints and adds this. Between them are
/// those that affinity remembers ([`STICKY_SLOTS`]). An endpoint of this node has another one of these, as
/// far behind this: who may be sent to nothing else is only looked up there.
pub(crate) const LOCAL_SLOTS: u32 = 1 << 31;

/// What the hash of a client's address starts from, where that chooses the endpoint. Any number will
/// do, as long as every node and every version has the same.
pub(crate) const SOURCE_SEED: u32 = 0x5370_536f;

/// The key of one slot of a frontend. Numbers in registers are in the host's order.
pub(crate) fn slot(frontend: Bytes, slot: u32) -> Bytes {
    frontend.with(&slot.to_ne_bytes())
}

/// The frontend that a key of a set begins with; `None` if it is no such key.
pub(crate) fn parse_frontend(family: Family, keyed: Keyed, bytes: &[u8]) -> Option<FrontendKey> {
    nftables_model::parse_frontend(family, keyed.fields(), bytes)
}
