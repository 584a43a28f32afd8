//! The steps of the measurement.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use crds::node_proxy::NodeProxy;
use crds::profile::ProxyProfile;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::agent::SYNC;
use super::agents::{Activity, Agents};
use super::api_server::{self, Requests};
use super::operator::Operator;
use super::{AT_A_TIME, Edit, Figures, Load, Settings};
use crate::control_plane::{ADMINISTRATOR, ControlPlane, Options, client};

const PROFILE: &str = "default";
/// The timeout of every step.
pub(super) const PATIENCE: Duration = Duration::from_mins(20);
/// The polling interval of the profile.
const LOOK: Duration = Duration::from_millis(50);
/// The pause between a change and the next measurement, so that the effects of the change are over.
const QUIET: Duration = Duration::from_secs(5);
/// The number of waves of a default rollout: one node, 1 %, 5 %, 25 %, the rest.
const WAVES: u32 = 5;

/// One cluster under measurement.
pub(super) struct Cluster {
    operator: Operator,
    pub(super) agents: Agents,
    pub(super) client: Client,
    pub(super) settings: Settings,
    // Dropped after its users.
    _control_plane: ControlPlane,
}

/// Measures a cluster as `settings` say.
pub async fn measure(settings: Settings) -> Result<Figures> {
    let Settings { nodes, watched, .. } = settings;
    let control_plane = ControlPlane::start(Options::default())?;
    control_plane.apply_operator_manifests()?;
    let client = client(&control_plane.kubeconfig(ADMINISTRATOR)?).await?;
    let cluster = Cluster {
        operator: Operator::start(&control_plane)?,
        agents: Agents::start(client.clone()),
        client,
        settings,
        _control_plane: control_plane,
    };
    cluster.put_sync_period("30s").await?;
    let join = cluster.join().await?;
    eprintln!("{nodes} nodes joined in {join:.1?}");
    sleep(QUIET).await;
    let rest = cluster.load(watched).await?;
    eprintln!("at rest: {rest}");
    let delays = cluster.measure_delays().await?;
    let edit = cluster.edit("31s").await?;
    sleep(QUIET).await;
    cluster.agents.turn_to(Activity::Churn);
    sleep(QUIET).await;
    let churn = cluster.load(watched).await?;
    eprintln!("churn: {churn}");
    let delays_under_churn = cluster.measure_delays().await?;
    let edit_under_churn = cluster.edit("32s").await?;
    cluster.agents.turn_to(Activity::Rest);
    let handovers = cluster.measure_handovers().await?;
    Ok(Figures {
        nodes,
        join,
        rest,
        delays,
        churn,
        delays_under_churn,
        edit,
        edit_under_churn,
        handovers,
    })
}

/// Returns the name of the `number`-th node, counted from 0. They are in alphabetical order.
pub(super) fn node_name(number: usize) -> String {
    format!("node-{number:05}")
}

// === impl Cluster ===

impl Cluster {
    /// Replaces the spec of the profile; returns its generation.
    pub(super) async fn put_profile(&self, spec: Value) -> Result<i64> {
        let profile = json!({
            "apiVersion": "signpost.dev/v1alpha1", "kind": "ProxyProfile", "metadata": {"name": PROFILE},
            "spec": spec,
        });
        let api: Api<ProxyProfile> = Api::all(self.client.clone());
        let parameters = PatchParams::apply("fleet");
        let profile = api
            .patch(PROFILE, &parameters, &Patch::Apply(&profile))
            .await?;
        profile.metadata.generation.context("it has a generation")
    }

    async fn put_sync_period(&self, sync_period: &str) -> Result<i64> {
        let spec = json!({"syncPeriod": sync_period, "rollout": {"minReady": "0s"}});
        self.put_profile(spec).await
    }

    /// Whether this is the number of all nodes.
    pub(super) fn is_all(&self, count: u32) -> bool {
        usize::try_from(count).is_ok_and(|count| count == self.settings.nodes)
    }

    /// Creates all nodes, and waits until the status reports them ready.
    async fn join(&self) -> Result<Duration> {
        let began = Instant::now();
        let nodes: Api<Node> = Api::all(self.client.clone());
        let create = |number: usize| {
            let nodes = nodes.clone();
            async move {
                let node = serde_json::from_value(json!({
                    "metadata": {"name": node_name(number), "labels": {
                        "kubernetes.io/os": "linux",
                        "topology.kubernetes.io/zone": format!("zone-{}", number % 3),
                    }},
                    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
                }))?;
                nodes.create(&PostParams::default(), &node).await?;
                anyhow::Ok(())
            }
        };
        at_a_time((0..self.settings.nodes).map(create)).await?;
        self.wait("all nodes to join", |profile| {
            let status = profile.status.as_ref()?;
            let have_joined = self.is_all(status.ready_nodes) && self.is_all(status.updated_nodes);
            have_joined.then_some(())
        })
        .await?;
        Ok(began.elapsed())
    }

    async fn load(&self, watched: Duration) -> Result<Load> {
        let observe = || async {
            let agents = u32::try_from(self.agents.observe_writes())?;
            let operator = self.operator.tree().observe_processor_time()?;
            anyhow::Ok((
                api_server::observe(&self.client).await?,
                f64::from(agents),
                operator,
            ))
        };
        let began = Instant::now();
        let before = observe().await?;
        sleep(watched).await;
        let after = observe().await?;
        let seconds = began.elapsed().as_secs_f64();
        let percent =
            |before: Duration, after: Duration| 100.0 * (after - before).as_secs_f64() / seconds;
        let requests = Requests::rates(before.0.requests, after.0.requests, seconds);
        let agents = (after.1 - before.1) / seconds;
        Ok(Load {
            agents,
            // A status in flight at either end is counted on one side only.
            operator: (requests.writes - agents).max(0.0),
            requests,
            open_watches: after.0.open_watches,
            processor: percent(before.2, after.2),
            api_server: percent(before.0.processor, after.0.processor),
            memory: self.operator.tree().observe_memory(),
        })
    }

    /// Edits the profile and measures how it spreads.
    async fn edit(&self, sync_period: &str) -> Result<Edit> {
        // The agents' own writes take as long as the operator's.
        let least = self.observe_least(2, SYNC * WAVES).await?;
        let began = Instant::now();
        let generation = self.put_sync_period(sync_period).await?;
        let (mut status, mut first) = (None, None);
        self.wait("the rollout to end", |profile| {
            let now = profile.status.as_ref()?;
            if now.observed_generation != Some(generation) {
                return None;
            }
            status.get_or_insert_with(|| began.elapsed());
            if now.current_hash != now.target_hash && now.updated_nodes > 0 {
                first.get_or_insert_with(|| began.elapsed());
            }
            let is_over = now.current_hash == now.target_hash;
            (is_over && self.is_all(now.updated_nodes) && self.is_all(now.ready_nodes))
                .then_some(())
        })
        .await?;
        let edit = Edit {
            status: status.unwrap_or_default(),
            first: first.unwrap_or_default(),
            all: began.elapsed(),
            least,
        };
        eprintln!("edit: {edit:.1?}");
        Ok(edit)
    }

    /// Measures one write of every NodeProxy, and waits until its effects are over. Returns the time
    /// of `writes` such writes and of the agents' `work`.
    pub(super) async fn observe_least(&self, writes: u32, work: Duration) -> Result<Duration> {
        let proxies: Api<NodeProxy> = Api::all(self.client.clone());
        let names = proxies.list_metadata(&ListParams::default()).await?;
        let began = Instant::now();
        let stamp = format!("{began:?}");
        let write = |name: String| {
            let (proxies, stamp) = (proxies.clone(), stamp.clone());
            async move {
                let patch = json!({"metadata": {"annotations": {"signpost.dev/measured": stamp}}});
                let parameters = PatchParams::default();
                proxies
                    .patch_metadata(&name, &parameters, &Patch::Merge(&patch))
                    .await?;
                anyhow::Ok(())
            }
        };
        at_a_time(names.items.iter().map(|item| write(item.name_any()))).await?;
        let took = began.elapsed();
        // Under churn, statuses have waited meanwhile, and those of the rollout would come after them.
        self.agents.catch_up().await;
        Ok(took * writes + work)
    }

    /// Reads the profile until `is_over` returns something.
    pub(super) async fn wait<T>(
        &self,
        what: &str,
        mut is_over: impl FnMut(&ProxyProfile) -> Option<T>,
    ) -> Result<T> {
        let api: Api<ProxyProfile> = Api::all(self.client.clone());
        let deadline = Instant::now() + PATIENCE;
        loop {
            let profile = api.get(PROFILE).await?;
            if let Some(found) = is_over(&profile) {
                return Ok(found);
            }
            if Instant::now() > deadline {
                bail!("waited in vain for {what}: {:?}", profile.status);
            }
            sleep(LOOK).await;
        }
    }
}

/// Runs all of `requests` with at most [`AT_A_TIME`] concurrent ones.
async fn at_a_time<F: Future<Output = Result<()>>>(
    requests: impl Iterator<Item = F>,
) -> Result<()> {
    let mut answers = stream::iter(requests).buffer_unordered(AT_A_TIME);
    while let Some(answer) = answers.next().await {
        answer?;
    }
    Ok(())
}
