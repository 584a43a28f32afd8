//! Frontends with full affinity maps: those with affinity whose new clients found no free entry. Packets record
//! them.

use std::collections::BTreeSet;

use dataplane::{Dataplane, Family, FrontendKey};
use nftables_model::{FullAffinityMapError, FullAffinityMapSocket};

use crate::layout::{self, Keyed, TABLE};

/// Returns the frontends that had no free entry for a new client within
/// [`FULL_AFFINITY_MAP_TIMEOUT`](nftables_model::FULL_AFFINITY_MAP_TIMEOUT), and those that the kernel names although the desired state
/// no longer has them. Costs four dumps of at most 1,024 elements each. Empty if Signpost has no
/// table.
pub fn observe_full_affinity_maps(
    socket: &mut FullAffinityMapSocket,
    _desired: &Dataplane,
) -> Result<BTreeSet<FrontendKey>, FullAffinityMapError> {
    let mut frontends = BTreeSet::new();
    for family in Family::ALL {
        for keyed in Keyed::ALL {
            let set = keyed.full_affinity_maps().as_str();
            let elements = socket.observe(family, TABLE, set)?;
            let keys = elements.iter().map(|(key, _)| key.as_slice());
            frontends.extend(keys.filter_map(|key| layout::parse_frontend(family, keyed, key)));
        }
    }
    Ok(frontends)
}
