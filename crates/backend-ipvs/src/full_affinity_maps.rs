//! Frontends with full affinity maps: those with affinity whose new clients found no free entry. Packets record the
//! marks of their virtual servers.

use std::collections::BTreeSet;
use std::sync::Arc;

use dataplane::{Affinity, Dataplane, Family, Frontend, FrontendKey};
use netlink::nf_tables::{Bytes, ElementData};
use nftables_model::{FullAffinityMapError, FullAffinityMapSocket};

use crate::layout::{SetName, TABLE};
use crate::missing_schedulers::MissingSchedulers;
use crate::plan::ServicePlan;

/// Returns the frontends of `desired` that had no free entry for a new client within
/// [`FULL_AFFINITY_MAP_TIMEOUT`](nftables_model::FULL_AFFINITY_MAP_TIMEOUT). Costs two dumps of at most 1,024 elements each and, for
/// each family that has any, one of the owners of all marks. Empty if the mode has no table.
pub fn observe_full_affinity_maps(
    socket: &mut FullAffinityMapSocket,
    desired: &Dataplane,
) -> Result<BTreeSet<FrontendKey>, FullAffinityMapError> {
    let mut frontends = BTreeSet::new();
    for family in Family::ALL {
        let full = socket.observe(family, TABLE, SetName::FullAffinityMaps.as_str())?;
        let marks: BTreeSet<Bytes> = full.into_iter().map(|(mark, _)| mark).collect();
        if !marks.is_empty() {
            let owners = socket.observe(family, TABLE, SetName::Owners.as_str())?;
            let owners = owners.into_iter().filter(|(mark, _)| marks.contains(mark));
            frontends.extend(find(family, desired, owners));
        }
    }
    Ok(frontends)
}

/// Finds the frontends of `desired` whose virtual servers have these `owners`, the elements of
/// [`SetName::Owners`]. Plans the Services that have affinity: no other ones are recorded.
pub(crate) fn find(
    family: Family,
    desired: &Dataplane,
    owners: impl Iterator<Item = (Bytes, ElementData)>,
) -> Vec<FrontendKey> {
    let hashes = owners.filter_map(|(_, data)| match data {
        ElementData::Value(hash) => Some(hash),
        _ => None,
    });
    let hashes: BTreeSet<Bytes> = hashes.collect();
    let remembers = |(key, frontend): &(FrontendKey, Arc<Frontend>)| {
        key.family() == family && frontend.affinity != Affinity::None
    };
    let services = desired.services().iter();
    let services = services.filter(|(_, rules)| rules.frontends.iter().any(remembers));
    // Owners do not depend on the schedulers that are used.
    let missing = MissingSchedulers::default();
    let plans = services.map(|(service, _)| ServicePlan::of(desired, service, family, &missing));
    let frontends = plans.flat_map(|plan| plan.frontends);
    let full = frontends.filter(|plan| {
        let mut owners = plan.leads.iter().map(|(_, owner)| owner);
        owners.any(|owner| hashes.contains(&owner.hash()))
    });
    full.map(|plan| plan.key).collect()
}
