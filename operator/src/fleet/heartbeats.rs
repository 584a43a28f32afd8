//! Detects silent agents from their Leases, on the operator's own clock.
//!
//! The times in a Lease come from the clock of its node and are not used. A changed resource
//! version means a renewal; an agent has been silent for as long as the operator has seen the same
//! version ([0048](../../../docs/decisions/0048-a-lease-for-each-agent.md)).

use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
    time::{Duration, Instant},
};

use crate::{
    fleet::object_cache::{ObjectCache, ObjectChange, PlanImpact},
    records::NodeProxyRecord,
};

/// How long the Lease of a live agent can stay unchanged. Agents renew every 33 s at most and the
/// operator lists every 15 s, so one renewal may fail, and an agent that ended is detected within
/// two minutes.
const SILENCE: Duration = Duration::from_secs(80);
/// The longest interval between two lists for which silence is measured. After a longer one, all
/// agents may have been cut off together with the operator.
const LONGEST_GAP: Duration = Duration::from_secs(45);

/// The heartbeats of the agents that renew a Lease.
#[derive(Debug, Default)]
pub(crate) struct Heartbeats {
    /// The observations by node name.
    leases: BTreeMap<String, ObservedLease>,
    /// The nodes whose agents were silent at the last list.
    silent: BTreeSet<String>,
    listed_at: Option<Instant>,
    oldest: Duration,
}

/// The observation of one agent.
#[derive(Debug)]
struct ObservedLease {
    /// The resource version of its Lease; absent if the Lease does not exist.
    version: Option<String>,
    /// When the operator first saw that version.
    since: Instant,
}

// === impl Heartbeats ===

impl Heartbeats {
    /// Applies a list of Leases requested at `now`: their `versions` by node. Agents that are not
    /// in `renewing` renew no Lease. Returns whether that changes which agents are silent.
    pub(crate) fn observe<'a>(
        &mut self,
        renewing: impl Iterator<Item = &'a str>,
        versions: &BTreeMap<String, String>,
        now: Instant,
    ) -> PlanImpact {
        let mut before = std::mem::take(&mut self.leases);
        let last = self.listed_at.replace(now);
        if last.is_some_and(|last| now.saturating_duration_since(last) > LONGEST_GAP) {
            before.clear();
        }
        let look = |node: &str| {
            let version = versions.get(node).cloned();
            let same = before.remove(node).filter(|lease| lease.version == version);
            let lease = same.unwrap_or(ObservedLease {
                version,
                since: now,
            });
            (node.to_owned(), lease)
        };
        self.leases = renewing.map(look).collect();
        let ages = self.leases.values();
        let ages = ages.map(|lease| now.saturating_duration_since(lease.since));
        self.oldest = ages.max().unwrap_or_default();
        let is_silent =
            |lease: &ObservedLease| now.saturating_duration_since(lease.since) >= SILENCE;
        let silent = self.leases.iter().filter(|(_, lease)| is_silent(lease));
        let silent = silent.map(|(node, _)| node.clone()).collect();
        if std::mem::replace(&mut self.silent, silent) == self.silent {
            PlanImpact::None
        } else {
            PlanImpact::Replan
        }
    }

    /// Returns how long the oldest Lease had been unchanged at the last list.
    pub(crate) const fn oldest(&self) -> Duration {
        self.oldest
    }

    /// Counts a status write by an agent as a heartbeat, if its status differs from the `known`
    /// one.
    pub(crate) fn note_reports(
        &mut self,
        change: &ObjectChange<NodeProxyRecord>,
        known: &ObjectCache<NodeProxyRecord>,
    ) {
        let reported = match change {
            ObjectChange::Applied(record) => slice::from_ref(&**record),
            ObjectChange::Listed(records) => records,
            ObjectChange::Deleted(_) | ObjectChange::ListRequested => &[],
        };
        for record in reported {
            let before = known.listed().and_then(|known| known.get(&record.name));
            let is_new = before.is_none_or(|before| before.status != record.status);
            if is_new && !record.is_marked_silent() {
                self.leases.remove(&record.name);
                self.silent.remove(&record.name);
            }
        }
    }

    /// Returns the version of the Lease of `node`; `None` until the first list after its agent's last
    /// report.
    pub(crate) fn lease_version(&self, node: &str) -> Option<&str> {
        self.leases.get(node)?.version.as_deref()
    }

    /// Whether the agent of `node` was silent at the last list.
    pub(crate) fn is_silent(&self, node: &str) -> bool {
        self.silent.contains(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operator that lists the Leases of agents `a` and `b`, which promise to renew them.
    struct Operator {
        heartbeats: Heartbeats,
        start: Instant,
    }

    impl Operator {
        fn new() -> Self {
            Self {
                heartbeats: Heartbeats::default(),
                start: Instant::now(),
            }
        }

        /// Lists these versions at this second; returns the silent agents.
        fn list(&mut self, second: u64, versions: &[(&str, u64)]) -> Vec<&'static str> {
            let versions = versions.iter();
            let versions = versions
                .map(|(node, version)| ((*node).to_owned(), version.to_string()))
                .collect();
            let now = self.start + Duration::from_secs(second);
            let both = ["a", "b"];
            self.heartbeats.observe(both.into_iter(), &versions, now);
            let silent = |node: &&str| self.heartbeats.is_silent(node);
            both.into_iter().filter(silent).collect()
        }
    }

    #[test]
    fn an_agent_is_silent_when_its_lease_has_not_changed_for_eighty_seconds() {
        let mut operator = Operator::new();
        for second in (0..80).step_by(15) {
            assert!(operator.list(second, &[("a", 7), ("b", second)]).is_empty());
        }
        assert!(operator.list(79, &[("a", 7), ("b", 79)]).is_empty());
        assert_eq!(operator.list(80, &[("a", 7), ("b", 80)]), ["a"]);
        assert_eq!(operator.list(95, &[("a", 7), ("b", 95)]), ["a"]);
        assert_eq!(operator.heartbeats.oldest(), Duration::from_secs(95));
        assert!(
            operator.list(110, &[("a", 8), ("b", 110)]).is_empty(),
            "it is heard again"
        );
    }

    #[test]
    fn one_renewal_may_fail_whenever_the_leases_are_listed() {
        for phase in 0..15 {
            let mut operator = Operator::new();
            for second in (phase..600).step_by(15) {
                // Renewals come every 33 s, and every second one fails.
                let silent = operator.list(second, &[("a", second / 66), ("b", second / 66)]);
                assert!(silent.is_empty(), "{silent:?} after {second} s");
            }
        }
    }

    #[test]
    fn a_lease_that_is_missing_does_not_change_either() {
        let mut operator = Operator::new();
        for second in (0..90).step_by(15) {
            assert!(operator.list(second, &[("b", second)]).is_empty());
        }
        assert_eq!(operator.list(90, &[("b", 90)]), ["a"]);
    }

    #[test]
    fn t137_an_operator_that_could_not_list_leases_counts_anew_for_every_agent() {
        let mut operator = Operator::new();
        for second in [0, 15, 30, 45] {
            assert!(operator.list(second, &[("a", 1), ("b", 1)]).is_empty());
        }
        // The API server was unreachable for the operator and the agents, for longer than
        // `SILENCE`.
        for second in [200, 215, 230, 245, 260, 275] {
            assert!(operator.list(second, &[("a", 1), ("b", 1)]).is_empty());
        }
        assert_eq!(operator.list(290, &[("a", 1), ("b", 2)]), ["a"]);
    }

    #[test]
    fn t137_an_operator_that_starts_calls_no_agent_silent_before_its_time() {
        let mut before = Operator::new();
        for second in (0..600).step_by(15) {
            before.list(second, &[("a", 1), ("b", second)]);
        }
        assert!(before.heartbeats.is_silent("a"));
        let mut operator = Operator::new();
        for second in (0..80).step_by(15) {
            assert!(operator.list(second, &[("a", 1), ("b", 600)]).is_empty());
        }
    }
}
