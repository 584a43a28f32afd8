//! Crowded frontends: those with affinity whose new clients found no free entry. Packets record
//! them.

use std::collections::BTreeSet;
use std::time::Duration;

use dataplane::{Family, FrontendKey};
use netlink::nf_tables::{Bytes, ElementData};
use netlink::{ObserveError, OpenError, Socket};
use rustix::io::Errno;

use crate::layout::{self, Keyed, TABLE};

/// For how long a frontend stays recorded after a client found no free entry.
pub const CROWDED: Duration = Duration::from_mins(10);

/// Reads the crowded frontends through a socket that stays open: closing one delays commits
/// ([`FlowSocket`](netlink::conntrack::FlowSocket)).
#[derive(Debug, Default)]
pub struct FullAffinityMaps {
    socket: Option<Socket>,
}

/// Why the crowded frontends could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CrowdedError {
    /// The socket could not be opened.
    #[error("failed to open a socket to the kernel")]
    Open(#[source] OpenError),
    /// The kernel could not be read.
    #[error("failed to find frontends without room for new clients")]
    Observe(#[source] ObserveError),
}

// === impl FullAffinityMaps ===

impl FullAffinityMaps {
    /// Returns the frontends that had no free entry for a new client within [`CROWDED`], in this
    /// thread's network namespace, which must always be the same one. Costs four dumps of at most
    /// 1,024 elements each. Empty if Signpost has no table.
    pub fn observe(&mut self) -> Result<BTreeSet<FrontendKey>, CrowdedError> {
        let socket = match &mut self.socket {
            Some(socket) => socket,
            None => self
                .socket
                .insert(Socket::open().map_err(CrowdedError::Open)?),
        };
        let mut full_affinity_maps = BTreeSet::new();
        for family in Family::ALL {
            for keyed in Keyed::ALL {
                let elements = elements(socket, family, keyed).map_err(CrowdedError::Observe)?;
                let keys = elements.iter().map(|(key, _)| key.as_slice());
                full_affinity_maps
                    .extend(keys.filter_map(|key| layout::parse_frontend(family, keyed, key)));
            }
        }
        Ok(full_affinity_maps)
    }
}

fn elements(
    socket: &mut Socket,
    family: Family,
    keyed: Keyed,
) -> Result<Vec<(Bytes, ElementData)>, ObserveError> {
    let set = keyed.full_affinity_maps().as_str();
    match socket.observe_elements(family, TABLE, set) {
        Err(ObserveError::Refused { source, .. })
            if Errno::from_io_error(&source) == Some(Errno::NOENT) =>
        {
            Ok(Vec::new())
        }
        elements => elements,
    }
}
