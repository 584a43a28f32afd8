//! The real kube-proxy in a cluster, as kubeadm installs it: a DaemonSet in `kube-system`.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use xtables::Variant;

use super::lan::POD_CIDRS;
use super::{Built, RealCluster, kubeconfig};
use crate::deadline::wait_for;
use crate::differential::programs::Programs;

/// The label of its Pods, which Kubernetes' own tests use too.
pub const LABEL: (&str, &str) = ("k8s-app", "kube-proxy");

/// The namespace in which kubeadm installs it.
pub const NAMESPACE: &str = "kube-system";

/// How long kube-proxy may take to be ready.
const DEADLINE: Duration = Duration::from_secs(300);
/// The folders of the machine's programs.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// How it programs the nodes. Mode ipvs takes a kernel with `ip_vs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// With the program nft.
    Nftables,
    /// With the programs of this variant of iptables.
    Iptables(Variant),
}

/// Installs kube-proxy in a mode with otherwise default settings; returns when it is ready on all
/// nodes. It runs from the binary built with the rest of Kubernetes and uses the machine's nft and
/// iptables; its image would contain the same.
pub fn install(cluster: &RealCluster, mode: Mode) -> Result<()> {
    let program = cluster.control_plane().programs().join("kube-proxy");
    let path = mode.path(cluster)?;
    let kubeconfig = kubeconfig(cluster)?;
    let labels = json!({LABEL.0: LABEL.1});
    let manifest = json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "kube-proxy", "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "hostNetwork": true,
                    "priorityClassName": "system-node-critical",
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{
                        "name": "kube-proxy",
                        "image": Built::cluster()?.image("agnhost")?,
                        "command": [
                            "chroot", "/host", program,
                            format!("--proxy-mode={}", mode.name()),
                            format!("--kubeconfig={}", kubeconfig.display()),
                            "--hostname-override=$(NODE)",
                            // Set as by kubeadm: without it, Pods count as outside clients.
                            format!("--cluster-cidr={POD_CIDRS}"),
                            // The limit belongs to the machine, not to the node.
                            "--conntrack-max-per-core=0",
                        ],
                        "env": [
                            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                            {"name": "PATH", "value": path},
                        ],
                        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 10256}, "periodSeconds": 2},
                        "securityContext": {"privileged": true},
                        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
                    }],
                    "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
                },
            },
        },
    });
    cluster.control_plane().apply(&manifest.to_string())?;
    wait_until_ready(cluster)
}

/// Removes kube-proxy; returns when no Pod of it is left. Its rules stay.
pub fn remove(cluster: &RealCluster) -> Result<()> {
    let control_plane = cluster.control_plane();
    let daemon_set = [
        "delete",
        "daemonset",
        "kube-proxy",
        "--namespace",
        NAMESPACE,
        "--ignore-not-found",
    ];
    control_plane.kubectl(&daemon_set)?;
    wait_until_gone(cluster)
}

/// Removes its rules from all nodes, as its documentation says, in every mode that [`Mode`] knows.
pub fn clean_up(cluster: &RealCluster) -> Result<()> {
    let program = cluster.control_plane().programs().join("kube-proxy");
    for node in cluster.nodes() {
        for variant in [Variant::NfTables, Variant::Legacy] {
            let path = format!("PATH={}", Mode::Iptables(variant).path(cluster)?);
            let program = program.to_str().context("the path of a program is text")?;
            node.run(&["env", &path, program, "--cleanup"])?;
        }
    }
    Ok(())
}

/// Waits until no Pod of it is left.
pub fn wait_until_gone(cluster: &RealCluster) -> Result<()> {
    let selector = format!("--selector={}={}", LABEL.0, LABEL.1);
    let pods = [
        "get",
        "pods",
        "--namespace",
        NAMESPACE,
        "--output=name",
        &selector,
    ];
    wait_for("kube-proxy to be gone from all nodes", DEADLINE, || {
        let left = cluster.control_plane().kubectl(&pods)?;
        Ok(left.is_empty().then_some(()))
    })
}

/// Waits until all its desired Pods are ready.
pub fn wait_until_ready(cluster: &RealCluster) -> Result<()> {
    let timeout = format!("--timeout={}s", DEADLINE.as_secs());
    let arguments = [
        "rollout",
        "status",
        "daemonset/kube-proxy",
        "--namespace",
        NAMESPACE,
    ];
    cluster
        .control_plane()
        .kubectl(&[&arguments[..], &[&timeout]].concat())
        .map(drop)
        .context("kube-proxy is not ready")
}

// === impl Mode ===

impl Mode {
    /// Returns its name in kube-proxy's configuration.
    fn name(self) -> &'static str {
        match self {
            Mode::Nftables => "nftables",
            Mode::Iptables(_) => "iptables",
        }
    }

    /// Returns the folders in which kube-proxy looks for programs. Nodes share the machine's files.
    fn path(self, cluster: &RealCluster) -> Result<String> {
        Ok(match self {
            Mode::Nftables => PATH.to_owned(),
            Mode::Iptables(variant) => {
                let programs = Programs::link(cluster.enclosure.folder(), variant)?;
                format!("{}:{PATH}", programs.folder().display())
            }
        })
    }
}
