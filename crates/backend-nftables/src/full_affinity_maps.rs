//! Crowded frontends: those with affinity whose new clients found no free entry. Packets record
//! them.

use std::collections::BTreeSet;

use dataplane::{Family, FrontendKey};
use nftables_model::{CrowdedError, CrowdedSocket};

use crate::layout::{self, Keyed, TABLE};

/// Reads the crowded frontends.
#[derive(Debug, Default)]
pub struct FullAffinityMaps(CrowdedSocket);

// === impl FullAffinityMaps ===

impl FullAffinityMaps {
    /// Returns the frontends that had no free entry for a new client within
    /// [`CROWDED`](crate::CROWDED), in this thread's network namespace, which must always be the
    /// same one. Costs four dumps of at most 1,024 elements each. Empty if Signpost has no table.
    pub fn observe(&mut self) -> Result<BTreeSet<FrontendKey>, CrowdedError> {
        let mut full_affinity_maps = BTreeSet::new();
        for family in Family::ALL {
            for keyed in Keyed::ALL {
                let set = keyed.full_affinity_maps().as_str();
                let elements = self.0.observe(family, TABLE, set)?;
                let keys = elements.iter().map(|(key, _)| key.as_slice());
                full_affinity_maps
                    .extend(keys.filter_map(|key| layout::parse_frontend(family, keyed, key)));
            }
        }
        Ok(full_affinity_maps)
    }
}
