//! A count over counters of the kernel that begin again at 0.

use std::collections::BTreeMap;

/// How much some counters have counted, by key, from one reading to the next. The kernel's counters
/// begin again when their rule is written again, and end with their table: Prometheus takes a sum
/// that falls for a process that started again, and counts the rest of it a second time.
#[derive(Debug)]
pub(super) struct MonotonicCount<K> {
    last: BTreeMap<K, u64>,
    count: u64,
}

// === impl MonotonicCount ===

impl<K: Ord> MonotonicCount<K> {
    /// Begins at 0 with counters that have counted before.
    pub(super) fn begin(reading: BTreeMap<K, u64>) -> MonotonicCount<K> {
        MonotonicCount {
            last: reading,
            count: 0,
        }
    }

    /// Adds what the counters have counted since the reading before. A counter that is new, or lower
    /// than before, began at 0 since then.
    pub(super) fn add(&mut self, reading: BTreeMap<K, u64>) {
        let counted = reading.iter().map(|(key, now)| {
            let before = self.last.get(key).copied().unwrap_or_default();
            now.checked_sub(before).unwrap_or(*now)
        });
        self.count += counted.sum::<u64>();
        self.last = reading;
    }

    /// Returns the count.
    pub(super) fn current(&self) -> u64 {
        self.count
    }
}

impl<K> Default for MonotonicCount<K> {
    fn default() -> MonotonicCount<K> {
        MonotonicCount {
            last: BTreeMap::new(),
            count: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the count after each reading but the first, from which it begins.
    fn counts<const N: usize>(readings: [&[(&'static str, u64)]; N]) -> Vec<u64> {
        let mut readings = readings
            .iter()
            .map(|reading| reading.iter().copied().collect());
        let mut count = MonotonicCount::begin(readings.next().expect("a test has one"));
        let mut counts = Vec::new();
        for reading in readings {
            count.add(reading);
            counts.push(count.current());
        }
        counts
    }

    #[test]
    fn t229_a_table_that_takes_over_from_another_neither_lowers_nor_repeats_a_count() {
        let switch = counts([
            &[("nftables", 10_000)],
            &[("nftables", 10_001)],
            &[("nftables", 10_002), ("ipvs", 3)],
            &[("ipvs", 5)],
            &[],
            &[("nftables", 2)],
        ]);
        assert_eq!(switch, [1, 5, 7, 7, 9]);
    }

    #[test]
    fn t229_one_of_two_chains_that_is_written_again_does_not_repeat_the_other() {
        let written_again = counts([
            &[("refuse", 100), ("nodeport-refuse", 50)],
            &[("refuse", 0), ("nodeport-refuse", 50)],
            &[("refuse", 2), ("nodeport-refuse", 51)],
        ]);
        assert_eq!(written_again, [0, 3]);
    }
}
