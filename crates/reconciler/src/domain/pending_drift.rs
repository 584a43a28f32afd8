//! Changes by other programs to the rules of one domain, from the notification to the repair.

use std::time::{Duration, Instant};

use backend::{Actor, Size};

use crate::RepairedDrift;
use crate::progress::Progress;

/// The changes by other programs that are not known to be repaired.
#[derive(Debug, Default)]
pub(super) struct PendingDrift {
    notification: Option<UnverifiedChange>,
    /// The size of a difference that made a commit fail and is already repaired, until it is known
    /// which program caused it.
    commit_failure: Option<Size>,
    /// A difference that was found and is not known to be repaired.
    found: Option<Found>,
}

/// A notification of a change by another program; no sync has checked the kernel since.
#[derive(Debug)]
pub(super) struct UnverifiedChange {
    since: Instant,
    actor: Option<Actor>,
}

#[derive(Debug)]
struct Found {
    since: Instant,
    repaired_drift: RepairedDrift,
}

// === impl PendingDrift ===

impl PendingDrift {
    /// Records a notification of a change by another program.
    pub(super) fn notify(&mut self, actor: Option<&Actor>, now: Instant) {
        let notification = self.notification.get_or_insert(UnverifiedChange {
            since: now,
            actor: None,
        });
        if actor.is_some() {
            notification.actor = actor.cloned();
        }
    }

    /// Whether a notification arrived that no sync has checked yet.
    pub(super) fn is_notified(&self) -> bool {
        self.notification.is_some()
    }

    /// Takes the pending notification, for a sync that checks the kernel.
    pub(super) fn take_notification(&mut self) -> Option<UnverifiedChange> {
        self.notification.take()
    }

    /// Puts the notification back: the sync could not check the kernel.
    pub(super) fn restore_notification(&mut self, notification: Option<UnverifiedChange>) {
        self.notification = notification;
    }

    /// Drops the notification: there is no known state that the program could have changed.
    pub(super) fn forget_notification(&mut self) {
        self.notification = None;
    }

    /// Records that a commit failed because the kernel did not hold the expected rules.
    pub(super) fn commit_failed(
        &mut self,
        size: Size,
        notification: Option<UnverifiedChange>,
        progress: &Progress<'_>,
    ) {
        self.commit_failure = Some(size);
        self.attribute(notification, progress);
    }

    /// Attributes a failed commit to the program of the notification, if the kernel named one. A
    /// notification without a program is no evidence: it may only mean that notifications were
    /// lost.
    pub(super) fn attribute(
        &mut self,
        notification: Option<UnverifiedChange>,
        progress: &Progress<'_>,
    ) {
        let actor = notification.filter(|notification| notification.actor.is_some());
        if actor.is_some()
            && let Some(size) = self.commit_failure.take()
        {
            self.find(size, actor, progress);
        }
    }

    /// Records that the kernel holds the expected rules. Later notifications are not attributed to
    /// an earlier failed commit.
    pub(super) fn find_nothing(
        &mut self,
        notification: Option<UnverifiedChange>,
        progress: &Progress<'_>,
    ) {
        self.attribute(notification, progress);
        self.commit_failure = None;
    }

    /// Records that the kernel does not hold what it was left with. Several findings before a
    /// repair count as one.
    pub(super) fn find(
        &mut self,
        size: Size,
        notification: Option<UnverifiedChange>,
        progress: &Progress<'_>,
    ) {
        let (since, actor) = match notification {
            Some(notification) => (notification.since, notification.actor),
            None => (progress.began, None),
        };
        self.commit_failure = None;
        self.found.get_or_insert(Found {
            since,
            repaired_drift: RepairedDrift {
                found: progress.clock.wall_time(),
                actor,
                size,
                repaired_after: Duration::ZERO,
            },
        });
    }

    /// Records that the kernel holds the desired state, so what was found is repaired.
    pub(super) fn repair(&mut self, ended: Instant) -> Option<RepairedDrift> {
        let found = self.found.take()?;
        Some(RepairedDrift {
            repaired_after: ended.saturating_duration_since(found.since),
            ..found.repaired_drift
        })
    }
}
