//! When the next status is due.

use std::sync::Arc;
use std::time::Duration;

use crds::NodeProxyStatus;
use serde_json::Value;
use tokio::time::Instant as Deadline;

use super::difference::{Difference, difference};
use super::{AT_ONCE, Destination, FIGURES, FIGURES_SPREAD, FIRST_LATENCY, IDLE, SOURCE_SPREAD};

/// The outcome of the last attempt to write.
pub(super) enum Last {
    Never,
    Written(Written),
    Failed {
        retry: Deadline,
        /// The number of failures in a row.
        failures: u32,
    },
    /// There was no NodeProxy to write to.
    Absent {
        retry: Deadline,
    },
}

/// A status that was written.
pub(super) struct Written {
    pub(super) status: Arc<NodeProxyStatus>,
    /// The same as the API server answered it; null in a file.
    pub(super) in_api: Value,
    /// Since when the Lease had been renewed.
    pub(super) renewed_since: Option<Deadline>,
    pub(super) at: Deadline,
    pub(super) idle: Duration,
    /// Whether it says something by the earlier report, or lacks a field that the definition did not
    /// have: it is written again, in the hope of a better one.
    pub(super) is_provisional: bool,
    /// When the status was first seen to differ.
    pub(super) differs_since: Option<Deadline>,
    /// When it was first seen to differ by the source.
    pub(super) source_differs_since: Option<Deadline>,
}

// === impl Last ===

impl Last {
    /// Returns how many writes failed in a row.
    pub(super) const fn failures(&self) -> u32 {
        match self {
            Last::Failed { failures, .. } => *failures,
            Last::Never | Last::Written(_) | Last::Absent { .. } => 0,
        }
    }

    /// Returns when to write `current`, with a Lease that has been renewed without interruption
    /// since `renewed_since`, over the status `in_api`; `None` if nothing is to be written.
    pub(super) fn due(
        &mut self,
        current: &NodeProxyStatus,
        renewed_since: Option<Deadline>,
        destination: &Destination,
        in_api: &Value,
        now: Deadline,
    ) -> Option<Deadline> {
        match self {
            Last::Never => Some(now),
            Last::Failed { retry, .. } | Last::Absent { retry } => Some(*retry),
            Last::Written(written) => match destination {
                Destination::Api(_) => written.due_in_api(current, renewed_since, in_api, now),
                Destination::File(_) => Some(match difference(&written.status, current) {
                    Difference::None => written.at + written.idle,
                    _ => now,
                }),
            },
        }
    }
}

// === impl Written ===

impl Written {
    /// After an interruption of the renewals the operator may have written that this agent is
    /// silent, so a different `renewed_since` counts as a change.
    fn due_in_api(
        &mut self,
        current: &NodeProxyStatus,
        renewed_since: Option<Deadline>,
        in_api: &Value,
        now: Deadline,
    ) -> Option<Deadline> {
        let difference = match self.renewed_since == renewed_since {
            true => difference(&self.status, current),
            false => Difference::Meaning,
        };
        if difference != Difference::Source {
            self.source_differs_since = None;
        }
        if difference == Difference::None {
            self.differs_since = None;
            // The watch may deliver this agent's own write later than the answer to it.
            let is_changed = *in_api != self.in_api;
            let is_heartbeat = renewed_since.is_none();
            let is_due = is_changed || is_heartbeat || self.is_provisional;
            return is_due.then(|| self.at + self.idle);
        }
        let seen = *self.differs_since.get_or_insert(now);
        // The jitter of the idle time determines this node's place in the range.
        let part = (self.idle - IDLE.mul_f64(0.9)).as_secs_f64() / IDLE.mul_f64(0.2).as_secs_f64();
        let place = |range: Duration| range.mul_f64(part.clamp(0.0, 1.0));
        Some(match difference {
            Difference::None | Difference::Meaning => self.at + AT_ONCE,
            Difference::Source => {
                let seen = *self.source_differs_since.get_or_insert(now);
                (seen + place(SOURCE_SPREAD)).max(self.at + AT_ONCE)
            }
            Difference::FirstLatency => seen + place(FIRST_LATENCY),
            Difference::Figures => (seen + place(FIGURES_SPREAD)).max(self.at + FIGURES),
        })
    }
}
