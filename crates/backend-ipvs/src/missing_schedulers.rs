//! What takes the place of a scheduler that the kernel lacks.

use std::collections::BTreeSet;
use std::sync::Arc;

use dataplane::{Mode, Scheduler};

/// The schedulers that the kernel is known to lack. Copies share them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct MissingSchedulers(Arc<BTreeSet<Scheduler>>);

// === impl MissingSchedulers ===

impl MissingSchedulers {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, scheduler: Scheduler) -> bool {
        self.0.contains(&scheduler)
    }

    /// The scheduler of a virtual server whose Service asks for `asked`: the nearest that is not
    /// known to be missing.
    pub(crate) fn used(&self, asked: Scheduler) -> Scheduler {
        self.used_of(asked, |_| true)
    }

    /// The same, of those that `are_usable`.
    pub(crate) fn used_of(
        &self,
        asked: Scheduler,
        are_usable: impl Fn(Scheduler) -> bool,
    ) -> Scheduler {
        // The compiler has replaced schedulers that IPVS lacks, unless it compiled for another
        // mode.
        let asked = asked.nearest_in(Mode::Ipvs);
        let mut all = [asked].into_iter().chain(nearest(asked).iter().copied());
        let found = all.find(|scheduler| !self.contains(*scheduler) && are_usable(*scheduler));
        found.unwrap_or(Scheduler::RoundRobin)
    }
}

impl FromIterator<Scheduler> for MissingSchedulers {
    fn from_iter<I: IntoIterator<Item = Scheduler>>(schedulers: I) -> MissingSchedulers {
        MissingSchedulers(Arc::new(schedulers.into_iter().collect()))
    }
}

/// What comes nearest to a scheduler, the nearest first: what keeps the property for which it is
/// chosen, then what keeps a part of it. After all of these comes `rr`, without which the mode does
/// not begin.
///
/// All endpoints have the same weight, so those that differ by weight alone are equals. `dh` takes
/// the place of none: it refuses connections where its table leads to an endpoint that drains
/// (`ip_vs_dh_schedule`). Neither does `ovf`, which refuses them where all endpoints have more
/// connections than their weight (`ip_vs_ovf_schedule`), nor `fo`, which gives one endpoint
/// everything.
pub(crate) fn nearest(scheduler: Scheduler) -> &'static [Scheduler] {
    use Scheduler::{
        LeastConnection, LocalityLeastConnection, LocalityLeastConnectionReplicated, Maglev,
        NeverQueue, PowerOfTwo, ShortestExpectedDelay, SourceHash, WeightedLeastConnection,
    };
    match scheduler {
        // The client's address decides.
        Scheduler::Maglev => &[SourceHash],
        Scheduler::SourceHash => &[Maglev],
        // An endpoint with few connections.
        Scheduler::LeastConnection => &[
            WeightedLeastConnection,
            ShortestExpectedDelay,
            NeverQueue,
            PowerOfTwo,
        ],
        Scheduler::WeightedLeastConnection => &[
            LeastConnection,
            ShortestExpectedDelay,
            NeverQueue,
            PowerOfTwo,
        ],
        Scheduler::ShortestExpectedDelay => &[
            NeverQueue,
            WeightedLeastConnection,
            LeastConnection,
            PowerOfTwo,
        ],
        Scheduler::NeverQueue => &[
            ShortestExpectedDelay,
            WeightedLeastConnection,
            LeastConnection,
            PowerOfTwo,
        ],
        Scheduler::PowerOfTwo => &[
            LeastConnection,
            WeightedLeastConnection,
            ShortestExpectedDelay,
            NeverQueue,
        ],
        // One endpoint for each address, and few connections.
        Scheduler::LocalityLeastConnection => &[
            LocalityLeastConnectionReplicated,
            WeightedLeastConnection,
            LeastConnection,
        ],
        Scheduler::LocalityLeastConnectionReplicated => &[
            LocalityLeastConnection,
            WeightedLeastConnection,
            LeastConnection,
        ],
        // One endpoint for each address, else one for each client.
        Scheduler::DestinationHash => &[
            LocalityLeastConnection,
            LocalityLeastConnectionReplicated,
            SourceHash,
            Maglev,
        ],
        // One endpoint as long as it bears the load.
        Scheduler::Failover => &[LocalityLeastConnection, LocalityLeastConnectionReplicated],
        Scheduler::Overflow => &[
            LocalityLeastConnection,
            LocalityLeastConnectionReplicated,
            WeightedLeastConnection,
            LeastConnection,
        ],
        Scheduler::Random | Scheduler::RoundRobin | Scheduler::WeightedRoundRobin => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The replacements as a person reads them in docs/mode-ipvs.md.
    fn printed(scheduler: Scheduler) -> String {
        let nearest = nearest(scheduler).iter();
        let names = nearest.filter_map(|scheduler| scheduler.ipvs_name());
        names.chain(["rr"]).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn the_manual_has_the_schedulers_that_take_the_place_of_each() {
        let manual = include_str!("../../../docs/mode-ipvs.md");
        for scheduler in Scheduler::ALL {
            let Some(name) = scheduler.ipvs_name().filter(|name| *name != "rr") else {
                continue;
            };
            let mut rows = manual.lines().filter(|line| line.starts_with("| `"));
            let expected = format!("| {} |", printed(scheduler));
            let has_row = rows.any(|row| {
                row.ends_with(&expected)
                    && row
                        .split(" | ")
                        .next()
                        .is_some_and(|of| of.contains(&format!("`{name}`")))
            });
            assert!(has_row, "no row for `{name}` ends with {expected}");
        }
    }

    #[test]
    fn what_takes_the_place_of_a_scheduler_is_the_nearest_that_is_there() {
        let missing = |all: &[Scheduler]| -> MissingSchedulers { all.iter().copied().collect() };
        let one = missing(&[Scheduler::Maglev]);
        assert_eq!(one.used(Scheduler::Maglev), Scheduler::SourceHash);
        assert_eq!(
            one.used(Scheduler::LeastConnection),
            Scheduler::LeastConnection
        );
        assert_eq!(one.used(Scheduler::Random), Scheduler::RoundRobin);
        let both = missing(&[Scheduler::Maglev, Scheduler::SourceHash]);
        assert_eq!(both.used(Scheduler::Maglev), Scheduler::RoundRobin);
        let all = missing(&Scheduler::ALL);
        for scheduler in Scheduler::ALL {
            assert_eq!(all.used(scheduler), Scheduler::RoundRobin, "{scheduler}");
            let itself = nearest(scheduler).contains(&scheduler);
            assert!(!itself, "{scheduler} does not replace itself");
        }
    }
}
