//! How much of a large change the next sync programs, adapted to how long the last one took.

use std::time::Duration;

use dataplane::{PartContents, PartSize};

/// The smallest part, in percent of a part. Smaller parts do not reduce the fixed cost of a sync:
/// in mode iptables parts of a fifth took four times as long in total.
const LEAST: usize = 50;

/// How much of a large change the next sync programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AdaptivePartSize {
    /// In percent of a part.
    percent: usize,
    /// What the next part consists of.
    contents: PartContents,
    /// How long recent syncs took that programmed only small changes. Every other sync halves it,
    /// so that a slow kernel gets another chance.
    small: Duration,
}

impl Default for AdaptivePartSize {
    fn default() -> AdaptivePartSize {
        AdaptivePartSize {
            percent: 100,
            contents: PartContents::default(),
            small: Duration::ZERO,
        }
    }
}

// === impl AdaptivePartSize ===

impl AdaptivePartSize {
    /// The size of a part for a backend with parts of this size.
    pub(super) fn size(&self, part: PartSize) -> PartSize {
        part.percent(self.percent)
    }

    /// What the next part may consist of.
    pub(super) fn contents(&self) -> PartContents {
        self.contents
    }

    /// Adapts to a sync that took `took` and programmed either only small changes or a part of the
    /// large ones, where a part should take no more than `longest`. Small changes and parts of
    /// large ones alternate. If a sync for small changes takes nearly as long as a part, both are
    /// programmed together.
    pub(super) fn follow(&mut self, programmed: PartContents, took: Duration, longest: Duration) {
        match programmed {
            PartContents::Small => {
                self.small = took;
                self.contents = PartContents::Large;
            }
            PartContents::Large => {
                self.small /= 2;
                self.contents = match self.small > longest / 4 {
                    true => PartContents::Large,
                    false => PartContents::Small,
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

    fn after(syncs: &[(PartContents, u64)]) -> AdaptivePartSize {
        let mut part_size = AdaptivePartSize::default();
        for (programmed, millis) in syncs {
            part_size.follow(*programmed, Duration::from_millis(*millis), LONGEST);
        }
        part_size
    }

    #[test]
    fn t94_parts_that_take_long_become_smaller_and_larger_again() {
        let of_1000 = |syncs| after(syncs).size(PartSize::new(1000));
        assert_eq!(of_1000(&[]), PartSize::new(1000));
        assert_eq!(of_1000(&[(PartContents::Large, 41)]), PartSize::new(500));
        assert_eq!(
            of_1000(&[(PartContents::Large, 400); 9]),
            PartSize::new(500)
        );
        let recovered = [
            (PartContents::Large, 41),
            (PartContents::Large, 30),
            (PartContents::Large, 19),
        ];
        assert_eq!(of_1000(&recovered[..2]), PartSize::new(500));
        assert_eq!(of_1000(&recovered), PartSize::new(1000));
    }

    #[test]
    fn t94_small_changes_and_parts_of_large_ones_take_turns() {
        assert_eq!(after(&[]).contents(), PartContents::Small);
        assert_eq!(
            after(&[(PartContents::Small, 1)]).contents(),
            PartContents::Large
        );
        assert_eq!(
            after(&[(PartContents::Small, 1), (PartContents::Large, 40)]).contents(),
            PartContents::Small
        );
    }

    #[test]
    fn where_a_small_change_takes_as_long_as_a_part_they_go_together() {
        let mut syncs = vec![(PartContents::Small, 30), (PartContents::Large, 40)];
        assert_eq!(after(&syncs).contents(), PartContents::Large);
        syncs.push((PartContents::Large, 40));
        assert_eq!(
            after(&syncs).contents(),
            PartContents::Small,
            "it is tried again"
        );
    }
}
