//! The agents of all nodes in one task: each reports once its node is given something, unless the
//! test holds it back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::node_proxy::NodeProxy;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tests::control_plane::client;
use tests::deadline::patience;
use tokio::runtime::{Builder, Runtime};
use tokio::time::sleep;

use super::pools::Pool;
use super::record::Record;
use crate::DEADLINE;
use crate::agents::programmed;

/// The number of concurrent requests.
const AT_A_TIME: usize = 8;
/// How often agents look whether they have something to report.
const TICK: Duration = Duration::from_millis(20);
/// How long the watch waits after an error before it starts again.
const RETRY: Duration = Duration::from_millis(100);

/// The agents of all nodes, and what their nodes are given. They stop on drop.
#[derive(Debug)]
pub(crate) struct Agents {
    shared: Arc<Shared>,
    nodes: Api<Node>,
    proxies: Api<DynamicObject>,
    // Dropping it ends the tasks.
    runtime: Runtime,
}

#[derive(Debug)]
struct Shared {
    desk: Mutex<Desk>,
    /// Signals changes of the record.
    changed: Condvar,
}

#[derive(Debug)]
struct Desk {
    record: Record,
    /// The nodes whose agents do not report on what they are given.
    held: BTreeSet<String>,
    source: Source,
}

/// Whether the agents hear from their API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Synced,
    /// Their watches fail. They report by way of another API server.
    Stale,
}

/// A report that is due.
#[derive(Debug)]
struct Report {
    node: String,
    about: Subject,
    /// The fields of the status that it writes.
    status: Value,
}

/// What a report is about: the UID and the generation of the NodeProxy, and the source.
type Subject = (Option<String>, Option<i64>, Source);

// === impl Agents ===

impl Agents {
    /// Starts the agents with the permissions of this kubeconfig; nodes of `pools` are judged.
    pub(crate) fn start(kubeconfig: &Path, pools: &'static [Pool]) -> Result<Agents> {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build()?;
        let client: Client = runtime.block_on(client(kubeconfig))?;
        let resource = ApiResource::erase::<NodeProxy>(&());
        let proxies: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let shared = Arc::new(Shared {
            desk: Mutex::new(Desk {
                record: Record::new(pools),
                held: BTreeSet::new(),
                source: Source::Synced,
            }),
            changed: Condvar::new(),
        });
        runtime.spawn(watch(proxies.clone(), Arc::clone(&shared)));
        runtime.spawn(report(proxies.clone(), Arc::clone(&shared)));
        Ok(Agents {
            shared,
            nodes: Api::all(client),
            proxies,
            runtime,
        })
    }

    /// Holds back the reports of these nodes.
    pub(crate) fn hold(&self, nodes: impl IntoIterator<Item = String>) {
        self.shared.lock().held.extend(nodes);
    }

    /// Lets these nodes report.
    pub(crate) fn release(&self, nodes: impl IntoIterator<Item = String>) {
        let mut desk = self.shared.lock();
        for node in nodes {
            desk.held.remove(&node);
        }
    }

    /// Returns what `look` finds in the record.
    pub(crate) fn look<T>(&self, look: impl Fn(&Record) -> T) -> T {
        look(&self.shared.lock().record)
    }

    /// Returns as soon as the record is like this, within milliseconds.
    pub(crate) fn wait_for(&self, what: &str, is_so: impl Fn(&Record) -> bool) -> Result<()> {
        let deadline = patience(DEADLINE);
        let changed = &self.shared.changed;
        let waited =
            changed.wait_timeout_while(self.shared.lock(), deadline, |desk| !is_so(&desk.record));
        let (desk, wait) = waited.unwrap_or_else(PoisonError::into_inner);
        ensure!(
            !wait.timed_out(),
            "waited {deadline:?} in vain for {what}:\n{}",
            desk.record.describe()
        );
        Ok(())
    }

    /// Restarts all agents: each writes a report of a later sync with the same conditions.
    pub(crate) fn restart(&self) -> Result<()> {
        let names: Vec<String> = self.look(|record| {
            let reported = record.proxies().filter(has_status);
            reported.map(DynamicObject::name_any).collect()
        });
        let status = json!({"lastSyncTime": Timestamp::now()});
        self.patch_all(&self.proxies, &names, &status)
    }

    /// The watches of all agents fail from now on, and each agent says so.
    pub(crate) fn lose_api_server(&self) {
        self.shared.lock().source = Source::Stale;
    }

    /// The watches of all agents work from now on, and each agent says so.
    pub(crate) fn find_api_server(&self) {
        self.shared.lock().source = Source::Synced;
    }

    /// Returns once all agents that have reported have said whether their watches work.
    pub(crate) fn wait_until_said(&self) -> Result<()> {
        let source = self.shared.lock().source;
        self.wait_for("all agents to say whether their watches work", |record| {
            let mut reported = record.proxies().filter(has_status);
            reported.all(|proxy| source.is_said_by(proxy))
        })
    }

    /// Reports in place of the node controller that these kubelets are lost.
    pub(crate) fn lose_kubelets(&self, nodes: &[String]) -> Result<()> {
        let ready = json!([{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]);
        self.patch_all(&self.nodes, nodes, &json!({"conditions": ready}))
    }

    /// Reports in place of these kubelets that they are back.
    pub(crate) fn find_kubelets(&self, nodes: &[String]) -> Result<()> {
        let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady"}]);
        self.patch_all(&self.nodes, nodes, &json!({"conditions": ready}))
    }

    fn patch_all<K>(&self, api: &Api<K>, names: &[String], status: &Value) -> Result<()>
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let patches = names.iter().map(|name| write(api, name, status));
        let mut answers = stream::iter(patches).buffer_unordered(AT_A_TIME);
        self.runtime.block_on(async {
            while let Some(answer) = answers.next().await {
                answer?;
            }
            Ok(())
        })
    }
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Record)) {
        change(&mut self.lock().record);
        self.changed.notify_all();
    }
}

// === impl Desk ===

impl Desk {
    /// Returns the reports that agents have to write, after those about `reported`.
    fn due(&self, reported: &BTreeMap<String, Subject>) -> Vec<Report> {
        let source = self.source;
        let due = self.record.proxies().filter_map(|proxy| {
            let node = proxy.name_any();
            let known = reported.get(&node);
            if self.held.contains(&node) {
                // Its agent reports on what the node had before.
                let (uid, generation, _) = known.filter(|(_, _, known)| *known != source)?;
                return Some(Report {
                    about: (uid.clone(), *generation, source),
                    status: source.said_as_before(proxy),
                    node,
                });
            }
            let generation = proxy.metadata.generation;
            let about = (proxy.uid(), generation, source);
            (known != Some(&about)).then(|| Report {
                status: programmed(&json!(generation), &proxy.data["spec"], source.degraded()),
                about,
                node,
            })
        });
        due.collect()
    }
}

// === impl Source ===

impl Source {
    /// Returns the status and the reason of condition Degraded.
    fn degraded(self) -> (&'static str, &'static str) {
        match self {
            Source::Synced => ("False", "AsExpected"),
            Source::Stale => ("True", "SourceStale"),
        }
    }

    /// Returns the conditions of `proxy` with another condition Degraded.
    fn said_as_before(self, proxy: &DynamicObject) -> Value {
        let mut conditions = proxy.data["status"]["conditions"].clone();
        let all = conditions.as_array_mut().into_iter().flatten();
        for condition in all.filter(|condition| condition["type"] == "Degraded") {
            let (status, reason) = self.degraded();
            condition["status"] = status.into();
            condition["reason"] = reason.into();
            condition["lastTransitionTime"] = json!(Timestamp::now());
        }
        json!({"conditions": conditions})
    }

    fn is_said_by(self, proxy: &DynamicObject) -> bool {
        let conditions = proxy.data["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let (_, reason) = self.degraded();
        conditions.any(|condition| condition["type"] == "Degraded" && condition["reason"] == reason)
    }
}

fn has_status(proxy: &&DynamicObject) -> bool {
    proxy.data["status"].is_object()
}

async fn watch(proxies: Api<DynamicObject>, shared: Arc<Shared>) {
    let mut events = watcher(proxies, watcher::Config::default()).boxed();
    let mut listed = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(proxy)) => listed.push(proxy),
            Ok(Event::InitDone) => {
                let listed = std::mem::take(&mut listed);
                shared.change(|record| record.replace(listed));
            }
            Ok(Event::Apply(proxy)) => shared.change(|record| record.apply([proxy])),
            Ok(Event::Delete(proxy)) => shared.change(|record| record.remove(&proxy)),
            // The API server is away, or does not serve the kind.
            Err(_) => sleep(RETRY).await,
        }
    }
}

async fn report(proxies: Api<DynamicObject>, shared: Arc<Shared>) {
    let mut reported: BTreeMap<String, Subject> = BTreeMap::new();
    loop {
        let due = shared.lock().due(&reported);
        let reports = due.into_iter().map(|report| {
            let proxies = proxies.clone();
            async move {
                // After an error the report is due again.
                let written = write(&proxies, &report.node, &report.status).await;
                written.ok().map(|()| (report.node, report.about))
            }
        });
        let mut reports = stream::iter(reports).buffer_unordered(AT_A_TIME);
        while let Some(report) = reports.next().await {
            reported.extend(report);
        }
        sleep(TICK).await;
    }
}

/// Writes these fields of the status of an object.
async fn write<K>(api: &Api<K>, name: &str, status: &Value) -> Result<()>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let patch = Patch::Merge(json!({"status": status}));
    let written = api
        .patch_status(name, &PatchParams::default(), &patch)
        .await;
    written
        .map(drop)
        .with_context(|| format!("failed to write the status of {name}"))
}
