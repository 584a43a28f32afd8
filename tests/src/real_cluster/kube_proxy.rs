//! The real kube-proxy on a cluster, as kubeadm would have it: a DaemonSet in `kube-system`.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::lan::POD_CIDRS;
use super::{Built, RealCluster, kubeconfig};

/// What its Pods are found by, also by Kubernetes' own tests.
pub const LABEL: (&str, &str) = ("k8s-app", "kube-proxy");

/// Where kubeadm puts it.
pub const NAMESPACE: &str = "kube-system";

/// How long it may take until it serves.
const DEADLINE: Duration = Duration::from_secs(300);

/// Installs it in nftables mode, otherwise as it comes, and returns when it serves on all nodes. It
/// runs from the file that the rest of Kubernetes runs from, with the nft of the machine: its image
/// would hold the same.
pub fn install(cluster: &RealCluster) -> Result<()> {
    let program = cluster.control_plane().programs().join("kube-proxy");
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
                            "--proxy-mode=nftables",
                            format!("--kubeconfig={}", kubeconfig.display()),
                            "--hostname-override=$(NODE)",
                            // As kubeadm sets it: without, Pods are taken for clients from outside.
                            format!("--cluster-cidr={POD_CIDRS}"),
                            // The limit is the machine's, not the node's.
                            "--conntrack-max-per-core=0",
                        ],
                        "env": [
                            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                            {"name": "PATH", "value": "/usr/sbin:/usr/bin:/sbin:/bin"},
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

/// Waits until all Pods that it is to have are ready.
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
