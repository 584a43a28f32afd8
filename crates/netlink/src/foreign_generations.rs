//! The ruleset generations that other programs' transactions began, as far as the kernel notified.

use std::collections::{BTreeSet, VecDeque};

use crate::nf_tables::Family;

/// The number of entries kept. A query for more finds some missing, so its caller reads the table;
/// that costs less than counting the changes of a program that changes its own rules a thousand
/// times a second.
const KEPT: usize = 4096;

/// Transactions of other programs, oldest first. A listener adds them; Signpost consults them to
/// decide whether to list a table.
#[derive(Debug, Default)]
pub struct ForeignGenerations(VecDeque<Entry>);

/// One transaction of another program.
#[derive(Debug)]
struct Entry {
    generation: u32,
    touched: BTreeSet<Family>,
}

// === impl ForeignGenerations ===

impl ForeignGenerations {
    /// Records that the transaction which began `generation` changed Signpost's objects in these
    /// families.
    pub fn add(&mut self, generation: u32, touched: BTreeSet<Family>) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(Entry {
            generation,
            touched,
        });
    }

    /// The number of generations after `after`, up to and including `until`, that other programs
    /// are known to have begun without changing Signpost's objects in `family`.
    pub fn elsewhere(&self, family: Family, after: u32, until: u32) -> u32 {
        let all = until.wrapping_sub(after);
        let elsewhere = self.0.iter().filter(|entry| {
            let number = entry.generation.wrapping_sub(after);
            (1..=all).contains(&number) && !entry.touched.contains(&family)
        });
        // There are at most `KEPT`.
        u32::try_from(elsewhere.count()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_went_elsewhere_in_the_interval_counts() {
        let mut foreign_generations = ForeignGenerations::default();
        // Generation numbers wrap around.
        foreign_generations.add(u32::MAX - 1, BTreeSet::new());
        foreign_generations.add(u32::MAX, BTreeSet::new());
        foreign_generations.add(1, BTreeSet::from([Family::Ipv4]));
        foreign_generations.add(2, BTreeSet::new());
        foreign_generations.add(3, BTreeSet::new());
        assert_eq!(
            foreign_generations.elsewhere(Family::Ipv4, u32::MAX - 1, 2),
            2
        );
        assert_eq!(
            foreign_generations.elsewhere(Family::Ipv6, u32::MAX - 1, 2),
            3
        );
        assert_eq!(foreign_generations.elsewhere(Family::Ipv6, 3, 3), 0);
    }

    #[test]
    fn it_does_not_grow_without_end() {
        let mut foreign_generations = ForeignGenerations::default();
        for generation in 0..10_000 {
            foreign_generations.add(generation, BTreeSet::new());
        }
        assert_eq!(foreign_generations.elsewhere(Family::Ipv4, 0, 10_000), 4096);
    }
}
