//! Simulates the agents of all nodes: a task for each, and one watch of all NodeProxies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// The number of concurrent renewals of Leases. 5,000 agents make 167 a second.
const RENEWALS_AT_A_TIME: usize = 4;

/// The activity on the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activity {
    /// Nothing changes.
    Rest,
    /// Endpoints change on every node.
    Churn,
}

/// What happens on the nodes besides their agents' work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct World {
    pub(super) activity: Activity,
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
    agents: JoinSet<()>,
}

// === impl Agents ===

impl Agents {
    /// Starts the agents at rest.
    pub(super) fn start(client: Client) -> Agents {
        let (world, worlds) = watch::channel(World {
            activity: Activity::Rest,
            failing: None,
        });
        let shared = Arc::new(Shared {
            leases: Api::namespaced(client.clone(), "signpost-system"),
            proxies: Api::all(client),
            statuses: Semaphore::new(AT_A_TIME),
            renewals: Semaphore::new(RENEWALS_AT_A_TIME),
            writes: AtomicU64::default(),
            turned: watch::Sender::new(None),
        });
        let task = Watch {
            world: worlds,
            shared: Arc::clone(&shared),
            desired: BTreeMap::new(),
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

    /// Lets the kernel of one node refuse changes, and those of all others accept them.
    pub(super) fn fail(&self, node: Option<String>) {
        self.world.send_modify(|world| world.failing = node);
    }

    /// Follows when the API server last accepted a status in which Ready changed.
    pub(super) fn turned(&self) -> watch::Receiver<Option<Instant>> {
        self.shared.turned.subscribe()
    }

    /// Returns the number of statuses written.
    pub(super) fn observe_writes(&self) -> u64 {
        self.shared.writes.load(Ordering::Relaxed)
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
