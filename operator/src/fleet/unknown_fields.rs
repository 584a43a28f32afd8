//! The fields of a profile's status that the API server does not know, because its
//! CustomResourceDefinition is older than the operator.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;

use crate::fleet::{node_progress::after, plan::Plan};

/// The fields of a status that the API server did not know.
#[derive(Debug)]
pub(super) struct UnknownFields {
    pub(super) fields: BTreeSet<String>,
    /// When to try them again; absent before the first plan since.
    due: Option<Timestamp>,
}

/// How often a status is written with all its fields where the API server did not know some: its
/// definition may have been replaced. An answer without them changes nothing there.
const RETRY_INTERVAL: Duration = Duration::from_secs(600);

// === impl UnknownFields ===

impl UnknownFields {
    pub(super) const fn new(fields: BTreeSet<String>) -> Self {
        Self { fields, due: None }
    }

    /// Whether to try the fields again at `now`; has `plan` made again when they are due next. They
    /// stay due until a write is answered: this one may fail or have to wait.
    pub(super) fn is_due(&mut self, now: Timestamp, plan: &mut Plan) -> bool {
        let due = *self.due.get_or_insert(after(now, RETRY_INTERVAL));
        if due > now {
            plan.requeue_by(Some(due));
        }
        due <= now
    }
}
