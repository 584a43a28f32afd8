//! Destinations that IPVS refuses: operations on virtual servers take effect one by one, so they are
//! found before anything is written.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use backend::{CommitError, Effect, Recovery};
use dataplane::Family;

use super::{Connection, Ipvs};
use crate::diff::Change;

/// A destination that the kernel would refuse (`ip_vs_new_dest` in `ip_vs_ctl.c`, EINVAL).
#[derive(Debug, thiserror::Error)]
#[error("IPVS cannot use {address} as a destination: it is a broadcast address of this node")]
struct Broadcast {
    address: Ipv4Addr,
}

impl Ipvs {
    /// Fails if the change adds a destination at a broadcast address of this node. Reads these only if
    /// it adds destinations.
    pub(super) fn check_destinations(
        &self,
        connection: &mut Connection,
        change: &Change,
    ) -> Result<(), CommitError> {
        let ipv4 = |address: IpAddr| match address {
            IpAddr::V4(address) => Some(address),
            // IPv6 has no broadcast.
            IpAddr::V6(_) => None,
        };
        let added: BTreeSet<Ipv4Addr> = match self.family {
            Family::Ipv4 => change.added_destinations().filter_map(ipv4).collect(),
            Family::Ipv6 => BTreeSet::new(),
        };
        if added.is_empty() {
            return Ok(());
        }
        // Without an answer, as where addresses come and go all the time, IPVS itself refuses them.
        let Ok(refused) = connection.routes.observe_broadcast_addresses() else {
            return Ok(());
        };
        match added.intersection(&refused).next() {
            None => Ok(()),
            Some(&address) => {
                let those_services = (Recovery::Isolate, Effect::None);
                Err(self.uncommitted(those_services, Broadcast { address }))
            }
        }
    }
}
