//! The slots by which session affinity remembers endpoints, and the lookup of a chain by a number.

use std::sync::Arc;

use dataplane::Target;
use netlink::nf_tables::{Expression, MetaKey, Register, jhash, reciprocal_scale};

use crate::key::{name, target};
use crate::parts::after;

/// The first slot that affinity remembers. The slot of an endpoint is derived from its address and
/// port, so it does not depend on the other endpoints.
pub const STICKY_SLOTS: u32 = 1 << 30;
/// The number of such slots.
pub const STICKY_MODULUS: u32 = 1 << 30;
/// The seed of an endpoint's hash. Any number works as long as it never changes: the slots that
/// packets have stored outlive the agent.
pub const STICKY_SEED: u32 = 0x5370_5374;

/// The slot by which affinity remembers an endpoint: the kernel's hash of its address and port,
/// laid out as in registers. Two endpoints share a slot with a probability of one in a billion;
/// then the clients of both go to one of them.
pub fn sticky_slot(to: &Target) -> u32 {
    let hash = jhash(target(to).as_slice(), STICKY_SEED);
    STICKY_SLOTS + reciprocal_scale(hash, STICKY_MODULUS)
}

/// Looks up the key in the registers from 0 up to `end` in `set`, whose values are another value
/// followed by a number, and goes to the chain that `chains` has for that number.
///
/// nft 1.0.6 aborts when it lists a value that is looked up in another map
/// (`netlink_parse_lookup`). Therefore the number is the second part of the value, and the mark is
/// loaded to its register first: nft takes the register for the mark.
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

/// The comment of a rule that looks up a number of `set`, to explain its listing.
pub fn number_comment(set: &str) -> Arc<str> {
    format!("meta mark: in its place, the number that @{set} has for it").into()
}
