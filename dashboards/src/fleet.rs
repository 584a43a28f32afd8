//! The dashboard of all nodes and of the operator.

use crate::panel::{Dashboard, Panel, Row};

pub(crate) fn dashboard() -> Dashboard {
    Dashboard {
        path: "dashboards/fleet.json",
        uid: "signpost-fleet",
        title: "Signpost / Fleet",
        nodes: None,
        rows: vec![state(), rollouts(), latency(), trouble(), operator()],
    }
}

fn quantile(quantile: &str, phase: &str, by: &str) -> String {
    format!(
        "histogram_quantile({quantile}, sum by ({by}) (rate(signpost_phase_duration_seconds_bucket{{phase=\"{phase}\"}}[$__rate_interval])))"
    )
}

fn state() -> Row {
    Row {
        title: "What the nodes are",
        panels: vec![
            Panel::numbers("Nodes by readiness", "short")
                .query(r#"count by (status, reason) (signpost_node_condition{type="Ready"})"#)
                .legend("{{status}} {{reason}}"),
            Panel::numbers("Nodes by mode", "short")
                .query("count by (mode, variant) (signpost_node_mode)")
                .legend("{{mode}} {{variant}}"),
            Panel::numbers("Agents by version", "short")
                .query(r#"count by (version) (signpost_build_info{program="signpost-agent"})"#)
                .legend("{{version}}"),
            Panel::numbers("Nodes by configuration applied", "short")
                .query(r#"count by (hash) (signpost_node_configuration{state="applied"})"#)
                .legend("{{hash}}"),
            Panel::lines("Nodes of each profile", "short")
                .query("max by (profile, state) (signpost_profile_nodes)")
                .legend("{{profile}} {{state}}")
                .help("The states overlap: a node may be ready and degraded."),
            Panel::lines("Conditions by number of nodes", "short")
                .query(
                    r#"count by (type, status, reason) (signpost_node_condition{type!="Ready"})"#,
                )
                .legend("{{type}} {{status}} {{reason}}"),
        ],
    }
}

fn rollouts() -> Row {
    Row {
        title: "Rollouts",
        panels: vec![
            Panel::table("Profiles", "short")
                .query("max by (profile, type, status, reason) (signpost_profile_condition)"),
            Panel::lines("How long each condition of a profile has lasted", "s")
                .query(r#"time() - max by (profile, type) (signpost_profile_condition_transition_timestamp_seconds{type=~"Progressing|Degraded|Ready"})"#)
                .legend("{{profile}} {{type}}")
                .help("Progressing names the phase of a rollout by its reason, in the table beside."),
            Panel::lines("How long the phase or wave of each rollout has lasted", "s")
                .query("time() - max by (profile) (signpost_profile_rollout_since_timestamp_seconds)")
                .legend("{{profile}}"),
            Panel::table("Phase of each rollout", "short")
                .query("max by (profile, phase) (signpost_profile_rollout_phase)"),
        ],
    }
}

fn latency() -> Row {
    Row {
        title: "How fast changes reach the kernel",
        panels: vec![
            Panel::lines("From receiving a change to the kernel", "s")
                .query(quantile("0.99", "total", "le"))
                .legend("p99")
                .query(quantile("0.5", "total", "le"))
                .legend("p50"),
            Panel::heatmap("The same, all changes", "short")
                .query(r#"sum by (le) (increase(signpost_phase_duration_seconds_bucket{phase="total"}[$__rate_interval]))"#)
                .legend("{{le}}"),
            Panel::lines("Where the time goes, p99 by phase", "s")
                .query(r#"histogram_quantile(0.99, sum by (le, phase) (rate(signpost_phase_duration_seconds_bucket{phase!="total"}[$__rate_interval])))"#)
                .legend("{{phase}}"),
            Panel::lines("The slowest nodes, p99", "s")
                .query(format!("topk(10, {})", quantile("0.99", "total", "le, node")))
                .legend("{{node}}"),
            Panel::lines("Network programming latency, p99", "s")
                .query("histogram_quantile(0.99, sum by (le) (rate(kubeproxy_network_programming_duration_seconds_bucket[$__rate_interval])))")
                .legend("p99")
                .help("Kubernetes' SLI: from the trigger time of an EndpointSlice. Trigger times are whole seconds."),
            Panel::lines("Updates that wait for the kernel", "s")
                .query("topk(10, max by (node) (clamp_min(kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds - kubeproxy_sync_proxy_rules_last_timestamp_seconds, 0)))")
                .legend("{{node}}"),
        ],
    }
}

fn trouble() -> Row {
    Row {
        title: "What goes wrong",
        panels: vec![
            Panel::lines("Failed syncs", "ops")
                .query(r#"topk(10, sum by (node) (rate(signpost_syncs_total{outcome="failed"}[$__rate_interval])))"#)
                .legend("{{node}}"),
            Panel::lines("Rules overwritten by other programs, in an hour", "short")
                .query("topk(10, sum by (node) (increase(signpost_drift_total[1h])))")
                .legend("{{node}}"),
            Panel::lines("Fill of the conntrack table", "percentunit")
                .query("topk(10, max by (node) (signpost_conntrack_entries / signpost_conntrack_limit))")
                .legend("{{node}}"),
            Panel::lines("Connections that conntrack lost", "ops")
                .query("topk(10, sum by (node) (rate(signpost_conntrack_drop_total[$__rate_interval]) + rate(signpost_conntrack_insert_failed_total[$__rate_interval])))")
                .legend("{{node}}"),
            Panel::lines("Time since the API server last answered", "s")
                .query("topk(10, max by (node) (signpost_source_stale_seconds))")
                .legend("{{node}}"),
            Panel::lines("Objects rejected or not supported", "short")
                .query("topk(10, max by (node) (signpost_rejections))")
                .legend("{{node}}"),
        ],
    }
}

fn operator() -> Row {
    Row {
        title: "The operator and the cost of all of it",
        panels: vec![
            Panel::numbers("Operators that hold the lease", "short")
                .query("sum(signpost_operator_leader) or vector(0)")
                .help("One, or two for seconds after a change. None: profiles reach no node, and what this row says of the operator is old."),
            Panel::numbers("Nodes whose Services were handed back", "short")
                .query("count(signpost_node_serving) - sum(signpost_node_serving)"),
            Panel::lines("For how long the operator has failed to list or watch", "s")
                .query("max by (kind) (signpost_operator_watch_failing_seconds)")
                .legend("{{kind}}")
                .help("Rollouts wait while this is Node or NodeProxy."),
            Panel::lines("Age of the oldest heartbeat of an agent", "s")
                .query("max(signpost_operator_oldest_heartbeat_seconds)")
                .help("An agent renews its Lease every half minute, and is silent after 80 s. The nodes of each profile count those that are."),
            Panel::lines("Writes of the operator", "ops")
                .query("sum by (action, result) (rate(signpost_operator_writes_total[$__rate_interval]))")
                .legend("{{action}} {{result}}"),
            Panel::lines("Duration of an operator sync, p99", "s")
                .query("histogram_quantile(0.99, sum by (le) (rate(signpost_operator_sync_duration_seconds_bucket[$__rate_interval])))")
                .legend("p99"),
            Panel::lines("Requests to the API server", "reqps")
                .query(r#"sum by (program, code) (rate(rest_client_requests_total[$__rate_interval]) * on (instance) group_left (program) signpost_build_info)"#)
                .legend("{{program}} {{code}}"),
            Panel::lines("Memory", "bytes")
                .query(r"max by (program) (process_resident_memory_bytes * on (instance) group_left (program) signpost_build_info)")
                .legend("{{program}}, the largest"),
        ],
    }
}
