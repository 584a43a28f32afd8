//! Simulates the agents of all nodes: a task for each, and one watch of all NodeProxies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crds::NodeProxy;
use futures::StreamExt;
use kube::api::Api;
use kube::runtime::watcher::{self, watcher};
use kube::{Client, ResourceExt as _};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::AT_A_TIME;
use super::agent::{Agent, Shared};

/// The activity on the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activity {
    /// Nothing changes.
    Rest,
    /// Endpoints change on every node.
    Churn,
}

/// The nodes on which kube-proxy runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KubeProxy {
    /// None. Its rules stay where it ran before.
    Nowhere,
    /// One node.
    On(String),
    /// All nodes.
    Everywhere,
}

/// What happens on the nodes besides their agents' work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct World {
    pub(super) activity: Activity,
    pub(super) kube_proxy: KubeProxy,
    /// The node whose kernel refuses changes.
    pub(super) failing: Option<String>,
}

/// The agents of all nodes. They stop on drop.
#[derive(Debug)]
pub(super) struct Agents {
    world: watch::Sender<World>,
    shared: Arc<Shared>,
    // Dropping it ends the tasks.
    _tasks: JoinSet<()>,
}

/// The task that watches all NodeProxies.
struct Watch {
    world: watch::Receiver<World>,
    shared: Arc<Shared>,
    /// The last spec of each node, for its agent.
    desired: BTreeMap<String, watch::Sender<NodeProxy>>,
    /// The nodes that have not applied the configuration in their spec.
    changing: BTreeSet<String>,
    agents: JoinSet<()>,
}

// === impl KubeProxy ===

impl KubeProxy {
    /// Whether it runs on this node.
    pub(super) fn is_on(&self, node: &str) -> bool {
        match self {
            KubeProxy::Nowhere => false,
            KubeProxy::On(only) => only == node,
            KubeProxy::Everywhere => true,
        }
    }
}

// === impl Agents ===

impl Agents {
    /// Starts the agents at rest, on nodes without kube-proxy.
    pub(super) fn start(client: Client) -> Agents {
        let (world, worlds) = watch::channel(World {
            activity: Activity::Rest,
            kube_proxy: KubeProxy::Nowhere,
            failing: None,
        });
        let shared = Arc::new(Shared {
            leases: Api::namespaced(client.clone(), "signpost-system"),
            proxies: Api::all(client),
            statuses: Semaphore::new(AT_A_TIME),
            renewals: Semaphore::new(AT_A_TIME),
            writes: AtomicU64::default(),
            most_changing: AtomicUsize::default(),
            turned: watch::Sender::new(None),
        });
        let task = Watch {
            world: worlds,
            shared: Arc::clone(&shared),
            desired: BTreeMap::new(),
            changing: BTreeSet::new(),
            agents: JoinSet::new(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run());
        Agents {
            world,
            shared,
            _tasks: tasks,
        }
    }

    /// Changes the activity on all nodes.
    pub(super) fn turn_to(&self, activity: Activity) {
        self.world.send_modify(|world| world.activity = activity);
    }

    /// Starts kube-proxy on these nodes, and stops it on all others.
    pub(super) fn run_kube_proxy(&self, kube_proxy: KubeProxy) {
        self.world
            .send_modify(|world| world.kube_proxy = kube_proxy);
    }

    /// Lets the kernel of one node refuse changes, and those of all others accept them.
    pub(super) fn fail(&self, node: Option<String>) {
        self.world.send_modify(|world| world.failing = node);
    }

    /// Follows when the API server last accepted a status in which Ready changed.
    pub(super) fn turned(&self) -> watch::Receiver<Option<Instant>> {
        self.shared.turned.subscribe()
    }

    /// Waits until the API server has answered every status that waits to be written now.
    pub(super) async fn catch_up(&self) {
        // Turns are given in the order in which they were asked for, and these are all of them.
        let all = u32::try_from(AT_A_TIME).unwrap_or(u32::MAX);
        drop(self.shared.statuses.acquire_many(all).await);
    }

    /// Returns the number of statuses written.
    pub(super) fn observe_writes(&self) -> u64 {
        self.shared.writes.load(Ordering::Relaxed)
    }

    /// Returns the largest number of nodes, since the last call, that had not yet applied the
    /// configuration in their spec. It is exact unless the watch is interrupted: it reports every
    /// version of every object in order.
    pub(super) fn take_most_changing(&self) -> usize {
        self.shared.most_changing.swap(0, Ordering::Relaxed)
    }
}

// === impl Watch ===

impl Watch {
    async fn run(mut self) {
        let config = watcher::Config::default();
        let mut events = watcher(self.shared.proxies.clone(), config).boxed();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Apply(proxy) | watcher::Event::InitApply(proxy)) => {
                    self.apply(proxy);
                }
                Ok(watcher::Event::Delete(proxy)) => {
                    self.changing.remove(&proxy.name_any());
                    // The agent ends with its channel.
                    self.desired.remove(&proxy.name_any());
                }
                Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
                Err(error) => eprintln!("agents: {error}"),
            }
        }
    }

    fn apply(&mut self, proxy: NodeProxy) {
        let name = proxy.name_any();
        let status = proxy.status.as_ref();
        let applied = status.and_then(|status| status.applied_hash.as_ref());
        if applied == Some(&proxy.spec.config_hash) {
            self.changing.remove(&name);
        } else {
            self.changing.insert(name.clone());
            let changing = self.changing.len();
            self.shared
                .most_changing
                .fetch_max(changing, Ordering::Relaxed);
        }
        if let Some(desired) = self.desired.get(&name) {
            desired.send_if_modified(|known| {
                let is_new = known.metadata.generation != proxy.metadata.generation;
                if is_new {
                    *known = proxy;
                }
                is_new
            });
            return;
        }
        let number = u32::try_from(self.desired.len()).unwrap_or(u32::MAX);
        let (sender, desired) = watch::channel(proxy);
        let (world, shared) = (self.world.clone(), Arc::clone(&self.shared));
        let agent = Agent::new(name.clone(), number, desired, world, shared);
        self.agents.spawn(agent.run());
        self.desired.insert(name, sender);
    }
}
