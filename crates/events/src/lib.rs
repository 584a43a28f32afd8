//! Kubernetes Events about a node and its Services, in the name of its agent.
//!
//! An announcement never blocks its sender, and a failure to write it does not affect the sender.
//! Every announcement is logged, too.

use std::fmt;
use std::time::Duration;

use crds::event::{EventReason, Severity};
use dataplane::ServiceKey;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Labelled;
use runtime::{CancellationToken, Metrics, chain};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{info, warn};

/// The value of `reportingController`.
const CONTROLLER: &str = "signpost-agent";
/// The value of `action`, which the API requires. These Events report states.
const ACTION: &str = "Report";
/// How many announcements may wait to be published.
const WAITING: usize = 64;
/// How many Events may be written in a row; as in client-go's spam filter.
const BURST: u32 = 25;
/// The time after which one more Event may be written. 5,000 nodes that never stop make 500 writes
/// a second.
const ONE_MORE_AFTER: Duration = Duration::from_secs(10);
/// The longest `note` the API accepts, in bytes (pkg/apis/core/validation/events.go).
const LONGEST_NOTE: usize = 1024;

/// An event to announce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// The object concerned.
    pub regarding: EventObject,
    /// What happened. Announcements with the same reason and object become one Event with a count.
    pub reason: EventReason,
    /// Details in plain text. Truncated to the API's limit.
    pub note: String,
}

/// The object of an announcement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventObject {
    /// The node that this process runs on.
    Node,
    /// A Service.
    Service(ServiceKey),
}

/// Sends announcements. Cheap to clone; never blocks.
#[derive(Debug, Clone)]
pub struct Events {
    waiting: mpsc::Sender<Announcement>,
    counts: Counts,
}

/// The receiver of [`Events`].
#[derive(Debug)]
pub struct Announcements {
    waiting: mpsc::Receiver<Announcement>,
    counts: Counts,
}

/// Where announcements are published.
#[expect(
    missing_debug_implementations,
    reason = "the client's recorder has none"
)]
pub enum EventSink {
    /// In the cluster, as Events of `events.k8s.io/v1`.
    Cluster(Box<Recorder>),
    /// Only in the log: there is no API server.
    Log,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOutcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, Default)]
struct Counts(Labelled<OfOutcome, Counter>);

/// A rate limiter for written Events.
#[derive(Debug)]
struct Allowance {
    left: u32,
    /// When the allowance was last increased.
    since: Instant,
}

// === impl Events ===

impl Events {
    /// Registers `signpost_events_total{outcome}` in `metrics`, with the outcomes published,
    /// failed, and dropped because there were too many.
    pub fn register(metrics: &Metrics) -> (Events, Announcements) {
        let counts = Counts::default();
        metrics.register("signpost_events", "Events by result", counts.0.clone());
        for outcome in ["published", "failed", "dropped"] {
            drop(counts.0.get_or_create(&OfOutcome { outcome }));
        }
        let (sender, receiver) = mpsc::channel(WAITING);
        let events = Events {
            waiting: sender,
            counts: counts.clone(),
        };
        let announcements = Announcements {
            waiting: receiver,
            counts,
        };
        (events, announcements)
    }

    /// Queues an announcement for publication. If too many are waiting, counts it as dropped.
    pub fn announce(&self, announcement: Announcement) {
        if self.waiting.try_send(announcement).is_err() {
            self.counts.add("dropped");
        }
    }
}

// === impl Announcements ===

impl Announcements {
    /// Returns the next announcement; `None` when every sender is gone. Cancel safe.
    pub async fn next(&mut self) -> Option<Announcement> {
        self.waiting.recv().await
    }

    /// Publishes announcements until `stop`, including those that were made before it.
    pub async fn publish(mut self, node: String, sink: EventSink, stop: CancellationToken) {
        let mut allowance = Allowance::full(Instant::now());
        let mut failing = false;
        loop {
            // Both arms are cancel safe.
            let announcement = tokio::select! {
                biased;
                announcement = self.next() => announcement,
                () = stop.cancelled() => {
                    self.waiting.close();
                    self.next().await
                }
            };
            let Some(announcement) = announcement else {
                // Every sender is gone. The task must not end before the stop.
                return stop.cancelled().await;
            };
            log(&announcement);
            let EventSink::Cluster(recorder) = &sink else {
                self.counts.add("published");
                continue;
            };
            if !allowance.take(Instant::now()) {
                self.counts.add("dropped");
                continue;
            }
            let (event, regarding) = event(announcement, &node);
            match recorder.publish(&event, &regarding).await {
                Ok(()) => {
                    self.counts.add("published");
                    failing = false;
                }
                Err(error) => {
                    self.counts.add("failed");
                    if !failing {
                        warn!(error = %chain(&error), "unable to write Events to the API server; this log has them");
                    }
                    failing = true;
                }
            }
        }
    }
}

// === impl EventSink ===

impl EventSink {
    /// A sink in the cluster of `client`, in the name of the agent on `node`.
    pub fn cluster(client: kube::Client, node: &str) -> EventSink {
        let reporter = Reporter {
            controller: CONTROLLER.to_owned(),
            instance: Some(node.to_owned()),
        };
        EventSink::Cluster(Box::new(Recorder::new(client, reporter)))
    }
}

// === impl Allowance ===

impl Allowance {
    fn full(now: Instant) -> Allowance {
        Allowance {
            left: BURST,
            since: now,
        }
    }

    fn take(&mut self, now: Instant) -> bool {
        while self.left < BURST && now.saturating_duration_since(self.since) >= ONE_MORE_AFTER {
            self.left += 1;
            self.since += ONE_MORE_AFTER;
        }
        if self.left == BURST {
            self.since = now;
        }
        let allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        allowed
    }
}

// === impl Counts ===

impl Counts {
    fn add(&self, outcome: &'static str) {
        self.0.get_or_create(&OfOutcome { outcome }).inc();
    }
}

fn log(announcement: &Announcement) {
    let Announcement {
        regarding,
        reason,
        note,
    } = announcement;
    match reason.severity {
        Severity::Normal => info!(%regarding, reason = reason.name, "{note}"),
        Severity::Warning => warn!(%regarding, reason = reason.name, "{note}"),
    }
}

/// Returns the API's Event, and the object that it is about.
fn event(announcement: Announcement, node: &str) -> (Event, ObjectReference) {
    let mut note = announcement.note;
    note.truncate(note.floor_char_boundary(LONGEST_NOTE));
    let event = Event {
        type_: match announcement.reason.severity {
            Severity::Normal => EventType::Normal,
            Severity::Warning => EventType::Warning,
        },
        reason: announcement.reason.name.to_owned(),
        note: Some(note),
        action: ACTION.to_owned(),
        secondary: None,
    };
    let regarding = match announcement.regarding {
        EventObject::Node => ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            // `kubectl describe node` searches for this uid in addition to the real one, because
            // kubelets and kube-proxy use the name.
            uid: Some(node.to_owned()),
            ..ObjectReference::default()
        },
        EventObject::Service(service) => ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Service".to_owned()),
            namespace: Some(service.namespace.to_string()),
            name: Some(service.name.to_string()),
            ..ObjectReference::default()
        },
    };
    (event, regarding)
}

impl fmt::Display for EventObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EventObject::Node => f.write_str("Node"),
            EventObject::Service(service) => write!(f, "Service {service}"),
        }
    }
}

#[cfg(test)]
mod tests;
