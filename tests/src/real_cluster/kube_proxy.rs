//! The real kube-proxy in a cluster, as kubeadm installs it: a DaemonSet in `kube-system`.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::lan::POD_CIDRS;
use super::{Built, RealCluster, kubeconfig};

/// The label of its Pods, which Kubernetes' own tests use too.
pub const LABEL: (&str, &str) = ("k8s-app", "kube-proxy");

/// The namespace in which kubeadm installs it.
pub const NAMESPACE: &str = "kube-system";

/// How long kube-proxy may take to be ready.
const DEADLINE: Duration = Duration::from_secs(300);

/// Installs kube-proxy in nftables mode with otherwise default settings; returns when it is ready
/// on all nodes. It runs from the binary built with the rest of Kubernetes and uses the machine's
/// nft; its image would contain the same.
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
                            // Set as by kubeadm: without it, Pods count as outside clients.
                            format!("--cluster-cidr={POD_CIDRS}"),
                            // The limit belongs to the machine, not to the node.
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
