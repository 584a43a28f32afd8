//! The order in which elements are written, and the groups that must be written together.

use std::net::IpAddr;

use dataplane::{FrontendKey, Precedence};

/// The group of an element. Elements that must be written together have equal groups, and groups
/// are written in their order. Valid within one family. It holds numbers rather than a
/// [`FrontendKey`] or a reference to a key, because a start makes a million comparisons.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    pub(super) turn: Precedence,
    pub(super) owner: Owner,
    /// The length of the key of an element without a frontend.
    length: u8,
    /// The address of a frontend, or the first bytes of the key of an element without one.
    address: u128,
    protocol: u8,
    port: u16,
}

/// The kind of object that an element belongs to, in the order of writing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// The rules of the same transaction, which look the element up: it is not written apart from
    /// them.
    Rules,
    /// No frontend, but frontends rely on it: a number, the hairpin of an endpoint. Only elements
    /// of the same key belong together, which [`Step`](super::Step) checks.
    Before,
    /// A frontend at an address that is added or changed, or an address that becomes a cluster IP. A
    /// packet to a cluster IP without a frontend is refused, so the address comes after its frontends.
    Address,
    /// A node port.
    NodePort,
    /// An address that ceases to be a cluster IP, or a frontend at an address that is removed without
    /// replacement. By then, what is to serve or to refuse its packets does so.
    Gone,
    /// Like `Before`, but being removed: it goes after the frontends that relied on it.
    After,
}

// === impl Group ===

impl Group {
    /// All elements that rules of the same transaction look up.
    pub(super) fn with_rules(turn: Precedence) -> Group {
        Group::of_key(turn, Owner::Rules, &[])
    }

    pub(super) fn of_frontend(turn: Precedence, frontend: &FrontendKey) -> Group {
        let (owner, address) = match frontend {
            FrontendKey::NodePort { .. } => (Owner::NodePort, 0),
            FrontendKey::Address { address, .. } => (Owner::Address, to_bits(*address)),
        };
        Group {
            turn,
            owner,
            length: 0,
            address,
            protocol: frontend.protocol().number(),
            port: frontend.port().get(),
        }
    }

    /// The same frontend, if it is removed. What may replace it has any turn, so it goes in the last.
    pub(super) fn gone(self) -> Group {
        Group {
            turn: Precedence::Ordinary,
            owner: Owner::Gone,
            ..self
        }
    }

    /// Before every frontend at `address` that is removed. No protocol of a frontend has this number.
    pub(super) fn ahead_of_address(address: IpAddr) -> Group {
        Group {
            turn: Precedence::Ordinary,
            owner: Owner::Gone,
            length: 0,
            address: to_bits(address),
            protocol: u8::MIN,
            port: u16::MIN,
        }
    }

    /// After every frontend at `address` that is added or changed. No protocol of a frontend has this number.
    pub(super) fn behind_address(turn: Precedence, address: IpAddr) -> Group {
        Group {
            turn,
            owner: Owner::Address,
            protocol: u8::MAX,
            port: u16::MAX,
            ..Group::ahead_of_address(address)
        }
    }

    /// In the order of keys, as far as a group can represent it: shorter keys come first.
    pub(super) fn of_key(turn: Precedence, owner: Owner, key: &[u8]) -> Group {
        Group {
            turn,
            owner,
            length: u8::try_from(key.len()).unwrap_or(u8::MAX),
            address: u128::from_be_bytes(first_bytes(key)),
            protocol: 0,
            port: 0,
        }
    }
}

fn to_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The first `N` bytes, padded with zeros.
pub(super) fn first_bytes<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or_else(|| {
        let mut first = [0; N];
        first[..bytes.len()].copy_from_slice(bytes);
        first
    })
}
