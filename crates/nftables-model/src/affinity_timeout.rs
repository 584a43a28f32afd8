//! For how long a client is remembered.
//!
//! The kernel has the timeout of an entry that packets write as a constant of the rule
//! (`NFTA_DYNSET_TIMEOUT`), so each timeout needs chains. A user may ask for 86,400 of them, and each
//! change of any Service that needs another chain costs as much as there are chains.

use std::time::Duration;

/// A timeout of session affinity that may have chains: one of [`AffinityTimeout::COUNT`] values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AffinityTimeout(u32);

/// The scale: up to which value, in seconds, and the step between the values up to there. No step is
/// longer than a twentieth of what it rounds and a second, and each last value is a multiple of the
/// next step.
const STEPS: [(u32, u32); 10] = [
    (60, 1),
    (120, 3),
    (300, 6),
    (600, 15),
    (1_200, 30),
    (3_600, 60),
    (7_200, 180),
    (18_000, 300),
    (36_000, 900),
    (LONGEST, 1_800),
];

/// A day, the most that Kubernetes allows.
const LONGEST: u32 = 86_400;

// === impl AffinityTimeout ===

impl AffinityTimeout {
    /// How many there are from one second to a day.
    pub const COUNT: usize = 294;

    /// The shortest one that is no shorter than `requested`, which is at most a day: up to 5 % longer.
    /// Exact up to a minute, for whole minutes up to an hour, and for whole hours.
    pub fn covering(requested: Duration) -> AffinityTimeout {
        let seconds = requested.as_secs().min(LONGEST.into());
        let seconds = u32::try_from(seconds).unwrap_or(LONGEST);
        let mut steps = STEPS.into_iter();
        let step = steps.find(|(end, _)| seconds <= *end);
        AffinityTimeout(step.map_or(LONGEST, |(_, step)| seconds.next_multiple_of(step)))
    }

    /// In seconds.
    pub fn seconds(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(requested: u32) -> u32 {
        AffinityTimeout::covering(Duration::from_secs(requested.into())).seconds()
    }

    /// Failure story T456, for every timeout that the API server accepts.
    #[test]
    fn t456_a_timeout_is_rounded_up_by_less_than_a_twentieth_to_one_of_few() {
        let mut values = vec![];
        for requested in 1..=LONGEST {
            let rounded = seconds(requested);
            assert!(rounded >= requested, "{requested} s became {rounded}");
            assert!(rounded <= LONGEST, "{requested} s became {rounded}");
            let longer = rounded - requested;
            assert!(longer * 20 < requested, "{requested} s became {rounded}");
            assert_eq!(seconds(rounded), rounded, "it is one of the values");
            assert!(values.last() <= Some(&rounded), "a longer one is no less");
            if values.last() != Some(&rounded) {
                values.push(rounded);
            }
        }
        assert_eq!(values.len(), AffinityTimeout::COUNT);
    }

    #[test]
    fn usual_timeouts_are_exact() {
        let minutes = (1..=60).map(|minutes| minutes * 60);
        let hours = (1..=24).map(|hours| hours * 3_600);
        for usual in (1..=60).chain(minutes).chain(hours).chain([90, 5_400]) {
            assert_eq!(seconds(usual), usual);
        }
        assert_eq!([61, 86_399, u32::MAX].map(seconds), [63, LONGEST, LONGEST]);
    }
}
