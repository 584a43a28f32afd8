//! In which order elements are written, and which of them together.

use std::net::IpAddr;

use dataplane::{FrontendKey, Precedence};

/// What belongs together is equal in this, and groups are written in its order. One family has room
/// in it. Numbers and not a [`FrontendKey`], and no key that lies elsewhere: a start makes a million
/// comparisons.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    pub(super) turn: Precedence,
    pub(super) owner: Owner,
    /// The length of the key of what is no frontend's.
    length: u8,
    /// The address of a frontend, or the first bytes of the key of what is none's.
    address: u128,
    protocol: u8,
    port: u16,
}

/// What sort of thing an element belongs to. In this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// No frontend, and frontends rely on it: a number, the hairpin of an endpoint. Only elements of
    /// one key belong together, which is for a [`Step`](super::Step) to tell.
    Before,
    /// A frontend at an address, or the address itself.
    Address,
    /// A node port.
    NodePort,
    /// As `Before`, and frontends relied on it: it goes when they are gone.
    After,
}

// === impl Group ===

impl Group {
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

    /// Ahead of every frontend at `address`. No protocol of a frontend has this number.
    pub(super) fn ahead_of_address(turn: Precedence, address: IpAddr) -> Group {
        Group {
            turn,
            owner: Owner::Address,
            length: 0,
            address: to_bits(address),
            protocol: u8::MIN,
            port: u16::MIN,
        }
    }

    /// Behind every frontend at `address`. No protocol of a frontend has this number.
    pub(super) fn behind_address(turn: Precedence, address: IpAddr) -> Group {
        Group {
            protocol: u8::MAX,
            port: u16::MAX,
            ..Group::ahead_of_address(turn, address)
        }
    }

    /// In the order of the keys, as far as a group can tell: the shorter come first.
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

/// The first `N` bytes, with zeros behind them where there are fewer.
pub(super) fn first_bytes<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or_else(|| {
        let mut first = [0; N];
        first[..bytes.len()].copy_from_slice(bytes);
        first
    })
}
