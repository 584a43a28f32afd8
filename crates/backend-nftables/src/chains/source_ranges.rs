//! Source ranges: which clients may connect to a load-balancer IP.

use dataplane::Family;
use nftables_model::ChainWithRules;

use crate::layout::SetName;

/// The chain that drops packets from outside the source ranges.
pub(crate) const ALLOW_SOURCES: &str = "allow-sources";

/// Looks up the source in the sets of `lengths`, longest first, and drops packets that none
/// contains.
pub(crate) fn allow_sources(
    family: Family,
    lengths: impl DoubleEndedIterator<Item = u8>,
) -> ChainWithRules {
    let set_of = |bits| SetName::Sources(bits).as_str();
    nftables_model::allow_sources(family, ALLOW_SOURCES, lengths, set_of)
}
