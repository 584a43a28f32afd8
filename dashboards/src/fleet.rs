//! The dashboard of all nodes and of the operator.

use crate::panel::{Dashboard, Panel, Row, Shape};

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
            Panel::new(
                "Nodes by readiness",
                Shape::Numbers,
                "short",
                r#"count by (status, reason) (signpost_node_condition{type="Ready"})"#,
                "{{status}} {{reason}}",
            ),
            Panel::new(
                "Nodes by mode",
                Shape::Numbers,
                "short",
                "count by (mode, variant) (signpost_node_mode)",
                "{{mode}} {{variant}}",
            ),
            Panel::new(
                "Agents by version",
                Shape::Numbers,
                "short",
                r#"count by (version) (signpost_build_info{program="signpost-agent"})"#,
                "{{version}}",
            ),
            Panel::new(
                "Nodes by configuration applied",
                Shape::Numbers,
                "short",
                r#"count by (hash) (signpost_node_configuration{state="applied"})"#,
                "{{hash}}",
            ),
            Panel::new(
                "Nodes of each profile",
                Shape::Lines,
                "short",
                "max by (profile, state) (signpost_profile_nodes)",
                "{{profile}} {{state}}",
            )
            .help("The states overlap: a node may be ready and degraded."),
            Panel::new(
                "Conditions by number of nodes",
                Shape::Lines,
                "short",
                r#"count by (type, status, reason) (signpost_node_condition{type!="Ready"})"#,
                "{{type}} {{status}} {{reason}}",
            ),
        ],
    }
}

fn rollouts() -> Row {
    Row {
        title: "Rollouts",
        panels: vec![
            Panel::new(
                "Profiles",
                Shape::Table,
                "short",
                "max by (profile, type, status, reason) (signpost_profile_condition)",
                "",
            ),
            Panel::new(
                "How long each condition of a profile has lasted",
                Shape::Lines,
                "s",
                r#"time() - max by (profile, type) (signpost_profile_condition_transition_timestamp_seconds{type=~"Progressing|Degraded|Ready"})"#,
                "{{profile}} {{type}}",
            )
            .help("Progressing names the phase of a rollout by its reason, in the table beside."),
            Panel::new(
                "How long the phase or wave of each rollout has lasted",
                Shape::Lines,
                "s",
                "time() - max by (profile) (signpost_profile_rollout_since_timestamp_seconds)",
                "{{profile}}",
            ),
            Panel::new(
                "Phase of each rollout",
                Shape::Table,
                "short",
                "max by (profile, phase) (signpost_profile_rollout_phase)",
                "",
            ),
        ],
    }
}

fn latency() -> Row {
    Row {
        title: "How fast changes reach the kernel",
        panels: vec![
            Panel::new(
                "From receiving a change to the kernel",
                Shape::Lines,
                "s",
                quantile("0.99", "total", "le"),
                "p99",
            )
            .and(quantile("0.5", "total", "le"), "p50"),
            Panel::new(
                "The same, all changes",
                Shape::Heatmap,
                "short",
                r#"sum by (le) (increase(signpost_phase_duration_seconds_bucket{phase="total"}[$__rate_interval]))"#,
                "{{le}}",
            ),
            Panel::new(
                "Where the time goes, p99 by phase",
                Shape::Lines,
                "s",
                r#"histogram_quantile(0.99, sum by (le, phase) (rate(signpost_phase_duration_seconds_bucket{phase!="total"}[$__rate_interval])))"#,
                "{{phase}}",
            ),
            Panel::new(
                "The slowest nodes, p99",
                Shape::Lines,
                "s",
                format!("topk(10, {})", quantile("0.99", "total", "le, node")),
                "{{node}}",
            ),
            Panel::new(
                "Network programming latency, p99",
                Shape::Lines,
                "s",
                "histogram_quantile(0.99, sum by (le) (rate(kubeproxy_network_programming_duration_seconds_bucket[$__rate_interval])))",
                "p99",
            )
            .help("Kubernetes' SLI: from the trigger time of an EndpointSlice. Trigger times are whole seconds."),
            Panel::new(
                "Updates that wait for the kernel",
                Shape::Lines,
                "s",
                "topk(10, max by (node) (clamp_min(kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds - kubeproxy_sync_proxy_rules_last_timestamp_seconds, 0)))",
                "{{node}}",
            ),
        ],
    }
}

fn trouble() -> Row {
    Row {
        title: "What goes wrong",
        panels: vec![
            Panel::new(
                "Failed syncs",
                Shape::Lines,
                "ops",
                r#"topk(10, sum by (node) (rate(signpost_syncs_total{outcome="failed"}[$__rate_interval])))"#,
                "{{node}}",
            ),
            Panel::new(
                "Rules overwritten by other programs, in an hour",
                Shape::Lines,
                "short",
                "topk(10, sum by (node) (increase(signpost_drift_total[1h])))",
                "{{node}}",
            ),
            Panel::new(
                "Fill of the conntrack table",
                Shape::Lines,
                "percentunit",
                "topk(10, max by (node) (signpost_conntrack_entries / signpost_conntrack_limit))",
                "{{node}}",
            ),
            Panel::new(
                "Connections that conntrack lost",
                Shape::Lines,
                "ops",
                "topk(10, sum by (node) (rate(signpost_conntrack_drop_total[$__rate_interval]) + rate(signpost_conntrack_insert_failed_total[$__rate_interval])))",
                "{{node}}",
            ),
            Panel::new(
                "Time since the source last answered",
                Shape::Lines,
                "s",
                "topk(10, max by (node) (signpost_source_stale_seconds))",
                "{{node}}",
            ),
            Panel::new(
                "Objects rejected or not supported",
                Shape::Lines,
                "short",
                "topk(10, max by (node) (signpost_rejections))",
                "{{node}}",
            ),
        ],
    }
}

fn operator() -> Row {
    Row {
        title: "The operator and the cost of all of it",
        panels: vec![
            Panel::new(
                "Operators that hold the lease",
                Shape::Numbers,
                "short",
                "sum(signpost_operator_leader)",
                "",
            ),
            Panel::new(
                "Nodes whose Services were handed back",
                Shape::Numbers,
                "short",
                "count(signpost_node_serving) - sum(signpost_node_serving)",
                "",
            ),
            Panel::new(
                "Age of the oldest heartbeat of an agent",
                Shape::Lines,
                "s",
                "max(signpost_operator_oldest_heartbeat_seconds)",
                "",
            )
            .help("An agent renews its Lease every half minute, and is silent after 80 s. The nodes of each profile count those that are."),
            Panel::new(
                "Writes of the operator",
                Shape::Lines,
                "ops",
                "sum by (action, result) (rate(signpost_operator_writes_total[$__rate_interval]))",
                "{{action}} {{result}}",
            ),
            Panel::new(
                "Duration of a look at the fleet, p99",
                Shape::Lines,
                "s",
                "histogram_quantile(0.99, sum by (le) (rate(signpost_operator_sync_duration_seconds_bucket[$__rate_interval])))",
                "p99",
            ),
            Panel::new(
                "Requests to the API server",
                Shape::Lines,
                "reqps",
                r#"sum by (program, code) (rate(rest_client_requests_total[$__rate_interval]) * on (instance) group_left (program) signpost_build_info)"#,
                "{{program}} {{code}}",
            ),
            Panel::new(
                "Memory",
                Shape::Lines,
                "bytes",
                r"max by (program) (process_resident_memory_bytes * on (instance) group_left (program) signpost_build_info)",
                "{{program}}, the largest",
            ),
        ],
    }
}
