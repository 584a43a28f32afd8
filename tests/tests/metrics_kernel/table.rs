//! The metrics of kube-proxy 1.36 that apply to mode nftables or iptables
//! (pkg/proxy/metrics/metrics.go), of client-go
//! (component-base/metrics/prometheus/restclient/metrics.go), and of every process (client_golang,
//! prometheus/process_collector.go).
//!
//! Excluded are `sync_proxy_rules_nftables_cleanup_failures_total`, because kube-proxy deletes
//! stale chains in a separate transaction, which can fail, while Signpost removes stale objects in
//! the change that makes them stale; and the metrics that kube-proxy counts with nfacct in mode
//! iptables.

/// One metric.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) labels: &'static [&'static str],
    pub(crate) buckets: fn() -> Vec<f64>,
}

const FAMILY: &[&str] = &["ip_family"];
const RULES: &[&str] = &["ip_family", "table"];

pub(crate) const TABLE: &[Row] = &[
    histogram("kubeproxy_sync_proxy_rules_duration_seconds", FAMILY, sync),
    histogram(
        "kubeproxy_sync_full_proxy_rules_duration_seconds",
        FAMILY,
        sync,
    ),
    histogram(
        "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        FAMILY,
        sync,
    ),
    gauge("kubeproxy_sync_proxy_rules_last_timestamp_seconds", FAMILY),
    gauge(
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        FAMILY,
    ),
    histogram(
        "kubeproxy_network_programming_duration_seconds",
        FAMILY,
        network_programming,
    ),
    gauge("kubeproxy_sync_proxy_rules_endpoint_changes_pending", &[]),
    counter("kubeproxy_sync_proxy_rules_endpoint_changes_total", &[]),
    gauge("kubeproxy_sync_proxy_rules_service_changes_pending", &[]),
    counter("kubeproxy_sync_proxy_rules_service_changes_total", &[]),
    gauge(
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        &["traffic_policy", "ip_family"],
    ),
    counter(
        "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
        FAMILY,
    ),
    gauge("kubeproxy_sync_proxy_rules_iptables_total", RULES),
    gauge("kubeproxy_sync_proxy_rules_iptables_last", RULES),
    counter(
        "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
        FAMILY,
    ),
    counter(
        "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
        FAMILY,
    ),
    counter("kubeproxy_proxy_healthz_total", &["code"]),
    counter("kubeproxy_proxy_livez_total", &["code"]),
    histogram(
        "kubeproxy_conntrack_reconciler_sync_duration_seconds",
        FAMILY,
        sync,
    ),
    counter(
        "kubeproxy_conntrack_reconciler_deleted_entries_total",
        FAMILY,
    ),
    // Since 1.37 (KEP-6032).
    gauge("kubeproxy_nftables_localhost_nodeport_listeners", FAMILY),
    counter(
        "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
        FAMILY,
    ),
    counter(
        "kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
        &["protocol"],
    ),
    counter("rest_client_requests_total", &["code", "host", "method"]),
    histogram(
        "rest_client_request_duration_seconds",
        &["host", "verb"],
        rest_client,
    ),
    counter("process_cpu_seconds_total", &[]),
    gauge("process_resident_memory_bytes", &[]),
    gauge("process_virtual_memory_bytes", &[]),
    gauge("process_start_time_seconds", &[]),
    gauge("process_open_fds", &[]),
    gauge("process_max_fds", &[]),
];

const fn gauge(name: &'static str, labels: &'static [&'static str]) -> Row {
    Row {
        name,
        kind: "gauge",
        labels,
        buckets: Vec::new,
    }
}

const fn counter(name: &'static str, labels: &'static [&'static str]) -> Row {
    Row {
        name,
        kind: "counter",
        labels,
        buckets: Vec::new,
    }
}

const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    buckets: fn() -> Vec<f64>,
) -> Row {
    Row {
        name,
        kind: "histogram",
        labels,
        buckets,
    }
}

/// Returns fifteen bounds, doubling from a millisecond.
fn sync() -> Vec<f64> {
    vec![
        0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
        8.192, 16.384,
    ]
}

/// Returns some of kube-proxy's 84 bounds: the smallest are meaningless for trigger times in whole
/// seconds.
fn network_programming() -> Vec<f64> {
    let mut bounds = vec![0.5];
    bounds.extend([1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 45].map(f64::from));
    bounds.extend([60, 90, 120, 180, 240, 300].map(f64::from));
    bounds
}

fn rest_client() -> Vec<f64> {
    vec![
        0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
    ]
}
