//! Who may connect to a load-balancer IP.

use dataplane::Family;
use nftables_model::ChainWithRules;

use crate::layout::SetName;

/// The chain that lets through who may connect.
pub(crate) const ALLOW_SOURCES: &str = "allow-sources";

/// Looks a source up in the sets of `lengths`, the longest first, and drops what is in none.
pub(crate) fn allow_sources(
    family: Family,
    lengths: impl DoubleEndedIterator<Item = u8>,
) -> ChainWithRules {
    let set_of = |bits| SetName::Sources(bits).as_str();
    nftables_model::allow_sources(family, ALLOW_SOURCES, lengths, set_of)
}
