//! Rollbacks that wait until the profile's status says why.
//!
//! An operator that ends between the first node that is rolled back and the report leaves nothing
//! that says that the rollout failed. The next operator would change those nodes again.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use crate::{fleet::node_progress::after, records::ProfileRecord};

/// The profiles with a failed rollout that their status does not mention yet, and since when.
#[derive(Clone, Debug, Default)]
pub(super) struct UnreportedFailures(BTreeMap<String, Timestamp>);

/// The nodes that failed wait no longer than this if the status cannot be written.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

// === impl UnreportedFailures ===

impl UnreportedFailures {
    /// Forgets profiles that no longer exist.
    pub(super) fn retain(&mut self, profiles: &BTreeMap<String, ProfileRecord>) {
        self.0.retain(|name, _| profiles.contains_key(name));
    }

    /// Returns until when the nodes of `profile` wait at most for its failure to be reported, if they
    /// do. `is_written` is called only if its rollout `has_failed`.
    pub(super) fn wait(
        &mut self,
        profile: &str,
        has_failed: bool,
        is_written: impl FnOnce() -> bool,
        now: Timestamp,
    ) -> Option<Timestamp> {
        if !has_failed || is_written() {
            self.0.remove(profile);
            return None;
        }
        let since = *self.0.entry(profile.to_owned()).or_insert(now);
        let end = after(since, LONGEST_WAIT);
        (now < end).then_some(end)
    }
}
