//! One simulated agent: it reports what its node does, as soon as and as often as a real agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use crds::condition::{self, FEATURES_HONOURED, READY};
use crds::node_proxy::LEASE_PREFIX;
use crds::{NodeProxy, NodeProxyStatus};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use kube::Resource as _;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep, sleep_until};

use super::agent_status::compose;
use super::agents::{Activity, World};
use super::node::SimulatedNode;

/// How long an agent takes to program a new configuration.
pub(super) const SYNC: Duration = Duration::from_millis(100);
/// How long a handover takes after the report that it is pending. An agent writes at most one
/// status a second, so a shorter one would not be seen.
pub(super) const HANDOVER: Duration = Duration::from_secs(1);
/// How often an agent writes a status in which only figures change (`node-agent`, `reporter.rs`).
const FIGURES: Duration = Duration::from_secs(150);
/// The shortest time between two statuses.
const AT_ONCE: Duration = Duration::from_secs(1);
/// The pause after a failed write.
const RETRY: Duration = Duration::from_secs(3);
/// How often an agent renews its Lease (`node-agent`, `heartbeat.rs`).
const RENEWAL: Duration = Duration::from_secs(30);
/// The time without a renewal after which an agent writes its status again.
const INTERRUPTION: Duration = Duration::from_secs(60);

/// What all agents share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) proxies: Api<NodeProxy>,
    pub(super) leases: Api<Lease>,
    /// Bounds the concurrent writes of statuses.
    pub(super) statuses: Semaphore,
    /// Bounds the concurrent renewals, which must not wait for thousands of statuses.
    pub(super) renewals: Semaphore,
    /// The number of statuses written.
    pub(super) writes: AtomicU64,
    /// The largest number of nodes that had not yet applied the configuration in their spec.
    pub(super) most_changing: AtomicUsize,
    /// When the API server last accepted a status in which Ready changed.
    pub(super) turned: watch::Sender<Option<Instant>>,
}

/// The agent of one node.
pub(super) struct Agent {
    name: String,
    /// The place of this agent in every period, from 0 to 1.
    phase: f64,
    /// The NodeProxy with its last spec.
    desired: watch::Receiver<NodeProxy>,
    world: watch::Receiver<World>,
    shared: Arc<Shared>,
    node: SimulatedNode,
    /// The last generation that the node has programmed.
    programmed: Option<i64>,
    /// Whether to write the next status even if it means the same.
    is_due: bool,
    /// The last status; `None` if it must be written whatever it says.
    written: Option<Written>,
    renewed: Instant,
}

/// A status that the API server has accepted.
struct Written {
    status: NodeProxyStatus,
    at: Instant,
}

// === impl Agent ===

impl Agent {
    /// Creates the agent of the node `name`, the `number`-th of all.
    pub(super) fn new(
        name: String,
        number: u32,
        desired: watch::Receiver<NodeProxy>,
        world: watch::Receiver<World>,
        shared: Arc<Shared>,
    ) -> Agent {
        // The golden ratio spreads any number of agents evenly.
        let phase = (f64::from(number) * 0.618_033_988_749_895).fract();
        Agent {
            name,
            phase,
            desired,
            world,
            shared,
            node: SimulatedNode::default(),
            programmed: None,
            is_due: false,
            written: None,
            renewed: Instant::now(),
        }
    }

    /// Runs until the NodeProxy is deleted.
    pub(super) async fn run(mut self) {
        let mut renewals = periodic(RENEWAL, self.phase);
        let mut figures = periodic(FIGURES, self.phase);
        self.renew().await;
        loop {
            self.act().await;
            // Cancel safe: every arm only waits, and the state is read again above.
            tokio::select! {
                changed = self.desired.changed() => if changed.is_err() { return },
                changed = self.world.changed() => if changed.is_err() { return },
                _ = renewals.tick() => self.renew().await,
                _ = figures.tick() => self.change_figures(),
            }
        }
    }

    /// Does what the present configuration requests, and reports every step.
    async fn act(&mut self) {
        while self.desired.has_changed().is_ok() {
            let proxy = self.desired.borrow_and_update().clone();
            self.node.apply(&self.world.borrow_and_update(), &self.name);
            if self.programmed != proxy.metadata.generation {
                sleep(SYNC).await;
                self.programmed = proxy.metadata.generation;
                self.node.refusal = None;
            }
            if let Some(status) = self.news(&proxy) {
                let earliest = self.written.as_ref().map(|written| written.at + AT_ONCE);
                match earliest.filter(|earliest| *earliest > Instant::now()) {
                    Some(earliest) => sleep_until(earliest).await,
                    None => self.report(status).await,
                }
                continue;
            }
            let desired = proxy.spec.config.handover;
            if self.node.is_handed_over(desired) {
                return;
            }
            match self.node.obstacle(desired) {
                obstacle @ Some(_) if self.node.refusal == obstacle => return,
                obstacle @ Some(_) => self.node.refusal = obstacle,
                None => {
                    sleep(HANDOVER).await;
                    self.node.hand_over(desired);
                }
            }
        }
    }

    /// Returns the status if it is worth a write.
    fn news(&self, proxy: &NodeProxy) -> Option<NodeProxyStatus> {
        let Some(Written { status: before, .. }) = &self.written else {
            let before = NodeProxyStatus::default();
            return Some(compose(proxy, &self.node, &before, Timestamp::now()));
        };
        let status = compose(proxy, &self.node, before, Timestamp::now());
        (self.is_due || !means_the_same(before, &status)).then_some(status)
    }

    async fn report(&mut self, status: NodeProxyStatus) {
        let written = {
            let Ok(_turn) = self.shared.statuses.acquire().await else {
                return;
            };
            write_status(&self.shared.proxies, &self.name, &status).await
        };
        if let Err(error) = written {
            eprintln!("agent of {}: {error:#}", self.name);
            sleep(RETRY).await;
            return;
        }
        let at = Instant::now();
        self.shared.writes.fetch_add(1, Ordering::Relaxed);
        let ready = |status: &NodeProxyStatus| condition::status_of(&status.conditions, READY);
        let before = self.written.as_ref().map(|written| ready(&written.status));
        if before != Some(ready(&status)) {
            self.shared.turned.send_replace(Some(at));
        }
        self.is_due = false;
        self.written = Some(Written { status, at });
    }

    async fn renew(&mut self) {
        let owner = self.desired.borrow().owner_ref(&());
        let renewed = {
            let Ok(_turn) = self.shared.renewals.acquire().await else {
                return;
            };
            renew(&self.shared.leases, &self.name, owner).await
        };
        if let Err(error) = renewed {
            eprintln!("agent of {}: {error:#}", self.name);
            return;
        }
        if self.renewed.elapsed() > INTERRUPTION {
            // The operator may have written that this agent is silent.
            self.written = None;
        }
        self.renewed = Instant::now();
    }

    /// Under churn, changed endpoints change figures on every node.
    fn change_figures(&mut self) {
        if self.world.borrow().activity == Activity::Churn {
            self.node.added_services = self.node.added_services.wrapping_add(1);
            self.is_due = true;
        }
    }
}

/// Ticks every `period`, for the first time after this part of it.
fn periodic(period: Duration, phase: f64) -> Interval {
    let mut ticks = interval_at(Instant::now() + period.mul_f64(phase), period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Whether two statuses differ only in figures and messages (`node-agent`, `reporter.rs`).
fn means_the_same(before: &NodeProxyStatus, after: &NodeProxyStatus) -> bool {
    before.observed_generation == after.observed_generation
        && before.applied_hash == after.applied_hash
        && before.mode == after.mode
        && said(before).eq(said(after))
}

fn said(status: &NodeProxyStatus) -> impl Iterator<Item = [&str; 3]> {
    let conditions = status.conditions.iter();
    conditions
        .filter(|condition| condition.type_ != FEATURES_HONOURED)
        .map(|c| [&*c.type_, &*c.status, &*c.reason])
}

/// Renews a Lease as an agent does: with a patch, or by creating the Lease, which the NodeProxy
/// owns.
async fn renew(api: &Api<Lease>, node: &str, owner: Option<OwnerReference>) -> Result<()> {
    let name = format!("{LEASE_PREFIX}{node}");
    let spec = json!({"holderIdentity": node, "renewTime": MicroTime(Timestamp::now())});
    let patch = Patch::Merge(json!({"spec": spec}));
    match api.patch(&name, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        renewed => return renewed.map(drop).context("failed to renew the Lease"),
    }
    let owners: Vec<OwnerReference> = owner.into_iter().collect();
    let lease = serde_json::from_value(json!({
        "metadata": {"name": name, "ownerReferences": owners}, "spec": spec,
    }))?;
    let created = api.create(&PostParams::default(), &lease).await;
    created.map(drop).context("failed to create the Lease")
}

async fn write_status(api: &Api<NodeProxy>, node: &str, status: &NodeProxyStatus) -> Result<()> {
    let patch = json!({
        "apiVersion": "signpost.dev/v1alpha1",
        "kind": "NodeProxy",
        "metadata": {"name": node},
        "status": status,
    });
    // Forced like the agents' own writes: agents own their status, so there is no conflict.
    let parameters = PatchParams::apply("signpost-agent").force();
    let written = api
        .patch_status(node, &parameters, &Patch::Apply(&patch))
        .await;
    written.map(drop).context("failed to write the status")
}
