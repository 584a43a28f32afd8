//! The elements that are written before all others.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::net::IpAddr;

use dataplane::{FrontendKey, Hairpin, Port, Precedence, Protocol};

use netlink::nf_tables::Bytes;

use crate::layout;
use crate::table::Table;

/// Finds the elements that come first.
pub(super) struct First<'a> {
    desired: &'a Table,
    /// The addresses of frontends that come first. All frontends at such an address come first: it
    /// becomes a cluster IP with them.
    addresses: BTreeSet<IpAddr>,
    /// The node ports that come first. Frontends with the same protocol and port at any address
    /// come first, too: otherwise the node port would take packets to those at the node's own
    /// addresses.
    node_ports: BTreeSet<(Protocol, Port)>,
    /// The hairpins that come first. Computed on demand: few changes need them, and they cost a
    /// lookup for each endpoint.
    hairpins: OnceCell<BTreeSet<Bytes>>,
}

// === impl First ===

impl<'a> First<'a> {
    pub(super) fn of(desired: &'a Table) -> First<'a> {
        let addresses = desired.first.iter().filter_map(|key| match key {
            FrontendKey::Address { address, .. } => Some(*address),
            FrontendKey::NodePort { .. } => None,
        });
        let node_ports = desired.first.iter().filter_map(|key| match key {
            FrontendKey::Address { .. } => None,
            FrontendKey::NodePort { protocol, port, .. } => Some((*protocol, *port)),
        });
        First {
            desired,
            addresses: addresses.collect(),
            node_ports: node_ports.collect(),
            hairpins: OnceCell::new(),
        }
    }

    pub(super) fn turn_of(&self, frontend: &FrontendKey) -> Precedence {
        match frontend {
            FrontendKey::Address { address, .. } => {
                let number = (frontend.protocol(), frontend.port());
                turn(self.addresses.contains(address) || self.node_ports.contains(&number))
            }
            FrontendKey::NodePort { .. } => turn(self.desired.first.contains(frontend)),
        }
    }

    pub(super) fn turn_at(&self, address: IpAddr) -> Precedence {
        turn(self.addresses.contains(&address))
    }

    pub(super) fn turn_of_hairpin(&self, key: &Bytes) -> Precedence {
        let hairpins = self.hairpins.get_or_init(|| hairpins(self.desired));
        turn(hairpins.contains(key))
    }
}

fn turn(is_first: bool) -> Precedence {
    match is_first {
        true => Precedence::First,
        false => Precedence::Ordinary,
    }
}

/// The keys of the hairpins that endpoints of the first frontends may have.
fn hairpins(desired: &Table) -> BTreeSet<Bytes> {
    let keys = desired.first.iter().flat_map(|key| {
        desired.targets(key).into_iter().map(|target| {
            let hairpin = Hairpin {
                address: target.address,
                protocol: key.protocol(),
                port: target.port,
            };
            layout::hairpin(&hairpin)
        })
    });
    keys.collect()
}
