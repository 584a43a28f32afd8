//! Where the two are meant to differ.

use super::Difference;
use super::case::Front;
use super::configuration::Configuration;
use super::population::Service;
use super::sight::Seen;

/// A difference that is on purpose, and who says so.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedDifference {
    /// The first cell of its row in `docs/parity.md`.
    pub row: &'static str,
    /// Where it shows, and how: as little as is true.
    pub shows: fn(&Difference, &Service, Configuration) -> bool,
}

/// All of them. Whatever else differs is a mistake of ours.
pub const EXPECTED_DIFFERENCES: &[ExpectedDifference] = &[ExpectedDifference {
    row: "session affinity",
    shows: |difference, _, _| {
        difference.case.front == Front::ClusterIpThenNodePort
            && difference.ours.0.contains(&Seen::Unsteady)
    },
}];
