//! Defines which test programs may run concurrently, and which start first. All such knowledge is
//! here.

/// What may run concurrently with a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// Any program that does not have to run alone.
    Any,
    /// The same, except for programs that start another cluster.
    NoOtherCluster,
    /// Any program; of those beside one that is [`Company::Alone`], only one. It computes for less than
    /// a third of its time.
    Everybody,
    /// No other program, except for one of [`Company::Everybody`].
    Alone,
}

/// Programs that start clusters, with a containerd and a kubelet for each node. Only one runs at a
/// time, because each takes gigabytes, and all processors while it starts.
const CLUSTERS: [&str; 2] = ["kubernetes_smoke", "enclosure"];

/// Programs that compute for less than a third of their time, by the table that `make test` prints.
const QUIET: [&str; 4] = [
    "differential_kube_proxy",
    "monitoring",
    "fleet_small",
    "conntrack_kernel",
];

/// Programs that must run alone, or beside one that mostly waits, each with the reason. They start
/// first, so that such programs are left for their time.
const ALONE: [(&str, &str); 3] = [
    (
        "real_cluster",
        "a client that nothing answers for three seconds counts as harmed, and takes as long where three nodes, \
         their Pods and other programs want the processors",
    ),
    (
        "drift_kernel",
        "a repair within three seconds is one without the backoff of four",
    ),
    (
        "node_addresses_kernel",
        "an address found within a second and a half was not found by polling every two",
    ),
];

/// The slowest other programs in the order of their start, so that none of them ends long after all
/// others. Programs with clusters wait for each other.
const LONGEST: [&str; 16] = [
    "kernel_rig",
    "kubernetes_smoke",
    "enclosure",
    "differential_kube_proxy",
    "monitoring",
    "fleet_small",
    "conntrack_kernel",
    "operator_control_plane",
    "end_to_end",
    "takeover_kernel",
    "mode_kernel",
    "bench_small",
    "steps_kernel",
    "chart",
    "scenarios_iptables_kernel",
    "control_plane",
];

/// Returns what may run concurrently with this program.
pub fn company_of(name: &str) -> Company {
    if ALONE.iter().any(|(alone, _)| *alone == name) {
        Company::Alone
    } else if CLUSTERS.contains(&name) {
        Company::NoOtherCluster
    } else if QUIET.contains(&name) {
        Company::Everybody
    } else {
        Company::Any
    }
}

/// Returns the start order of this program: smaller numbers start first.
pub fn order(name: &str) -> usize {
    let alone = ALONE.iter().map(|(name, _)| name);
    let mut first = alone.chain(&LONGEST);
    first
        .position(|slow| *slow == name)
        .unwrap_or(ALONE.len() + LONGEST.len())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{ALONE, CLUSTERS, LONGEST, QUIET};

    #[test]
    fn every_name_is_that_of_a_test_target() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        let alone = ALONE.iter().map(|(name, _)| name);
        for name in CLUSTERS.iter().chain(&QUIET).chain(&LONGEST).chain(alone) {
            let file = folder.join(format!("{name}.rs"));
            let module = folder.join(name).join("main.rs");
            assert!(file.exists() || module.exists(), "there is no {name}");
        }
    }
}
