//! What the parts of the agent let each other see: the newest of each thing, never a queue.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crds::NodeProxyStatus;
use crds::node_proxy::latency::SyncLatency;
use crds::node_proxy::rejections::Rejection;
use dataplane::Family;
use reconciler::Report;
use tokio::sync::watch;

use crate::conntrack::Standing;
use crate::duty::Duty;
use crate::engine::View;
use crate::foreign_proxy::Sight;
use crate::latency::Latencies;
use crate::mechanism::{Held, Sighting, Standing as Carried};

/// Everything that is shared. Whoever knows a thing posts it; whoever wants to know looks, or waits
/// for it to change.
#[derive(Debug)]
pub(crate) struct Board {
    view: watch::Sender<Option<Arc<View>>>,
    report: watch::Sender<Option<Arc<Report>>>,
    status: watch::Sender<NodeProxyStatus>,
    conntrack: watch::Sender<Standing>,
    not_relayed: watch::Sender<Vec<Rejection>>,
    duty: watch::Sender<Duty>,
    sight: watch::Sender<Sight>,
    latencies: Mutex<Latencies>,
    variants: watch::Sender<Sighting>,
    carried: Mutex<BTreeMap<Family, Carried>>,
    held: Mutex<BTreeMap<Family, Held>>,
}

// === impl Board ===

impl Board {
    pub(crate) fn new() -> Board {
        Board {
            view: watch::Sender::new(None),
            report: watch::Sender::new(None),
            status: watch::Sender::new(NodeProxyStatus::default()),
            conntrack: watch::Sender::new(Standing::default()),
            not_relayed: watch::Sender::new(Vec::new()),
            duty: watch::Sender::new(Duty::default()),
            sight: watch::Sender::new(Sight::default()),
            latencies: Mutex::default(),
            variants: watch::Sender::new(Sighting::default()),
            carried: Mutex::default(),
            held: Mutex::default(),
        }
    }

    /// What the engine knows and wants.
    pub(crate) fn view(&self) -> watch::Receiver<Option<Arc<View>>> {
        self.view.subscribe()
    }

    pub(crate) fn post_view(&self, view: View) {
        self.view.send_replace(Some(Arc::new(view)));
    }

    /// What the loop has done.
    pub(crate) fn report(&self) -> watch::Receiver<Option<Arc<Report>>> {
        self.report.subscribe()
    }

    /// Takes in a report, and by family what the kernel is believed to hold now and how that is
    /// carried out.
    pub(crate) fn post_report(
        &self,
        report: Report,
        held: BTreeMap<Family, Held>,
        carried: BTreeMap<Family, Carried>,
        now: Instant,
    ) {
        lock(&self.latencies).record(&report, now);
        *lock(&self.held) = held;
        *lock(&self.carried) = carried;
        self.report.send_replace(Some(Arc::new(report)));
    }

    /// How long changes took of late.
    pub(crate) fn latency(&self, now: Instant) -> Option<SyncLatency> {
        lock(&self.latencies).summary(now)
    }

    /// What the kernel is believed to hold of one family.
    pub(crate) fn held(&self, family: Family) -> Option<Held> {
        lock(&self.held).get(&family).cloned()
    }

    /// How many elements and rules the kernel is believed to hold.
    pub(crate) fn elements(&self) -> usize {
        lock(&self.held).values().map(Held::elements).sum()
    }

    /// How each family is carried out.
    pub(crate) fn carried(&self) -> BTreeMap<Family, Carried> {
        lock(&self.carried).clone()
    }

    /// What others have in the variants of iptables.
    pub(crate) fn variants(&self) -> watch::Receiver<Sighting> {
        self.variants.subscribe()
    }

    pub(crate) fn post_variants(&self, sighting: Sighting) {
        self.variants.send_if_modified(|posted| {
            let changed = *posted != sighting;
            *posted = sighting;
            changed
        });
    }

    /// The node ports that localhost should have and has not.
    pub(crate) fn not_relayed(&self) -> watch::Receiver<Vec<Rejection>> {
        self.not_relayed.subscribe()
    }

    pub(crate) fn post_not_relayed(&self, rejections: Vec<Rejection>) {
        self.not_relayed.send_if_modified(|posted| {
            let changed = *posted != rejections;
            *posted = rejections;
            changed
        });
    }

    /// Whose the node's Services are.
    pub(crate) fn duty(&self) -> watch::Receiver<Duty> {
        self.duty.subscribe()
    }

    pub(crate) fn post_duty(&self, duty: Duty) {
        self.duty.send_replace(duty);
    }

    /// What there is of other proxies.
    pub(crate) fn sight(&self) -> watch::Receiver<Sight> {
        self.sight.subscribe()
    }

    pub(crate) fn post_sight(&self, sight: Sight) {
        self.sight.send_if_modified(|posted| {
            let changed = *posted != sight;
            *posted = sight;
            changed
        });
    }

    /// How the table of connections stands.
    pub(crate) fn conntrack(&self) -> watch::Receiver<Standing> {
        self.conntrack.subscribe()
    }

    /// Changes what is known of the table of connections. Whoever waits wakes if it is another thing.
    pub(crate) fn update_conntrack(&self, change: impl FnOnce(&mut Standing)) {
        self.conntrack.send_if_modified(|standing| {
            let before = standing.clone();
            change(standing);
            *standing != before
        });
    }

    /// What this node says of itself.
    pub(crate) fn status(&self) -> watch::Receiver<NodeProxyStatus> {
        self.status.subscribe()
    }

    pub(crate) fn post_status(&self, status: NodeProxyStatus) {
        self.status.send_if_modified(|posted| {
            let changed = *posted != status;
            *posted = status;
            changed
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whatever is behind it is whole between any two statements that change it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
