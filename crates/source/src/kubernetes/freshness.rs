//! Whether the objects read from the API server are current, over all watches.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use crate::{Delivery, EngineGone, SourceCondition, deliver};

/// The state of every watch. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Freshness(Arc<watch::Sender<ByKind>>);

/// The state of each watch, by kind.
type ByKind = BTreeMap<&'static str, KindFreshness>;

/// The state of one watch.
#[derive(Debug, Clone, PartialEq, Eq)]
enum KindFreshness {
    /// The API server has not answered it yet.
    Awaited,
    Fresh,
    Stale {
        since: SystemTime,
        message: String,
    },
}

/// Sets the state of one watch.
#[derive(Debug, Clone)]
pub(super) struct WatchHealth {
    freshness: Freshness,
    kind: &'static str,
}

// === impl Freshness ===

impl Default for Freshness {
    fn default() -> Freshness {
        Freshness(Arc::new(watch::Sender::new(ByKind::new())))
    }
}

impl Freshness {
    /// Returns the handle for the watch of `kind`, whose answer is awaited from now on.
    pub(super) fn watch_health(&self, kind: &'static str) -> WatchHealth {
        self.0.send_modify(|kinds| {
            kinds.insert(kind, KindFreshness::Awaited);
        });
        WatchHealth {
            freshness: self.clone(),
            kind,
        }
    }

    /// Delivers the combined condition of all watches whenever it changes.
    pub(super) async fn report(
        &self,
        deliveries: &mpsc::Sender<Delivery>,
    ) -> Result<Infallible, EngineGone> {
        let mut changes = self.0.subscribe();
        let mut reported = None;
        loop {
            let condition = summary(&changes.borrow_and_update());
            if condition.is_some() && condition != reported {
                reported.clone_from(&condition);
                if let Some(condition) = condition {
                    log(&condition);
                    deliver(deliveries, Delivery::Condition(condition)).await?;
                }
            }
            // The sender lives as long as `self`.
            if changes.changed().await.is_err() {
                return Err(EngineGone);
            }
        }
    }
}

fn log(condition: &SourceCondition) {
    match condition {
        SourceCondition::Stale { message, .. } => {
            warn!(
                reason = message,
                "unable to watch the API server: serving the state last read"
            );
        }
        SourceCondition::Fresh | SourceCondition::Manifests(_) => {
            info!("watching the API server");
        }
    }
}

/// Stale if any watch is stale, fresh if all are fresh, otherwise unknown.
fn summary(kinds: &ByKind) -> Option<SourceCondition> {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut oldest: Option<SystemTime> = None;
    for (kind, freshness) in kinds {
        if let KindFreshness::Stale { since, message } = freshness {
            reasons.entry(message).or_default().push(kind);
            oldest = Some(oldest.map_or(*since, |oldest| oldest.min(*since)));
        }
    }
    if let Some(since) = oldest {
        let message = reasons
            .iter()
            .map(|(message, kinds)| format!("{}: {message}", kinds.join(", ")))
            .collect::<Vec<_>>()
            .join("; ");
        return Some(SourceCondition::Stale { since, message });
    }
    kinds
        .values()
        .all(|freshness| *freshness == KindFreshness::Fresh)
        .then_some(SourceCondition::Fresh)
}

// === impl WatchHealth ===

impl WatchHealth {
    /// Records that the watch receives every change.
    pub(super) fn fresh(&self) {
        self.set(|_| KindFreshness::Fresh);
    }

    /// Records that the watch may have missed changes since `since`, or since an earlier time if it
    /// was stale already.
    pub(super) fn stale(&self, since: SystemTime, message: &str) {
        self.set(|before| KindFreshness::Stale {
            since: match before {
                KindFreshness::Stale { since, .. } => *since,
                KindFreshness::Awaited | KindFreshness::Fresh => since,
            },
            message: message.to_owned(),
        });
    }

    fn set(&self, next: impl FnOnce(&KindFreshness) -> KindFreshness) {
        self.freshness.0.send_if_modified(|kinds| {
            let freshness = kinds.entry(self.kind).or_insert(KindFreshness::Awaited);
            let next = next(freshness);
            let modified = *freshness != next;
            *freshness = next;
            modified
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn kinds(freshness: &Freshness) -> Option<SourceCondition> {
        summary(&freshness.0.borrow())
    }

    #[test]
    fn fresh_only_once_every_watch_is() {
        let freshness = Freshness::default();
        let (one, other) = (
            freshness.watch_health("Services"),
            freshness.watch_health("Nodes"),
        );
        assert_eq!(kinds(&freshness), None);
        one.fresh();
        assert_eq!(kinds(&freshness), None);
        other.fresh();
        assert_eq!(kinds(&freshness), Some(SourceCondition::Fresh));
    }

    #[test]
    fn the_oldest_doubt_counts_and_equal_reasons_are_reported_once() {
        let freshness = Freshness::default();
        let (one, other) = (
            freshness.watch_health("Services"),
            freshness.watch_health("Nodes"),
        );
        let early = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let late = early + Duration::from_secs(60);
        one.stale(late, "refused");
        other.stale(early, "refused");
        one.stale(late + Duration::from_secs(60), "refused");
        assert_eq!(
            kinds(&freshness),
            Some(SourceCondition::Stale {
                since: early,
                message: "Nodes, Services: refused".to_owned(),
            })
        );
        other.fresh();
        assert_eq!(
            kinds(&freshness),
            Some(SourceCondition::Stale {
                since: late,
                message: "Services: refused".to_owned(),
            })
        );
    }
}
