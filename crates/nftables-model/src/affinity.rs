//! What session affinity remembers of an endpoint, and how a chain is found by a number.

use std::sync::Arc;

use dataplane::Target;
use netlink::nf_tables::{Expression, MetaKey, Register, jhash, reciprocal_scale};

use crate::key::{name, target};
use crate::parts::after;

/// Slots that affinity remembers begin here. An endpoint's is made of its address and port, so that it
/// stays the same whatever the other endpoints do.
pub const STICKY_SLOTS: u32 = 1 << 30;
/// How many of them there are.
pub const STICKY_MODULUS: u32 = 1 << 30;
/// What the hash of an endpoint starts from. Any number will do, as long as it stays: the slots that
/// packets have written down outlive the agent.
pub const STICKY_SEED: u32 = 0x5370_5374;

/// The slot by which affinity remembers an endpoint: what the kernel's hash of its address and port as
/// they lie in registers comes to. Two endpoints may have the same, once in a billion; then the clients of
/// both go to one of them.
pub fn sticky_slot(to: &Target) -> u32 {
    let hash = jhash(target(to).as_slice(), STICKY_SEED);
    STICKY_SLOTS + reciprocal_scale(hash, STICKY_MODULUS)
}

/// From a key that lies from register 0 to before `end` to the chain in `chains` whose number `set` has
/// for it, behind another value.
///
/// The number comes behind another value, where nft takes something else to be: nft 1.0.6 aborts when it
/// lists a value that is looked up in another map (`netlink_parse_lookup`).
pub fn lookup_number(
    load_key: Vec<Expression>,
    end: Register,
    set: &str,
    chains: &str,
) -> impl Iterator<Item = Expression> + use<> {
    let number = after(end, 4);
    let stand_in = Expression::Meta {
        key: MetaKey::Mark,
        to: number,
    };
    let lookups = [
        Expression::LookupValue {
            set: name(set),
            from: Register(0),
            to: end,
        },
        Expression::LookupVerdict {
            set: name(chains),
            from: number,
        },
    ];
    [stand_in].into_iter().chain(load_key).chain(lookups)
}

/// What a listing should say of a rule with a number of `set`.
pub fn number_comment(set: &str) -> Arc<str> {
    format!("meta mark: in its place, the number that @{set} has for it").into()
}
