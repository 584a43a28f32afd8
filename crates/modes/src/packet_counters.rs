//! The packets that the rules of all modes have counted.

use std::collections::BTreeMap;

use dataplane::{Family, Mode};
use nftables_model::{CountedRule, PacketCountError};

use super::list::LIST;

/// Reads from the kernel how many packets Signpost's rules have counted.
#[derive(Debug, Default)]
pub struct PacketCounters(nftables_model::PacketCounters);

// === impl PacketCounters ===

impl PacketCounters {
    /// Returns what each rule of a family has counted, in this thread's network namespace, which must
    /// always be the same one: those of two modes during a switch. A rule counts from the time at which
    /// its chain was last written. Empty if no rule counts, or another version has written the
    /// rules. Costs about ten requests of a few rules each.
    pub fn observe(
        &mut self,
        family: Family,
    ) -> Result<BTreeMap<(Mode, CountedRule), u64>, PacketCountError> {
        let mut packets = BTreeMap::new();
        for entry in &LIST {
            let Some((table, rules)) = entry.counted else {
                continue;
            };
            let counts = self.0.observe(family, table, rules)?.unwrap_or_default();
            let counts = counts.into_iter();
            packets.extend(counts.map(|(rule, count)| ((entry.mode, rule), count)));
        }
        Ok(packets)
    }
}
