//! The number of changes received, and of those that are not programmed yet.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use catalog::{Change, Event};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use reconciler::Report;
use runtime::Metrics;

/// kube-proxy's `sync_proxy_rules_{service,endpoint}_changes_{total,pending}`. Cheap to clone;
/// clones share the same counts.
///
/// A change is pending for longer than in kube-proxy: until the kernel has acknowledged it, not
/// until a sync begins that may fail.
#[derive(Debug, Clone)]
pub struct ChangeCounts {
    services: Counter,
    endpoints: Counter,
    services_pending: Gauge,
    endpoints_pending: Gauge,
    pending: Arc<Mutex<Pending>>,
}

/// The pending changes, by stage.
#[derive(Debug, Default)]
struct Pending {
    /// Received, and not compiled.
    taken: Tally,
    /// Compiled, and sent to the reconciler.
    ordered: Tally,
    /// The part of `ordered` that the current sync covers.
    running_sync: Tally,
}

/// Numbers of changes by kind of object.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    services: i64,
    endpoints: i64,
}

// === impl ChangeCounts ===

impl ChangeCounts {
    /// Registers the metrics, at 0.
    pub fn register(metrics: &Metrics) -> ChangeCounts {
        ChangeCounts {
            services: metrics.register(
                "kubeproxy_sync_proxy_rules_service_changes",
                "Changes of Services",
                Counter::default(),
            ),
            endpoints: metrics.register(
                "kubeproxy_sync_proxy_rules_endpoint_changes",
                "Changes of EndpointSlices",
                Counter::default(),
            ),
            services_pending: metrics.register(
                "kubeproxy_sync_proxy_rules_service_changes_pending",
                "Changes of Services that are not programmed yet",
                Gauge::default(),
            ),
            endpoints_pending: metrics.register(
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                "Changes of EndpointSlices that are not programmed yet",
                Gauge::default(),
            ),
            pending: Arc::default(),
        }
    }

    /// Counts a received change.
    pub fn took(&self, change: &Change) {
        let mut pending = self.pending();
        match change {
            Change::Service(event) if is_change(event) => {
                self.services.inc();
                pending.taken.services += 1;
            }
            Change::EndpointSlice(event) if is_change(event) => {
                self.endpoints.inc();
                pending.taken.endpoints += 1;
            }
            _ => {}
        }
        self.show(&pending);
    }

    /// Counts the received changes as sent to the reconciler, except for one for each of the
    /// Services that are `left` to compile.
    pub fn ordered(&self, left: usize) {
        let mut pending = self.pending();
        let rest = pending.taken.at_most(left);
        let sent = pending.taken.minus(rest);
        pending.taken = rest;
        pending.ordered = pending.ordered.plus(sent);
        self.show(&pending);
    }

    /// Drops the received changes, which make no difference to the kernel, except for one for each
    /// of the Services that are `left` to compile.
    pub fn dismissed(&self, left: usize) {
        let mut pending = self.pending();
        pending.taken = pending.taken.at_most(left);
        self.show(&pending);
    }

    /// Drops the changes sent to the reconciler, which programs none while another proxy serves the
    /// node.
    pub fn withdrawn(&self) {
        let mut pending = self.pending();
        pending.ordered = Tally::default();
        pending.running_sync = Tally::default();
        self.show(&pending);
    }

    /// Records the start of a sync, which covers every change sent so far.
    pub fn began(&self) {
        let mut pending = self.pending();
        pending.running_sync = pending.ordered;
    }

    /// Records the reconciler's report.
    pub fn reported(&self, report: &Report) {
        let mut pending = self.pending();
        if !report.finished.is_empty() {
            let held = std::mem::take(&mut pending.running_sync);
            if report.finished.iter().all(|sync| sync.succeeded()) {
                pending.ordered = pending.ordered.minus(held);
            }
        }
        self.show(&pending);
    }

    fn show(&self, pending: &Pending) {
        let all = pending.taken.plus(pending.ordered);
        self.services_pending.set(all.services);
        self.endpoints_pending.set(all.endpoints);
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        // The numbers are consistent between any two statements, so a poisoned lock is harmless.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Tally ===

impl Tally {
    fn plus(self, other: Tally) -> Tally {
        Tally {
            services: self.services + other.services,
            endpoints: self.endpoints + other.endpoints,
        }
    }

    /// At most `left` of these changes, those of endpoints first: which ones are left is not known.
    fn at_most(self, left: usize) -> Tally {
        let left = i64::try_from(left).unwrap_or(i64::MAX);
        let endpoints = self.endpoints.min(left);
        Tally {
            services: self.services.min(left - endpoints),
            endpoints,
        }
    }

    fn minus(self, other: Tally) -> Tally {
        Tally {
            services: self.services - other.services,
            endpoints: self.endpoints - other.endpoints,
        }
    }
}

/// Returns whether the event is about an object, and not about a list.
fn is_change<T>(event: &Event<T>) -> bool {
    !matches!(event, Event::Init | Event::InitDone)
}

#[cfg(test)]
mod tests {
    use backend::Recovery;
    use catalog::ObjectKey;
    use catalog::object::{EndpointSlice, Service};
    use dataplane::Family;
    use reconciler::{Activity, Failure, FamilySync, Outcome, Reason};
    use runtime::BuildInfo;

    use super::*;

    fn key() -> ObjectKey {
        ObjectKey {
            namespace: "shop".into(),
            name: "cart".into(),
        }
    }

    fn ended(outcomes: Vec<Outcome>) -> Report {
        let sync = |outcome| Arc::new(FamilySync::new(Family::Ipv4, Reason::Changed, outcome));
        Report {
            activity: Activity::Waiting,
            families: Vec::new(),
            repair_backoff: None,
            finished: outcomes.into_iter().map(sync).collect(),
            latencies: Vec::new(),
        }
    }

    #[test]
    fn t447_a_change_is_pending_until_the_kernel_holds_it_or_another_proxy_serves() {
        let counts = ChangeCounts::register(&Metrics::new(&BuildInfo {
            program: "test",
            version: "0",
        }));
        let pending = || {
            (
                counts.services_pending.get(),
                counts.endpoints_pending.get(),
            )
        };
        let service = || Change::from(Event::<Service>::Delete(key()));
        let slice = || Change::from(Event::<EndpointSlice>::Delete(key()));

        counts.took(&Event::<Service>::Init.into());
        counts.took(&service());
        counts.took(&slice());
        counts.took(&slice());
        assert_eq!(pending(), (1, 2));
        counts.ordered(0);
        counts.began();
        counts.took(&service());
        counts.ordered(0);
        let failure = Outcome::Failed(Failure {
            error: String::new(),
            recovery: Recovery::Retry,
        });
        counts.reported(&ended(vec![Outcome::Committed, failure]));
        assert_eq!(pending(), (2, 2), "one family does not hold it");
        counts.began();
        counts.took(&service());
        counts.ordered(0);
        counts.reported(&ended(vec![Outcome::Committed, Outcome::Unchanged]));
        assert_eq!(pending(), (1, 0), "what came later is for the next sync");
        counts.took(&slice());
        counts.dismissed(0);
        assert_eq!(pending(), (1, 0));
        assert_eq!((counts.services.get(), counts.endpoints.get()), (3, 3));

        // Failure story T447: on a node that was handed back they grew without end.
        counts.withdrawn();
        assert_eq!(pending(), (0, 0));
        counts.reported(&ended(vec![Outcome::Committed]));
        assert_eq!(pending(), (0, 0), "a sync that ends later takes none away");
    }
}
