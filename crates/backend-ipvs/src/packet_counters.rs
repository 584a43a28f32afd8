//! The packets that the rules of the mode's table count.

use dataplane::Family;
use nftables_model::{PacketCountError, PacketCounts};

use crate::chains::COUNTED;
use crate::layout::TABLE;

/// Reads how many packets the rules have counted.
#[derive(Debug, Default)]
pub struct PacketCounters(nftables_model::PacketCounters);

// === impl PacketCounters ===

impl PacketCounters {
    /// Returns the packets refused since the mode's table was created, in this thread's network
    /// namespace, which must always be the same one; fewer where a chain has been written again
    /// since. `None` if there is no table, or another version has written it. Costs seven dumps of a
    /// few rules.
    pub fn observe(&mut self, family: Family) -> Result<Option<PacketCounts>, PacketCountError> {
        self.0.observe(family, TABLE, &COUNTED)
    }
}
