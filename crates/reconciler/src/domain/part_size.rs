//! How much of a large change the next sync programs, adapted to how long the last one took.

use std::time::Duration;

use dataplane::{ChunkSize, Turn};

/// The smallest part, in percent of a chunk. Smaller parts do not reduce the fixed cost of a sync:
/// in mode iptables parts of a fifth took four times as long in total.
const LEAST: usize = 50;

/// How much of a large change the next sync programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartSize {
    /// In percent of a chunk.
    percent: usize,
    /// What the next part consists of.
    turn: Turn,
    /// How long recent syncs took that programmed only small changes. Every other sync halves it,
    /// so that a slow kernel gets another chance.
    small: Duration,
}

impl Default for PartSize {
    fn default() -> PartSize {
        PartSize {
            percent: 100,
            turn: Turn::default(),
            small: Duration::ZERO,
        }
    }
}

// === impl PartSize ===

impl PartSize {
    /// The size of a part for a backend with chunks of this size.
    pub(super) fn size(&self, chunk: ChunkSize) -> ChunkSize {
        chunk.percent(self.percent)
    }

    /// What the next part may consist of.
    pub(super) fn turn(&self) -> Turn {
        self.turn
    }

    /// Adapts to a sync that took `took` and programmed either only small changes or a part of the
    /// large ones, where a part should take no more than `longest`. Small changes and parts of
    /// large ones alternate. If a sync for small changes takes nearly as long as a part, both are
    /// programmed together.
    pub(super) fn follow(&mut self, programmed: Turn, took: Duration, longest: Duration) {
        match programmed {
            Turn::Small => {
                self.small = took;
                self.turn = Turn::Large;
            }
            Turn::Large => {
                self.small /= 2;
                self.turn = match self.small > longest / 4 {
                    true => Turn::Large,
                    false => Turn::Small,
                };
                self.percent = match took {
                    took if took > longest => (self.percent / 2).max(LEAST),
                    took if took < longest / 3 * 2 => (self.percent * 2).min(100),
                    _ => self.percent,
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_millis(40);

    fn after(syncs: &[(Turn, u64)]) -> PartSize {
        let mut part_size = PartSize::default();
        for (programmed, millis) in syncs {
            part_size.follow(*programmed, Duration::from_millis(*millis), LONGEST);
        }
        part_size
    }

    #[test]
    fn t94_parts_that_take_long_become_smaller_and_larger_again() {
        let of_1000 = |syncs| after(syncs).size(ChunkSize::new(1000));
        assert_eq!(of_1000(&[]), ChunkSize::new(1000));
        assert_eq!(of_1000(&[(Turn::Large, 41)]), ChunkSize::new(500));
        assert_eq!(of_1000(&[(Turn::Large, 400); 9]), ChunkSize::new(500));
        let recovered = [(Turn::Large, 41), (Turn::Large, 30), (Turn::Large, 19)];
        assert_eq!(of_1000(&recovered[..2]), ChunkSize::new(500));
        assert_eq!(of_1000(&recovered), ChunkSize::new(1000));
    }

    #[test]
    fn t94_small_changes_and_parts_of_large_ones_take_turns() {
        assert_eq!(after(&[]).turn(), Turn::Small);
        assert_eq!(after(&[(Turn::Small, 1)]).turn(), Turn::Large);
        assert_eq!(
            after(&[(Turn::Small, 1), (Turn::Large, 40)]).turn(),
            Turn::Small
        );
    }

    #[test]
    fn where_a_small_change_takes_as_long_as_a_part_they_go_together() {
        let mut syncs = vec![(Turn::Small, 30), (Turn::Large, 40)];
        assert_eq!(after(&syncs).turn(), Turn::Large);
        syncs.push((Turn::Large, 40));
        assert_eq!(after(&syncs).turn(), Turn::Small, "it is tried again");
    }
}
