//! Maps in which packets record that affinity has no room for another client.

use std::time::Duration;

use dataplane::Family;
use netlink::nf_tables::{Bytes, ElementData};
use netlink::{ObserveError, OpenError, Socket};
use rustix::io::Errno;

/// For how long a record stays after a client found no free entry.
pub const FULL_AFFINITY_MAP_TIMEOUT: Duration = Duration::from_mins(10);

/// Reads such maps through a socket that stays open: closing one delays commits
/// ([`FlowSocket`](netlink::conntrack::FlowSocket)).
#[derive(Debug, Default)]
pub struct FullAffinityMapSocket(Option<Socket>);

/// Why the records could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FullAffinityMapError {
    /// The socket could not be opened.
    #[error("failed to open a socket to the kernel")]
    Open(#[source] OpenError),
    /// The kernel could not be read.
    #[error("failed to find frontends without room for new clients")]
    Observe(#[source] ObserveError),
}

// === impl FullAffinityMapSocket ===

impl FullAffinityMapSocket {
    /// Returns the elements of a set in this thread's network namespace, which must always be the
    /// same one. Empty if there is no such set.
    pub fn observe(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
    ) -> Result<Vec<(Bytes, ElementData)>, FullAffinityMapError> {
        let socket = match &mut self.0 {
            Some(socket) => socket,
            None => self
                .0
                .insert(Socket::open().map_err(FullAffinityMapError::Open)?),
        };
        match socket.observe_elements(family, table, set) {
            Err(ObserveError::Refused { source, .. })
                if Errno::from_io_error(&source) == Some(Errno::NOENT) =>
            {
                Ok(Vec::new())
            }
            elements => elements.map_err(FullAffinityMapError::Observe),
        }
    }
}
