//! Where addresses are in a packet, and how long a note at a rule may be.

use crate::Family;

/// The longest comment that fits the note at a rule: `NFT_USERDATA_MAXLEN` less its type, its
/// length and the zero at its end.
pub(super) const COMMENT_LIMIT: usize = 253;

/// An address of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Address {
    Source,
    Destination,
}

// === impl Address ===

impl Address {
    /// Where it begins in the IP header (RFC 791, RFC 8200).
    pub(super) fn offset(self, family: Family) -> u32 {
        match (family, self) {
            (Family::Ipv4, Address::Source) => 12,
            (Family::Ipv4, Address::Destination) => 16,
            (Family::Ipv6, Address::Source) => 8,
            (Family::Ipv6, Address::Destination) => 24,
        }
    }

    /// The address that begins there.
    pub(super) fn at(offset: u32, family: Family) -> Option<Address> {
        [Address::Source, Address::Destination]
            .into_iter()
            .find(|address| address.offset(family) == offset)
    }

    /// How many bytes it has.
    pub(super) fn length(family: Family) -> u32 {
        match family {
            Family::Ipv4 => 4,
            Family::Ipv6 => 16,
        }
    }
}
