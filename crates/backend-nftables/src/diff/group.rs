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
    /// No frontend: only elements of one key belong together, which is for a
    /// [`Step`](super::Step) to tell.
    Nobody,
    /// A frontend at an address.
    Address,
    /// A node port.
    NodePort,
}

// === impl Group ===

impl Group {
    pub(super) fn of_frontend(turn: Precedence, frontend: &FrontendKey) -> Group {
        let (owner, address) = match frontend {
            FrontendKey::NodePort { .. } => (Owner::NodePort, 0),
            FrontendKey::Address { address, .. } => {
                let address = match address {
                    IpAddr::V4(address) => address.to_bits().into(),
                    IpAddr::V6(address) => address.to_bits(),
                };
                (Owner::Address, address)
            }
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

    /// In the order of the keys, as far as a group can tell: the shorter come first.
    pub(super) fn of_key(turn: Precedence, key: &[u8]) -> Group {
        Group {
            turn,
            owner: Owner::Nobody,
            length: u8::try_from(key.len()).unwrap_or(u8::MAX),
            address: u128::from_be_bytes(first_bytes(key)),
            protocol: 0,
            port: 0,
        }
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
