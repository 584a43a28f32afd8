//! Conflicts: how many nodes two profiles both select, and which profile wins there.

use std::collections::BTreeMap;

use crds::{
    condition::{
        Status,
        reason::{NO_CONFLICT, OVERRIDDEN, Reason, SAME_PRIORITY},
    },
    resolve::{Precedence, ProfileRole, Resolution},
};

use crate::fleet::profile_status::node_count;

/// The conflicts of all profiles.
#[derive(Debug, Default)]
pub(crate) struct Conflicts(BTreeMap<String, ProfileConflicts>);

/// The conflicts of one profile: the number of nodes by the name of the other profile.
#[derive(Debug, Default)]
pub(crate) struct ProfileConflicts {
    lost_at_same_priority: BTreeMap<String, usize>,
    lost_to_priority: BTreeMap<String, usize>,
    won_at_same_priority: BTreeMap<String, usize>,
}

// === impl Conflicts ===

impl Conflicts {
    /// Counts the candidates of one node.
    pub(crate) fn count(&mut self, resolution: &Resolution) {
        for candidate in &resolution.candidates {
            let ProfileRole::Outranked { to, by } = &candidate.role else {
                continue;
            };
            let lost = self.0.entry(candidate.profile.clone()).or_default();
            if *by == Precedence::Priority {
                *lost.lost_to_priority.entry(to.clone()).or_default() += 1;
            } else {
                *lost.lost_at_same_priority.entry(to.clone()).or_default() += 1;
                let won = self.0.entry(to.clone()).or_default();
                *won.won_at_same_priority
                    .entry(candidate.profile.clone())
                    .or_default() += 1;
            }
        }
    }

    /// Returns the condition Conflict of one profile: its status, reason and message.
    pub(crate) fn of(&self, profile: &str) -> (Status, Reason, String) {
        let nothing = || {
            (
                Status::False,
                NO_CONFLICT,
                "no other profile of this priority selects the same nodes".to_owned(),
            )
        };
        let Some(ProfileConflicts {
            lost_at_same_priority,
            lost_to_priority,
            won_at_same_priority,
        }) = self.0.get(profile)
        else {
            return nothing();
        };
        let lost = lost_at_same_priority
            .iter()
            .map(|(other, nodes)| format!("{other} applies to {}", node_count(*nodes)));
        let won = won_at_same_priority
            .iter()
            .map(|(other, nodes)| format!("applies to {} instead of {other}", node_count(*nodes)));
        let clashes: Vec<String> = lost.chain(won).collect();
        if !clashes.is_empty() {
            let message = format!("same priority, same nodes: {}", clashes.join("; "));
            return (Status::True, SAME_PRIORITY, message);
        }
        let overridden: Vec<String> = lost_to_priority
            .iter()
            .map(|(other, nodes)| format!("{other} on {}", node_count(*nodes)))
            .collect();
        if overridden.is_empty() {
            return nothing();
        }
        (
            Status::False,
            OVERRIDDEN,
            format!(
                "a profile with a lower priority number applies: {}",
                overridden.join("; ")
            ),
        )
    }
}
