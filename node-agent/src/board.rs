//! The values that the tasks of the agent share: always the latest of each, never a queue.

mod handover_agent;
mod node_facts;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use agent_metrics::Latencies;
use conntrack::ConntrackState;
use crds::NodeProxyStatus;
use crds::node_proxy::latency::SyncLatency;
use crds::node_proxy::rejections::Rejection;
use dataplane::{Family, FrontendKey};
use handover::ServingState;
use modes::{MechanismState, RulesByMechanism, VariantScan};
use reconciler::{Report, RunningSync};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant as Moment;

use crate::api_service::ApiServiceState;
use crate::engine::{AppliedConfig, View};
use foreign_proxy::{ForeignProxyScan, RulesWriter};

/// Values that the parts of the agent share. Each has one writer, which posts it; readers get the
/// latest value, or wait for a change.
#[derive(Debug)]
pub(crate) struct Board {
    view: watch::Sender<Option<Arc<View>>>,
    applied_config: watch::Sender<Option<AppliedConfig>>,
    running_sync: Mutex<Option<RunningSync>>,
    report: watch::Sender<Option<Arc<Report>>>,
    status: watch::Sender<Arc<NodeProxyStatus>>,
    heartbeat: watch::Sender<Option<Moment>>,
    status_in_api: watch::Sender<Value>,
    conntrack: watch::Sender<ConntrackState>,
    not_relayed: watch::Sender<Vec<Rejection>>,
    full_affinity_maps: watch::Sender<BTreeSet<FrontendKey>>,
    serving_state: watch::Sender<ServingState>,
    handover_refusal: watch::Sender<Option<String>>,
    api_service: watch::Sender<ApiServiceState>,
    scan: watch::Sender<ForeignProxyScan>,
    others: watch::Sender<()>,
    rules_writer: Mutex<RulesWriter>,
    latencies: Mutex<Latencies>,
    variants: watch::Sender<VariantScan>,
    families: Mutex<BTreeMap<Family, FamilyState>>,
}

/// How one family is programmed.
#[derive(Debug, Clone)]
pub(crate) struct FamilyState {
    /// The observed rules of the family; `None` if they are not known.
    pub(crate) held: Option<RulesByMechanism>,
    /// The mechanisms that program it.
    pub(crate) mode: MechanismState,
}

// === impl Board ===

impl Board {
    pub(crate) fn new() -> Board {
        Board {
            view: watch::Sender::new(None),
            applied_config: watch::Sender::new(None),
            running_sync: Mutex::default(),
            report: watch::Sender::new(None),
            status: watch::Sender::new(Arc::default()),
            heartbeat: watch::Sender::new(None),
            status_in_api: watch::Sender::new(Value::Null),
            conntrack: watch::Sender::new(ConntrackState::default()),
            not_relayed: watch::Sender::new(Vec::new()),
            full_affinity_maps: watch::Sender::new(BTreeSet::new()),
            serving_state: watch::Sender::new(ServingState::default()),
            handover_refusal: watch::Sender::new(None),
            api_service: watch::Sender::new(ApiServiceState::default()),
            scan: watch::Sender::new(ForeignProxyScan::default()),
            others: watch::Sender::new(()),
            rules_writer: Mutex::default(),
            latencies: Mutex::default(),
            variants: watch::Sender::new(VariantScan::default()),
            families: Mutex::default(),
        }
    }

    /// The engine's view: the configuration and the desired state.
    pub(crate) fn view(&self) -> watch::Receiver<Option<Arc<View>>> {
        self.view.subscribe()
    }

    /// The node's configuration, without its Services; `None` while it is not settled. Changes only
    /// when the configuration does.
    pub(crate) fn applied_config(&self) -> watch::Receiver<Option<AppliedConfig>> {
        self.applied_config.subscribe()
    }

    pub(crate) fn post_view(&self, view: View) {
        let applied_config = view.applied_config();
        self.applied_config.send_if_modified(|posted| {
            let changed = match (&*posted, &applied_config) {
                (Some(before), Some(now)) => !before.is(now),
                (before, now) => before.is_some() != now.is_some(),
            };
            if changed {
                *posted = applied_config;
            }
            changed
        });
        self.view.send_replace(Some(Arc::new(view)));
    }

    /// The reconciler's last report.
    pub(crate) fn report(&self) -> watch::Receiver<Option<Arc<Report>>> {
        self.report.subscribe()
    }

    /// The sync in progress, if there is one. Its start does not wake readers.
    pub(crate) fn running_sync(&self) -> Option<RunningSync> {
        *lock(&self.running_sync)
    }

    pub(crate) fn post_running_sync(&self, running_sync: RunningSync) {
        *lock(&self.running_sync) = Some(running_sync);
    }

    /// Posts a report, and the new state of the families that may have changed.
    pub(crate) fn post_report(
        &self,
        report: Report,
        families: impl IntoIterator<Item = (Family, FamilyState)>,
        now: Instant,
    ) {
        lock(&self.latencies).record(&report, now);
        for (family, state) in families {
            // Dropped after the lock is released: this may be the last reference.
            let before = lock(&self.families).insert(family, state);
            drop(before);
        }
        *lock(&self.running_sync) = None;
        self.report.send_replace(Some(Arc::new(report)));
    }

    /// The latency of recent changes.
    pub(crate) fn latency(&self, now: Instant) -> Option<SyncLatency> {
        lock(&self.latencies).summary(now)
    }

    /// The observed rules of one family.
    pub(crate) fn held(&self, family: Family) -> Option<RulesByMechanism> {
        lock(&self.families).get(&family)?.held.clone()
    }

    /// The number of elements and rules in the kernel, as observed.
    pub(crate) fn elements(&self) -> usize {
        let families = lock(&self.families);
        let held = families.values().filter_map(|family| family.held.as_ref());
        held.map(RulesByMechanism::elements).sum()
    }

    /// How each family is programmed.
    pub(crate) fn modes(&self) -> BTreeMap<Family, MechanismState> {
        let families = lock(&self.families);
        let modes = families.iter();
        modes
            .map(|(family, state)| (*family, state.mode.clone()))
            .collect()
    }

    /// The scan for rules of other programs in both variants of iptables.
    pub(crate) fn variants(&self) -> watch::Receiver<VariantScan> {
        self.variants.subscribe()
    }

    pub(crate) fn post_variants(&self, scan: VariantScan) {
        post(&self.variants, scan);
    }

    /// The node ports that should be served on localhost and are not.
    pub(crate) fn not_relayed(&self) -> watch::Receiver<Vec<Rejection>> {
        self.not_relayed.subscribe()
    }

    pub(crate) fn post_not_relayed(&self, rejections: Vec<Rejection>) {
        post(&self.not_relayed, rejections);
    }

    /// The frontends that recently had no room for another client's affinity.
    pub(crate) fn full_affinity_maps(&self) -> watch::Receiver<BTreeSet<FrontendKey>> {
        self.full_affinity_maps.subscribe()
    }

    pub(crate) fn post_full_affinity_maps(&self, frontends: BTreeSet<FrontendKey>) {
        post(&self.full_affinity_maps, frontends);
    }

    /// Whether Signpost or another proxy serves the node's Services.
    pub(crate) fn serving_state(&self) -> watch::Receiver<ServingState> {
        self.serving_state.subscribe()
    }

    pub(crate) fn post_serving_state(&self, serving_state: ServingState) {
        self.serving_state.send_replace(serving_state);
    }

    /// What prevents the handover that the profile asks for, as of the last attempt.
    pub(crate) fn handover_refusal(&self) -> watch::Receiver<Option<String>> {
        self.handover_refusal.subscribe()
    }

    /// Whether new connections reach the API server through its Service.
    pub(crate) fn api_service(&self) -> watch::Receiver<ApiServiceState> {
        self.api_service.subscribe()
    }

    pub(crate) fn post_api_service(&self, state: ApiServiceState) {
        post(&self.api_service, state);
    }

    pub(crate) fn post_handover_refusal(&self, refusal: Option<String>) {
        post(&self.handover_refusal, refusal);
    }

    /// The scan for other proxies.
    pub(crate) fn scan(&self) -> watch::Receiver<ForeignProxyScan> {
        self.scan.subscribe()
    }

    pub(crate) fn post_scan(&self, scan: ForeignProxyScan) {
        let mut writer = lock(&self.rules_writer);
        *writer = writer.after(&scan);
        drop(writer);
        post(&self.scan, scan);
    }

    /// What all scans and changes until now say of the kube-proxy that wrote the rules.
    pub(crate) fn rules_writer(&self) -> RulesWriter {
        *lock(&self.rules_writer)
    }

    /// Changes with each nf_tables change by another program that the agent is notified of.
    pub(crate) fn others(&self) -> watch::Receiver<()> {
        self.others.subscribe()
    }

    pub(crate) fn post_others(&self) {
        // Each kube-proxy changes rules when it starts.
        *lock(&self.rules_writer) = RulesWriter::Unknown;
        self.others.send_replace(());
    }

    /// The state of the conntrack table.
    pub(crate) fn conntrack(&self) -> watch::Receiver<ConntrackState> {
        self.conntrack.subscribe()
    }

    /// Where the conntrack tasks post the state of the table.
    pub(crate) fn conntrack_state(&self) -> &watch::Sender<ConntrackState> {
        &self.conntrack
    }

    /// Since when the node's Lease has been renewed without interruption; `None` while it cannot be
    /// renewed at all.
    pub(crate) fn heartbeat(&self) -> watch::Receiver<Option<Moment>> {
        self.heartbeat.subscribe()
    }

    pub(crate) fn post_heartbeat(&self, renewed_since: Option<Moment>) {
        post(&self.heartbeat, renewed_since);
    }

    /// The status of this node.
    pub(crate) fn status(&self) -> watch::Receiver<Arc<NodeProxyStatus>> {
        self.status.subscribe()
    }

    /// Where the watch of this node's NodeProxy posts the status that is in the API, whoever wrote
    /// it.
    pub(crate) fn status_in_api(&self) -> &watch::Sender<Value> {
        &self.status_in_api
    }

    pub(crate) fn post_status(&self, status: Arc<NodeProxyStatus>) {
        post(&self.status, status);
    }
}

/// Posts a value. Wakes readers if it differs.
fn post<T: PartialEq>(posted: &watch::Sender<T>, value: T) {
    posted.send_if_modified(|posted| {
        let changed = *posted != value;
        *posted = value;
        changed
    });
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The value is consistent between any two statements that change it, so a poisoned lock is
    // harmless.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(crate) mod tests {
    use crds::NodeProxySpec;
    use foreign_proxy::process::KubeProxy;
    use foreign_proxy::{Found, Mechanism};

    use super::*;
    use crate::engine::{Engine, MissingAssignment};
    use source::{Assignment, Delivery};

    /// A delivery with a node's first configuration.
    pub(crate) fn assigned() -> Delivery {
        Delivery::Configuration(Some(Assignment {
            generation: Some(1),
            spec: NodeProxySpec::default(),
            reason: String::new(),
            unreadable: Vec::new(),
        }))
    }

    fn scan(kube_proxy: KubeProxy) -> ForeignProxyScan {
        let rules = [(Mechanism::Nftables, BTreeSet::from([Family::Ipv4]))];
        let found = Found {
            rules: rules.into(),
            ..Found::default()
        };
        ForeignProxyScan::Seen(found, kube_proxy)
    }

    /// Failure story T330. The rules that are left are those of a kube-proxy that runs, or that was started again.
    #[test]
    fn t330_after_a_change_by_another_program_it_counts_what_is_seen_from_then_on() {
        let answers = || {
            scan(KubeProxy::Answers {
                at: "127.0.0.1:10249",
            })
        };
        let silent = || scan(KubeProxy::Silent);
        let board = Board::new();
        let may_run = || board.rules_writer().may_run_silently(&silent());
        board.post_scan(answers());
        board.post_others();
        board.post_scan(answers());
        board.post_scan(silent());
        assert!(
            !may_run(),
            "it changed rules, answered again, and was stopped"
        );
        board.post_scan(answers());
        board.post_others();
        board.post_scan(silent());
        assert!(
            may_run(),
            "another one was started, and the agent has its ports"
        );
    }

    #[test]
    fn who_follows_the_configuration_does_not_wake_for_services() {
        let board = Board::new();
        let mut engine = Engine::new("node-1", None, MissingAssignment::MayEnd);
        let mut applied_config = board.applied_config();
        let mut view = board.view();
        let mut woke = |engine: &Engine| {
            board.post_view(engine.view());
            assert!(view.has_changed().expect("the board is there"));
            view.mark_unchanged();
            let woke = applied_config.has_changed().expect("the board is there");
            applied_config.mark_unchanged();
            woke
        };
        assert!(!woke(&engine), "nothing has changed");
        engine.apply(assigned(), Instant::now());
        assert!(woke(&engine));
        engine.apply(Delivery::Addresses([].into()), Instant::now());
        assert!(!woke(&engine));
        engine.apply(assigned(), Instant::now());
        assert!(woke(&engine), "the configuration has changed");
    }
}
