//! The names and shapes of everything in Signpost's tables.
//!
//! A Service consists of elements only: no chain, set or rule is created for one. What grows with
//! the cluster is data in maps, where the kernel adds and removes in constant time. The logic is in
//! a few fixed chains and a pair of chains for each number of endpoints in use. No element of a
//! Service is a verdict: to add one that leads to a chain, the kernel walks every verdict map that
//! packets can reach (`nft_chain_validate`).

mod sets;

use dataplane::{Family, FrontendKey};
use netlink::nf_tables::Bytes;
pub(crate) use nftables_model::{
    STICKY_MODULUS, STICKY_SEED, STICKY_SLOTS, address, behind_frontend, frontend, hairpin, name,
    parse_address, parse_target, source, sticky_slot, target,
};

pub(crate) use self::sets::{AffinityMap, Keyed, SetName};

/// The name of Signpost's table in each family.
pub const TABLE: &str = "signpost";

/// The name of the table that serves while one of another form is replaced. It exists only during
/// the replacement.
pub const NEXT: &str = "signpost-next";

/// The first slot of the endpoints on this node. The slots of all endpoints begin at 0, so neither
/// range can grow into the other. The kernel draws a number below the number of endpoints and adds
/// this offset. Between the two ranges are the slots for affinity ([`STICKY_SLOTS`]); an endpoint
/// on this node has a second such slot at the same distance from this offset. Clients that may only
/// reach endpoints on this node are looked up only there.
pub(crate) const LOCAL_SLOTS: u32 = 1 << 31;

/// The seed of the hash of a client's address, where that hash chooses the endpoint. Arbitrary, but
/// must be the same on every node and in every version.
pub(crate) const SOURCE_SEED: u32 = 0x5370_536f;

/// The key of one slot of a frontend. Numbers in registers are in host byte order.
pub(crate) fn slot(frontend: Bytes, slot: u32) -> Bytes {
    frontend.with(&slot.to_ne_bytes())
}

/// Parses the frontend at the start of a set's key. Returns `None` for any other key.
pub(crate) fn parse_frontend(family: Family, keyed: Keyed, bytes: &[u8]) -> Option<FrontendKey> {
    nftables_model::parse_frontend(family, keyed.fields(), bytes)
}
