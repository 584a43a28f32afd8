//! Frontends with session affinity that have no room for new clients, in all modes.

use std::collections::BTreeSet;

use dataplane::{Dataplane, FrontendKey};
use nftables_model::{FullAffinityMapError, FullAffinityMapSocket};

use super::list::LIST;

/// Reads from the kernel which frontends with session affinity have no room for new clients.
/// Mode iptables does not record them.
#[derive(Debug, Default)]
pub struct FullAffinityMaps(FullAffinityMapSocket);

// === impl FullAffinityMaps ===

impl FullAffinityMaps {
    /// Returns the frontends of `desired` that had no free entry for a new client within
    /// [`FULL_AFFINITY_MAP_TIMEOUT`](nftables_model::FULL_AFFINITY_MAP_TIMEOUT), and those that the kernel names although `desired` does not
    /// have them, in this thread's network namespace, which must always be the same one.
    pub fn observe(
        &mut self,
        desired: &Dataplane,
    ) -> Result<BTreeSet<FrontendKey>, FullAffinityMapError> {
        let mut frontends = BTreeSet::new();
        for observe in LIST
            .iter()
            .filter_map(|entry| entry.observe_full_affinity_maps)
        {
            frontends.extend(observe(&mut self.0, desired)?);
        }
        Ok(frontends)
    }
}
