//! Installs the proxies under test on a cluster that has none.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Proxy, Setting};
use crate::real_cluster::RealCluster;
use crate::real_cluster::helm::{self, Helm};
use crate::real_cluster::kube_proxy::{self, LABEL, Mode};

/// The version of Signpost, its chart and its images.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// How long a proxy may take from its installation until it is ready.
const READY_DEADLINE: Duration = Duration::from_secs(300);

/// Installs a proxy; returns when it is ready on all nodes.
pub fn install(proxy: Proxy, cluster: &RealCluster) -> Result<()> {
    match proxy {
        Proxy::Signpost => install_signpost(cluster),
        Proxy::KubeProxy => kube_proxy::install(cluster, Mode::Nftables),
    }
}

/// Returns the environment of a cluster with a proxy.
pub fn observe_setting(proxy: Proxy, cluster: &RealCluster) -> Result<Setting> {
    let nodes = cluster
        .control_plane()
        .kubectl(&["get", "nodes", "--output=json"])?;
    let nodes: Value = serde_json::from_str(&nodes).context("kubectl printed no JSON")?;
    let nodes = nodes["items"].as_array().context("a list has items")?;
    let info = &nodes.first().context("a cluster has nodes")?["status"]["nodeInfo"];
    let fact = |name: &str| -> Result<String> {
        let fact = info[name].as_str();
        Ok(fact
            .with_context(|| format!("a node says its {name}"))?
            .to_owned())
    };
    let kubernetes = fact("kubeletVersion")?;
    Ok(Setting {
        proxy: match proxy {
            Proxy::Signpost => VERSION.to_owned(),
            // Kubernetes and kube-proxy are built from the same archive.
            Proxy::KubeProxy => kubernetes.clone(),
        },
        kubernetes,
        kernel: fact("kernelVersion")?,
        containers: fact("containerRuntimeVersion")?,
        nodes: nodes.len(),
    })
}

/// Installs the chart with kube-proxy's label and in `kube-system`: Kubernetes' test of a restarted
/// proxy finds the agents only that way.
fn install_signpost(cluster: &RealCluster) -> Result<()> {
    let chart = helm::chart();
    let chart = chart.to_str().context("the path of the chart is text")?;
    let timeout = format!("--timeout={}s", READY_DEADLINE.as_secs());
    let labels = format!("--set-json=agent.podLabels={}", json!({LABEL.0: LABEL.1}));
    let arguments = [
        "install",
        "signpost",
        chart,
        "--namespace=kube-system",
        "--wait",
    ];
    Helm::new(cluster)?.run(&[&arguments[..], &[&timeout, &labels]].concat())?;
    wait_with_kubectl(cluster, &["rollout", "status", "daemonset/signpost-agent"])?;
    wait_with_kubectl(cluster, &["wait", "--for=create", "proxyprofile/default"])?;
    wait_with_kubectl(
        cluster,
        &["wait", "--for=condition=Ready", "proxyprofile/default"],
    )
}

fn wait_with_kubectl(cluster: &RealCluster, arguments: &[&str]) -> Result<()> {
    let timeout = format!("--timeout={}s", READY_DEADLINE.as_secs());
    let mut all = arguments.to_vec();
    all.extend(["--namespace=kube-system", &timeout]);
    cluster.control_plane().kubectl(&all).map(drop)
}
