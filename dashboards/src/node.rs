//! The dashboard of one node.

use crate::panel::{Dashboard, Panel, Row};

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
            Panel::numbers("Services", "short")
                .query(r#"signpost_services{node="$node"}"#),
            Panel::numbers("Endpoints", "short")
                .query(r#"signpost_endpoints{node="$node"}"#),
            Panel::numbers("Elements and rules in the kernel", "short")
                .query(r#"signpost_elements{node="$node"}"#),
            Panel::numbers("Serves its Services", "bool_yes_no")
                .query(r#"signpost_node_serving{node="$node"}"#)
                .help("No: they were handed back to another proxy."),
            Panel::table("Conditions", "short")
                .query(r#"max by (type, status, reason) (signpost_node_condition{node="$node"})"#),
            Panel::table("Mode, version and configuration", "short")
                .query(r#"max by (mode, variant) (signpost_node_mode{node="$node"})"#)
                .query(r#"max by (version) (signpost_build_info{node="$node",program="signpost-agent"})"#)
                .query(r#"max by (state, hash) (signpost_node_configuration{node="$node"})"#),
        ],
    }
}

fn traffic() -> Row {
    Row {
        title: "What clients get",
        panels: vec![
            Panel::lines("New connections to Services", "ops")
                .query(r#"sum by (ip_family) (label_replace(rate({__name__=~"signpost_(ipvs_)?new_connections_total",node="$node"}[$__rate_interval]), "ip_family", "both, by IPVS", "ip_family", ""))"#)
                .legend("{{ip_family}}")
                .help("Mode nftables counts them by family, and IPVS those of both. Established connections cost nothing and are not counted."),
            Panel::lines("Refused packets", "pps")
                .query(r#"sum by (verdict, reason) (rate(signpost_refused_packets_total{node="$node"}[$__rate_interval]))"#)
                .legend("{{verdict}} {{reason}}")
                .help("Modes nftables and ipvs count them. A client that tries again counts again."),
        ],
    }
}

fn latency() -> Row {
    Row {
        title: "How fast changes reach the kernel",
        panels: vec![
            Panel::lines("From receiving a change to the kernel", "s")
                .query(r#"histogram_quantile(0.99, sum by (le) (rate(signpost_phase_duration_seconds_bucket{node="$node",phase="total"}[$__rate_interval])))"#)
                .legend("p99")
                .query(r#"histogram_quantile(0.5, sum by (le) (rate(signpost_phase_duration_seconds_bucket{node="$node",phase="total"}[$__rate_interval])))"#)
                .legend("p50"),
            Panel::lines("Where the time goes, p99 by phase", "s")
                .query(r#"histogram_quantile(0.99, sum by (le, phase) (rate(signpost_phase_duration_seconds_bucket{node="$node",phase!="total"}[$__rate_interval])))"#)
                .legend("{{phase}}"),
            Panel::lines("Changes received", "ops")
                .query(r#"sum(rate(kubeproxy_sync_proxy_rules_service_changes_total{node="$node"}[$__rate_interval]))"#)
                .legend("Services")
                .query(r#"sum(rate(kubeproxy_sync_proxy_rules_endpoint_changes_total{node="$node"}[$__rate_interval]))"#)
                .legend("EndpointSlices"),
            Panel::lines("Changes that are not programmed yet", "short")
                .query(r#"max(kubeproxy_sync_proxy_rules_service_changes_pending{node="$node"})"#)
                .legend("Services")
                .query(r#"max(kubeproxy_sync_proxy_rules_endpoint_changes_pending{node="$node"})"#)
                .legend("EndpointSlices"),
            Panel::lines("Syncs by outcome", "ops")
                .query(r#"sum by (ip_family, outcome) (rate(signpost_syncs_total{node="$node"}[$__rate_interval]))"#)
                .legend("{{ip_family}} {{outcome}}"),
            Panel::lines("Elements written", "ops")
                .query(r#"sum by (ip_family) (rate(signpost_elements_written_total{node="$node"}[$__rate_interval]))"#)
                .legend("{{ip_family}}"),
        ],
    }
}

fn trouble() -> Row {
    Row {
        title: "What goes wrong",
        panels: vec![
            Panel::lines("Repairs of rules that other programs changed", "short")
                .query(r#"sum by (ip_family) (increase(signpost_drift_total{node="$node"}[$__rate_interval]))"#)
                .legend("{{ip_family}}"),
            Panel::lines("Time to such a repair, p99", "s")
                .query(r#"histogram_quantile(0.99, sum by (le) (rate(signpost_drift_repair_seconds_bucket{node="$node"}[1h])))"#)
                .legend("p99"),
            Panel::lines("conntrack table", "short")
                .query(r#"max(signpost_conntrack_entries{node="$node"})"#)
                .legend("entries")
                .query(r#"max(signpost_conntrack_limit{node="$node"})"#)
                .legend("limit"),
            Panel::lines("Packets and connections lost in conntrack", "ops")
                .query(r#"sum(rate(signpost_conntrack_insert_failed_total{node="$node"}[$__rate_interval]))"#)
                .legend("insert failed")
                .query(r#"sum(rate(signpost_conntrack_drop_total{node="$node"}[$__rate_interval]))"#)
                .legend("drop")
                .query(r#"sum(rate(signpost_conntrack_early_drop_total{node="$node"}[$__rate_interval]))"#)
                .legend("early drop"),
            Panel::lines("Rejections, and Services without room for affinity", "short")
                .query(r#"max(signpost_rejections{node="$node"})"#)
                .legend("rejections")
                .query(r#"max(signpost_affinity_exhausted_services{node="$node"})"#)
                .legend("affinity exhausted"),
            Panel::lines("Time since the API server last answered", "s")
                .query(r#"max(signpost_source_stale_seconds{node="$node"})"#),
        ],
    }
}

fn cost() -> Row {
    Row {
        title: "What it costs",
        panels: vec![
            Panel::lines("Processor", "short")
                .query(r#"rate(process_cpu_seconds_total{node="$node"}[$__rate_interval]) * on (instance) group_left (program) signpost_build_info{program="signpost-agent"}"#)
                .legend("processors"),
            Panel::lines("Memory", "bytes")
                .query(r#"process_resident_memory_bytes{node="$node"} * on (instance) group_left (program) signpost_build_info{program="signpost-agent"}"#)
                .legend("resident"),
        ],
    }
}
