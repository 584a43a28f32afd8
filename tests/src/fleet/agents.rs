//! Simulates the agents of all nodes in one task, which writes each node's status when its agent
//! would.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use crds::node_proxy::{Counts, Heartbeat, LEASE_PREFIX, NodeProxy};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, watcher};
use kube::{Client, Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::AT_A_TIME;

/// How long an agent takes to program a new configuration.
pub(super) const SYNC: Duration = Duration::from_millis(100);
/// How often an agent writes an unchanged status (`node-agent`, `reporter.rs`).
const IDLE: Duration = Duration::from_secs(300);
/// How often an agent writes a status in which only figures change.
const FIGURES: Duration = Duration::from_secs(150);
/// How often an agent renews its Lease (`node-agent`, `heartbeat.rs`).
const RENEWAL: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(50);

/// The activity on the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activity {
    /// Nothing changes.
    Rest,
    /// Endpoints change on every node.
    Churn,
}

/// The agents of all nodes. They stop on drop.
#[derive(Debug)]
pub(super) struct Agents {
    activity: watch::Sender<Activity>,
    writes: Arc<AtomicU64>,
    // Dropping it ends the tasks.
    _tasks: JoinSet<()>,
}

/// A round robin over all nodes in the order of their names.
#[derive(Debug, Default)]
struct Turns {
    last: String,
    /// The number of turns that are due.
    due: f64,
}

/// The task that simulates all agents.
struct Task {
    api: Api<NodeProxy>,
    leases: Api<Lease>,
    room: Arc<Semaphore>,
    writes: Arc<AtomicU64>,
    /// The last spec of each node.
    nodes: BTreeMap<String, NodeProxy>,
    /// The nodes that report without a change of their configuration.
    reports: Turns,
    renewals: Turns,
    services: u32,
    writing: JoinSet<()>,
}

// === impl Agents ===

impl Agents {
    /// Starts the agents at rest.
    pub(super) fn start(client: Client) -> Agents {
        let (activity, activities) = watch::channel(Activity::Rest);
        let writes = Arc::<AtomicU64>::default();
        let task = Task {
            leases: Api::namespaced(client.clone(), "signpost-system"),
            api: Api::all(client),
            room: Arc::new(Semaphore::new(AT_A_TIME)),
            writes: Arc::clone(&writes),
            nodes: BTreeMap::new(),
            reports: Turns::default(),
            renewals: Turns::default(),
            services: 3,
            writing: JoinSet::new(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run(activities));
        Agents {
            activity,
            writes,
            _tasks: tasks,
        }
    }

    pub(super) fn turn_to(&self, activity: Activity) {
        self.activity.send_replace(activity);
    }

    /// Returns the number of statuses written.
    pub(super) fn observe_writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }
}

// === impl Task ===

impl Task {
    async fn run(mut self, activities: watch::Receiver<Activity>) {
        let mut events = watcher(self.api.clone(), watcher::Config::default()).boxed();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(watcher::Event::Apply(proxy) | watcher::Event::InitApply(proxy))) => self.take(proxy),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => eprintln!("agents: {error}"),
                    None => return,
                },
                _ = tick.tick() => {
                    let pause = match *activities.borrow() {
                        Activity::Rest => IDLE,
                        Activity::Churn => {
                            self.services = self.services.wrapping_add(1);
                            FIGURES
                        }
                    };
                    for proxy in self.reports.take(&self.nodes, pause) {
                        self.report(proxy, Duration::ZERO);
                    }
                    for proxy in self.renewals.take(&self.nodes, RENEWAL) {
                        self.renew(proxy);
                    }
                }
            }
            while self.writing.try_join_next().is_some() {}
        }
    }

    /// Takes a changed NodeProxy: the node programs a new configuration and reports.
    fn take(&mut self, proxy: NodeProxy) {
        let name = proxy.name_any();
        let before = self.nodes.insert(name, proxy.clone());
        let is_new =
            before.is_none_or(|before| before.metadata.generation != proxy.metadata.generation);
        if is_new {
            self.report(proxy, SYNC);
        }
    }

    fn renew(&mut self, proxy: NodeProxy) {
        let leases = self.leases.clone();
        self.spawn(proxy.name_any(), Duration::ZERO, async move {
            renew(&leases, &proxy).await
        });
    }

    fn report(&mut self, proxy: NodeProxy, delay: Duration) {
        let (api, writes, services) = (self.api.clone(), Arc::clone(&self.writes), self.services);
        self.spawn(proxy.name_any(), delay, async move {
            write_status(&api, &proxy, services).await?;
            writes.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
    }

    /// Makes a request of one node's agent after `delay`, once the number of concurrent requests
    /// allows.
    fn spawn(
        &mut self,
        node: String,
        delay: Duration,
        request: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        let room = Arc::clone(&self.room);
        self.writing.spawn(async move {
            sleep(delay).await;
            let Ok(_turn) = room.acquire().await else {
                return;
            };
            if let Err(error) = request.await {
                eprintln!("agent of {node}: {error:#}");
            }
        });
    }
}

// === impl Turns ===

impl Turns {
    /// Returns the nodes that are due since the last [`TICK`], if each is due once every `pause`.
    fn take(&mut self, nodes: &BTreeMap<String, NodeProxy>, pause: Duration) -> Vec<NodeProxy> {
        let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        self.due += f64::from(count) * TICK.as_secs_f64() / pause.as_secs_f64();
        let mut taken = Vec::new();
        while self.due >= 1.0 {
            self.due -= 1.0;
            let behind = nodes.range((Excluded(self.last.clone()), Unbounded)).next();
            let Some((name, proxy)) = behind.or_else(|| nodes.first_key_value()) else {
                break;
            };
            self.last.clone_from(name);
            taken.push(proxy.clone());
        }
        taken
    }
}

/// Renews a Lease as an agent does: with a patch, or by creating the Lease, which the NodeProxy
/// owns.
async fn renew(api: &Api<Lease>, proxy: &NodeProxy) -> Result<()> {
    let node = proxy.name_any();
    let name = format!("{LEASE_PREFIX}{node}");
    let spec = json!({"holderIdentity": node, "renewTime": MicroTime(Timestamp::now())});
    let patch = Patch::Merge(json!({"spec": spec}));
    match api.patch(&name, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        renewed => return renewed.map(drop).context("failed to renew the Lease"),
    }
    let lease = serde_json::from_value(json!({
        "metadata": {"name": name, "ownerReferences": [proxy.owner_ref(&())]}, "spec": spec,
    }))?;
    let created = api.create(&PostParams::default(), &lease).await;
    created.map(drop).context("failed to create the Lease")
}

async fn write_status(api: &Api<NodeProxy>, proxy: &NodeProxy, services: u32) -> Result<()> {
    let name = proxy.name_any();
    let patch = json!({
        "apiVersion": "signpost.dev/v1alpha1",
        "kind": "NodeProxy",
        "metadata": {"name": name},
        "status": status(proxy, services),
    });
    // Forced like the agents' own writes: agents own their status, so there is no conflict.
    let parameters = PatchParams::apply("signpost-agent").force();
    let written = api
        .patch_status(&name, &parameters, &Patch::Apply(&patch))
        .await;
    written.map(drop).context("failed to write the status")
}

fn status(proxy: &NodeProxy, services: u32) -> Value {
    let generation = proxy.metadata.generation;
    let since = proxy.metadata.creation_timestamp.as_ref();
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "",
            "observedGeneration": generation, "lastTransitionTime": since,
        })
    };
    let quantiles =
        json!({"p50Microseconds": 900, "p99Microseconds": 4000, "maxMicroseconds": 5000});
    json!({
        "observedGeneration": generation,
        "appliedHash": proxy.spec.config_hash,
        "mode": proxy.spec.config.mode,
        "heartbeat": Heartbeat::Lease,
        "lastSyncTime": Timestamp::now(),
        "syncLatency": {
            "window": "5m", "decode": quantiles, "compile": quantiles, "commit": quantiles,
            "total": quantiles, "p99": "4ms",
        },
        "counts": Counts { services, endpoints: 5, elements: 40 },
        "agentVersion": env!("CARGO_PKG_VERSION"),
        "conditions": [
            condition("Ready", "True", "Programmed"),
            condition("Progressing", "False", "Idle"),
            condition("Degraded", "False", "AsExpected"),
            condition("IPv4Programmed", "True", "Programmed"),
            condition("IPv6Programmed", "True", "Programmed"),
            condition("FeaturesHonoured", "True", "AllHonoured"),
            condition("SourceSynced", "True", "Watching"),
        ],
    })
}
