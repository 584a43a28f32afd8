//! A cluster with the test in the role of its agents, and its dashboard page.

use std::ops::Range;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use crds::node_proxy::NodeProxy;
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::binaries;
use tests::browser::Browser;
use tests::cluster::Program;
use tests::control_plane::{ADMINISTRATOR, ControlPlane, Options, ServiceAccount, client};
use tests::deadline::wait_for;
use tests::network::Process;
use tokio::time::interval;

use crate::DEADLINE;

pub(crate) const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// The environment of the tests. Fields are dropped in this order: users before what they use.
pub(crate) struct Stage {
    pub(crate) browser: Browser,
    /// The URL printed by the command.
    pub(crate) address: String,
    #[expect(dead_code, reason = "held for the sake of its end")]
    dashboard: Process,
    operator: Option<Program>,
    pub(crate) control_plane: ControlPlane,
    #[expect(dead_code, reason = "held for the sake of its end")]
    folder: TempDir,
}

// === impl Stage ===

impl Stage {
    /// Starts a cluster of three nodes with the operator, the dashboard and a browser that shows
    /// it.
    pub(crate) fn start() -> Result<Stage> {
        let folder = TempDir::new()?;
        let control_plane = ControlPlane::start(Options::default())?;
        control_plane.apply_operator_manifests()?;
        for node in NODES {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
            control_plane.apply(&node.to_string())?;
        }
        let account = ServiceAccount::new("signpost-system", "signpost-operator");
        let mut command = Command::new(binaries::find("signpost-operator")?);
        command
            .args(["run", "--metrics-address=127.0.0.1:0", "--kubeconfig"])
            .arg(control_plane.kubeconfig_of_account(&account)?);
        let log = folder.path().join("operator.log");
        let operator = Program::start("signpost-operator", command, &log)?;
        let mut command = Command::new(binaries::find("kubectl-signpost")?);
        command
            .arg("dashboard")
            .env("KUBECONFIG", control_plane.kubeconfig(ADMINISTRATOR)?)
            .stderr(Stdio::null());
        let mut dashboard = Process::start("kubectl-signpost", command)?;
        let address = dashboard.next_line(DEADLINE)?;
        let browser = Browser::start(None)?;
        browser.open(&address)?;
        Ok(Stage {
            browser,
            address,
            dashboard,
            operator: Some(operator),
            control_plane,
            folder,
        })
    }

    /// Returns the host and port of the page.
    pub(crate) fn host(&self) -> Result<&str> {
        let (_, rest) = self.address.split_once("//").context("an address")?;
        let (host, _) = rest.split_once('/').context("an address")?;
        Ok(host)
    }

    pub(crate) fn token(&self) -> Result<&str> {
        let (_, token) = self.address.split_once("#token=").context("a token")?;
        Ok(token)
    }

    /// Opens a view as its link does, and waits until it is shown.
    pub(crate) fn go_to(&self, view: &str) -> Result<()> {
        self.browser
            .evaluate(&format!("location.hash = {}", json!(view)))?;
        let name = view.split('/').next().unwrap_or(view);
        self.browser
            .wait_for_count(&format!("section#{name}:not([hidden])"), 1)
    }

    /// Creates the profile, or replaces its spec.
    pub(crate) fn put_profile(&self, name: &str, spec: &Value) -> Result<()> {
        let profile = json!({
            "apiVersion": "signpost.dev/v1alpha1", "kind": "ProxyProfile",
            "metadata": {"name": name}, "spec": spec,
        });
        self.control_plane.apply(&profile.to_string()).map(drop)
    }

    /// Returns the NodeProxy of `node` once it has this mode.
    pub(crate) fn wait_for_mode(&self, node: &str, mode: &str) -> Result<Value> {
        wait_for(&format!("{node} to get mode {mode}"), DEADLINE, || {
            let text = self.control_plane.kubectl(&[
                "get",
                "nodeproxy",
                node,
                "--ignore-not-found",
                "--output=json",
            ])?;
            let proxy: Value = serde_json::from_str(&text).unwrap_or_default();
            Ok((proxy["spec"]["config"]["mode"] == mode).then_some(proxy))
        })
    }

    /// Reports as the agent of `node` that it has applied its configuration and is in this state,
    /// with the additional status fields `more`.
    pub(crate) fn report(&self, node: &str, state: State, more: &Value) -> Result<()> {
        let proxy = self
            .control_plane
            .kubectl(&["get", "nodeproxy", node, "--output=json"])?;
        let proxy: Value = serde_json::from_str(&proxy)?;
        let mut status = status(&proxy, state);
        for (name, value) in more.as_object().into_iter().flatten() {
            status[name] = value.clone();
        }
        let patch = json!({ "status": status }).to_string();
        self.control_plane
            .patch_status(&format!("nodeproxy/{node}"), "default", &patch)
    }

    /// Stops the operator and creates NodeProxies `m0003` and so on.
    pub(crate) fn fill(&mut self, numbers: Range<usize>, reports: Reports) -> Result<()> {
        self.operator = None;
        let kubeconfig = self.control_plane.kubeconfig(ADMINISTRATOR)?;
        let text = self
            .control_plane
            .kubectl(&["get", "nodeproxy", "n1", "--output=json"])?;
        let like: NodeProxy = serde_json::from_str(&text)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let api = Api::<NodeProxy>::all(client(&kubeconfig).await?);
            let names = numbers.map(|number| format!("m{number:04}"));
            let create = |name: String| {
                let (api, proxy) = (api.clone(), NodeProxy::new(&name, like.spec.clone()));
                async move {
                    let made = api.create(&PostParams::default(), &proxy).await?;
                    let state = match (reports, name.get(3..)) {
                        (Reports::None, _) | (_, Some("50")) => return Ok(()),
                        (Reports::Most, Some("99")) => State::Failing,
                        (Reports::Most, _) => State::Ready,
                    };
                    let status = status(&serde_json::to_value(&made)?, state);
                    let patch = Patch::Merge(json!({ "status": status }));
                    let parameters = PatchParams::default();
                    let patched = api.patch_status(&name, &parameters, &patch);
                    patched.await.map(drop).map_err(anyhow::Error::from)
                }
            };
            let created = stream::iter(names.map(create)).buffer_unordered(AT_ONCE);
            created.try_collect::<Vec<()>>().await?;
            Ok(())
        })
    }
}

// A trial of thousands of nodes.
impl Stage {
    /// Reports as the agents of nodes `m0003` and so on, one after another, at this rate: three
    /// Ready, and one failing. Returns the number of reports, and how long they took.
    pub(crate) fn change(
        &self,
        numbers: Range<usize>,
        per_second: u32,
        span: Duration,
    ) -> Result<(usize, Duration)> {
        let kubeconfig = self.control_plane.kubeconfig(ADMINISTRATOR)?;
        let text = self
            .control_plane
            .kubectl(&["get", "nodeproxy", "m1000", "--output=json"])?;
        let like: Value = serde_json::from_str(&text)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let api = &Api::<NodeProxy>::all(client(&kubeconfig).await?);
            let started = Instant::now();
            let ticks = interval(Duration::from_secs(1) / per_second);
            let ticks = stream::unfold(ticks, |mut ticks| async move {
                ticks.tick().await;
                (started.elapsed() < span).then_some(((), ticks))
            });
            // Nodes far apart, as in a cluster.
            let places = (0..).map(|place: usize| place * 37 % numbers.len());
            let numbers = places.map(|place| numbers.start + place);
            let reports = ticks.zip(stream::iter(numbers)).map(|((), number)| {
                let state = match number % 4 {
                    0 => State::Failing,
                    _ => State::Ready,
                };
                let patch = Patch::Merge(json!({ "status": status(&like, state) }));
                async move {
                    let name = format!("m{number:04}");
                    let parameters = PatchParams::default();
                    api.patch_status(&name, &parameters, &patch).await.map(drop)
                }
            });
            let made: Vec<()> = reports.buffer_unordered(AT_ONCE).try_collect().await?;
            Ok((made.len(), started.elapsed()))
        })
    }
}

/// The number of objects created concurrently.
const AT_ONCE: usize = 32;

/// Which of many nodes have reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reports {
    /// All but one in a hundred; another one in a hundred fails.
    Most,
    None,
}

/// The state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// The kernel rejects changes.
    Failing,
    /// Ready, but another program keeps changing the rules.
    Contested,
}

fn status(proxy: &Value, state: State) -> Value {
    let generation = &proxy["metadata"]["generation"];
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "observedGeneration": generation, "lastTransitionTime": Timestamp::now(),
        })
    };
    let refused = "the kernel refused a change: No space left on device";
    let conditions = match state {
        State::Ready => vec![
            condition("Ready", "True", "Programmed", "3 services"),
            condition("Degraded", "False", "AsExpected", ""),
        ],
        State::Contested => vec![
            condition("Ready", "True", "Programmed", "3 services"),
            condition(
                "RulesContested",
                "True",
                "RepairsHeldBack",
                "repaired 6 times",
            ),
        ],
        State::Failing => vec![
            condition("Ready", "False", "CommitFailed", refused),
            condition("Degraded", "True", "CommitFailed", refused),
        ],
    };
    let drift = json!({
        "program": "flush-rules", "continues": true, "repairs": 6, "lastFound": Timestamp::now(),
        "elements": 12, "objects": 1,
    });
    let drift = match state {
        State::Contested => vec![drift],
        State::Ready | State::Failing => Vec::new(),
    };
    let quantiles =
        |p99: u32| json!({"p50Microseconds": 900, "p99Microseconds": p99, "maxMicroseconds": p99});
    json!({
        "observedGeneration": generation,
        "appliedHash": proxy["spec"]["configHash"],
        "mode": proxy["spec"]["config"]["mode"],
        "lastSyncTime": Timestamp::now(),
        "syncLatency": {
            "window": "5m", "decode": quantiles(900), "compile": quantiles(900), "commit": quantiles(4000),
            "total": quantiles(4000), "p99": "4ms",
        },
        "counts": {"services": 3, "endpoints": 5, "elements": 40},
        "agentVersion": "0.1.0",
        "kernelVersion": "6.12.48",
        "drift": drift,
        "conditions": conditions,
    })
}
