//! Source ranges: which clients may connect to a load-balancer IP.

use dataplane::Family;
use nftables_model::ChainWithRules;

use crate::layout::SetName;

/// Looks up the source in the sets of `lengths`, longest first, and drops packets that none
/// contains.
pub(crate) fn allow_sources(
    family: Family,
    lengths: impl DoubleEndedIterator<Item = u8>,
) -> ChainWithRules {
    let set_of = |bits| SetName::Sources(bits).as_str();
    nftables_model::allow_sources(family, lengths, set_of)
}
