//! Frontends with affinity whose clients found no room: packets write them down, and this reads it.

use std::collections::BTreeSet;
use std::time::Duration;

use dataplane::{Family, FrontendKey};
use netlink::nf_tables::{Bytes, ElementData};
use netlink::{ObserveError, OpenError, Socket};
use rustix::io::Errno;

use crate::layout::{self, Keyed, TABLE};

/// For how long a frontend stays written down after a client of it has found no room.
pub const CROWDED: Duration = Duration::from_mins(10);

/// Reads which frontends these are, through a socket that stays open: to close one delays commits
/// ([`FlowSocket`](netlink::conntrack::FlowSocket)).
#[derive(Debug, Default)]
pub struct Crowded {
    socket: Option<Socket>,
}

/// Why it is not known which frontends these are.
#[derive(Debug, thiserror::Error)]
pub enum CrowdedError {
    /// No way to the kernel.
    #[error("failed to open a socket to the kernel")]
    Open(#[source] OpenError),
    /// The kernel does not say.
    #[error("failed to find frontends without room for new clients")]
    Observe(#[source] ObserveError),
}

// === impl Crowded ===

impl Crowded {
    /// The frontends in this thread's network namespace, always the same one, that had no room for a new
    /// client within [`CROWDED`]. Costs four listings, each of 1,024 elements at the most. Where no table
    /// of ours is, there are none.
    pub fn observe(&mut self) -> Result<BTreeSet<FrontendKey>, CrowdedError> {
        let socket = match &mut self.socket {
            Some(socket) => socket,
            None => self
                .socket
                .insert(Socket::open().map_err(CrowdedError::Open)?),
        };
        let mut crowded = BTreeSet::new();
        for family in Family::ALL {
            for keyed in Keyed::ALL {
                let elements = elements(socket, family, keyed).map_err(CrowdedError::Observe)?;
                let keys = elements.iter().map(|(key, _)| key.as_slice());
                crowded.extend(keys.filter_map(|key| layout::parse_frontend(family, keyed, key)));
            }
        }
        Ok(crowded)
    }
}

fn elements(
    socket: &mut Socket,
    family: Family,
    keyed: Keyed,
) -> Result<Vec<(Bytes, ElementData)>, ObserveError> {
    let set = keyed.crowded().as_str();
    match socket.observe_elements(family, TABLE, set) {
        Err(ObserveError::Refused { source, .. })
            if Errno::from_io_error(&source) == Some(Errno::NOENT) =>
        {
            Ok(Vec::new())
        }
        elements => elements,
    }
}
