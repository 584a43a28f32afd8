//! Offsets of addresses in a packet, and the longest comment of a rule.

use crate::Family;

/// The longest comment that fits in a rule's user data: `NFT_USERDATA_MAXLEN` minus its type, its
/// length and the terminating zero.
pub(super) const COMMENT_LIMIT: usize = 253;

/// One of the two addresses of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Address {
    Source,
    Destination,
}

// === impl Address ===

impl Address {
    /// Its offset in the IP header (RFC 791, RFC 8200).
    pub(super) fn offset(self, family: Family) -> u32 {
        match (family, self) {
            (Family::Ipv4, Address::Source) => 12,
            (Family::Ipv4, Address::Destination) => 16,
            (Family::Ipv6, Address::Source) => 8,
            (Family::Ipv6, Address::Destination) => 24,
        }
    }

    /// The address at this offset.
    pub(super) fn at(offset: u32, family: Family) -> Option<Address> {
        [Address::Source, Address::Destination]
            .into_iter()
            .find(|address| address.offset(family) == offset)
    }

    /// The length of an address in bytes.
    pub(super) fn length(family: Family) -> u32 {
        match family {
            Family::Ipv4 => 4,
            Family::Ipv6 => 16,
        }
    }
}
