//! The configuration of containerd and the kubelet on a node. Paths are those of the node, below
//! `/var/lib`.

use serde_json::{Value, json};

use super::lan::pod_cidrs;

/// The socket of containerd.
pub(super) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
/// The folder of the files that are normally below `/etc`.
pub(super) const SETTINGS: &str = "/var/lib/settings";
/// The image of the container that holds a Pod's namespaces.
pub(super) const PAUSE_IMAGE: &str = "registry.test/pause:3.10.2";
/// The cluster IP of the DNS Service.
pub(super) const DNS: &str = "10.96.0.10";
/// The domain of names in the cluster.
pub(super) const DOMAIN: &str = "cluster.local";

/// Files below `/proc/sys` that a kubelet sets for the whole machine, and their desired values. A
/// node presents these values to the kubelet, so that it does not change those of the machine.
pub(super) const TUNABLES: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Returns the configuration of containerd 1.6 or 1.7 (version 2 of its format).
pub(super) fn containerd() -> String {
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # Where CAP_SYS_RESOURCE is missing, runc cannot lower a score and the container ends before it starts.
  restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "{SETTINGS}/cni"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"#
    )
}

/// Returns the CNI configuration of the pod network: a veth pair for each pod, with a route on the
/// node. No bridge, so that no packet passes the node's rules twice or not at all, depending on
/// `br_netfilter`.
pub(super) fn pod_network(node: u8) -> Value {
    let ranges = pod_cidrs(node).map(|subnet| json!([{"subnet": subnet}]));
    json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "ranges": ranges,
                    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

/// Returns the configuration of the kubelet. `group` is the control group of the node.
pub(super) fn kubelet(group: &str) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        // The test's API server has no client certificate, and no other client can reach the
        // kubelet.
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{group}"),
        "failCgroupV1": false,
        "failSwapOn": false,
        "enforceNodeAllocatable": [],
        "clusterDNS": [DNS],
        "clusterDomain": DOMAIN,
        // The disk belongs to the machine, and tests must not depend on how full it is.
        "evictionHard": {
            "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": false,
        "volumePluginDir": "/var/lib/kubelet/plugins",
        "syncFrequency": "10s",
        "readOnlyPort": 0,
    })
}
