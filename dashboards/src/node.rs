//! The dashboard of one node.

use crate::panel::{Dashboard, Panel, Row, Shape};

pub(crate) fn dashboard() -> Dashboard {
    Dashboard {
        path: "dashboards/node.json",
        uid: "signpost-node",
        title: "Signpost / Node",
        nodes: Some(r#"label_values(signpost_build_info{program="signpost-agent"}, node)"#),
        rows: vec![state(), traffic(), latency(), trouble(), cost()],
    }
}

fn state() -> Row {
    Row {
        title: "What it is",
        panels: vec![
            Panel::new(
                "Services",
                Shape::Numbers,
                "short",
                r#"signpost_services{node="$node"}"#,
                "",
            ),
            Panel::new(
                "Endpoints",
                Shape::Numbers,
                "short",
                r#"signpost_endpoints{node="$node"}"#,
                "",
            ),
            Panel::new(
                "Elements and rules in the kernel",
                Shape::Numbers,
                "short",
                r#"signpost_elements{node="$node"}"#,
                "",
            ),
            Panel::new(
                "Serves its Services",
                Shape::Numbers,
                "bool_yes_no",
                r#"signpost_node_serving{node="$node"}"#,
                "",
            )
            .help("No: they were handed back to another proxy."),
            Panel::new(
                "Conditions",
                Shape::Table,
                "short",
                r#"max by (type, status, reason) (signpost_node_condition{node="$node"})"#,
                "",
            ),
            Panel::new(
                "Mode, version and configuration",
                Shape::Table,
                "short",
                r#"max by (mode, variant) (signpost_node_mode{node="$node"})"#,
                "",
            )
            .and(
                r#"max by (version) (signpost_build_info{node="$node",program="signpost-agent"})"#,
                "",
            )
            .and(
                r#"max by (state, hash) (signpost_node_configuration{node="$node"})"#,
                "",
            ),
        ],
    }
}

fn traffic() -> Row {
    Row {
        title: "What clients get",
        panels: vec![
            Panel::new(
                "New connections to Services",
                Shape::Lines,
                "ops",
                r#"sum by (ip_family) (label_replace(rate({__name__=~"signpost_(ipvs_)?new_connections_total",node="$node"}[$__rate_interval]), "ip_family", "both, by IPVS", "ip_family", ""))"#,
                "{{ip_family}}",
            )
            .help("Mode nftables counts them by family, and IPVS those of both. Established connections cost nothing and are not counted."),
            Panel::new(
                "Refused packets",
                Shape::Lines,
                "pps",
                r#"sum by (verdict, reason) (rate(signpost_refused_packets_total{node="$node"}[$__rate_interval]))"#,
                "{{verdict}} {{reason}}",
            )
            .help("Modes nftables and ipvs count them. A client that tries again counts again."),
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
                r#"histogram_quantile(0.99, sum by (le) (rate(signpost_phase_duration_seconds_bucket{node="$node",phase="total"}[$__rate_interval])))"#,
                "p99",
            )
            .and(
                r#"histogram_quantile(0.5, sum by (le) (rate(signpost_phase_duration_seconds_bucket{node="$node",phase="total"}[$__rate_interval])))"#,
                "p50",
            ),
            Panel::new(
                "Where the time goes, p99 by phase",
                Shape::Lines,
                "s",
                r#"histogram_quantile(0.99, sum by (le, phase) (rate(signpost_phase_duration_seconds_bucket{node="$node",phase!="total"}[$__rate_interval])))"#,
                "{{phase}}",
            ),
            Panel::new(
                "Changes received",
                Shape::Lines,
                "ops",
                r#"sum(rate(kubeproxy_sync_proxy_rules_service_changes_total{node="$node"}[$__rate_interval]))"#,
                "Services",
            )
            .and(
                r#"sum(rate(kubeproxy_sync_proxy_rules_endpoint_changes_total{node="$node"}[$__rate_interval]))"#,
                "EndpointSlices",
            ),
            Panel::new(
                "Changes that are not programmed yet",
                Shape::Lines,
                "short",
                r#"max(kubeproxy_sync_proxy_rules_service_changes_pending{node="$node"})"#,
                "Services",
            )
            .and(
                r#"max(kubeproxy_sync_proxy_rules_endpoint_changes_pending{node="$node"})"#,
                "EndpointSlices",
            ),
            Panel::new(
                "Syncs by outcome",
                Shape::Lines,
                "ops",
                r#"sum by (ip_family, outcome) (rate(signpost_syncs_total{node="$node"}[$__rate_interval]))"#,
                "{{ip_family}} {{outcome}}",
            ),
            Panel::new(
                "Elements written",
                Shape::Lines,
                "ops",
                r#"sum by (ip_family) (rate(signpost_elements_written_total{node="$node"}[$__rate_interval]))"#,
                "{{ip_family}}",
            ),
        ],
    }
}

fn trouble() -> Row {
    Row {
        title: "What goes wrong",
        panels: vec![
            Panel::new(
                "Repairs of rules that other programs changed",
                Shape::Lines,
                "short",
                r#"sum by (ip_family) (increase(signpost_drift_total{node="$node"}[$__rate_interval]))"#,
                "{{ip_family}}",
            ),
            Panel::new(
                "Time to such a repair, p99",
                Shape::Lines,
                "s",
                r#"histogram_quantile(0.99, sum by (le) (rate(signpost_drift_repair_seconds_bucket{node="$node"}[1h])))"#,
                "p99",
            ),
            Panel::new(
                "conntrack table",
                Shape::Lines,
                "short",
                r#"max(signpost_conntrack_entries{node="$node"})"#,
                "entries",
            )
            .and(r#"max(signpost_conntrack_limit{node="$node"})"#, "limit"),
            Panel::new(
                "What conntrack lost",
                Shape::Lines,
                "ops",
                r#"sum(rate(signpost_conntrack_insert_failed_total{node="$node"}[$__rate_interval]))"#,
                "insert failed",
            )
            .and(
                r#"sum(rate(signpost_conntrack_drop_total{node="$node"}[$__rate_interval]))"#,
                "drop",
            )
            .and(
                r#"sum(rate(signpost_conntrack_early_drop_total{node="$node"}[$__rate_interval]))"#,
                "early drop",
            ),
            Panel::new(
                "Rejections, and Services without room for affinity",
                Shape::Lines,
                "short",
                r#"max(signpost_rejections{node="$node"})"#,
                "rejections",
            )
            .and(
                r#"max(signpost_affinity_exhausted_services{node="$node"})"#,
                "affinity exhausted",
            ),
            Panel::new(
                "Time since the source last answered",
                Shape::Lines,
                "s",
                r#"max(signpost_source_stale_seconds{node="$node"})"#,
                "",
            ),
        ],
    }
}

fn cost() -> Row {
    Row {
        title: "What it costs",
        panels: vec![
            Panel::new(
                "Processor",
                Shape::Lines,
                "short",
                r#"rate(process_cpu_seconds_total{node="$node"}[$__rate_interval]) * on (instance) group_left (program) signpost_build_info{program="signpost-agent"}"#,
                "processors",
            ),
            Panel::new(
                "Memory",
                Shape::Lines,
                "bytes",
                r#"process_resident_memory_bytes{node="$node"} * on (instance) group_left (program) signpost_build_info{program="signpost-agent"}"#,
                "resident",
            ),
        ],
    }
}
