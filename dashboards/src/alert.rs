//! Alerts and their Prometheus rules.

use serde_json::{Value, json};

/// A regular expression for the agents' `job` label as the chart's PodMonitor or Service sets it.
/// The chart's `jobLabel` replaces it.
pub const AGENT_JOB: &str = "(.*/)?signpost-agent(-metrics)?";
/// The placeholder for the address of the runbook, which the chart fills in.
pub const RUNBOOK: &str = "RUNBOOK";

/// An alert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// Its name, which is also the heading in the runbook.
    pub name: &'static str,
    /// The measured part of the expression. It has a value wherever metrics are scraped.
    pub measured: String,
    /// The failing condition: the rest of the expression.
    pub when: &'static str,
    /// How long the condition must hold before the alert fires.
    pub lasts: &'static str,
    /// The severity of the alert.
    pub severity: Severity,
    /// One sentence, with the labels of the expression.
    pub summary: &'static str,
}

/// The severity of an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Traffic is lost, or about to be.
    Critical,
    /// It needs attention the same day.
    Warning,
    /// For information.
    Info,
}

// === impl Alert ===

impl Alert {
    /// Returns the PromQL expression, which has a value while the alert fires.
    pub fn expression(&self) -> String {
        format!("{}{}", self.measured, self.when)
    }

    fn render(&self) -> Value {
        let anchor = self.name.to_lowercase();
        json!({
            "alert": self.name,
            "expr": self.expression(),
            "for": self.lasts,
            "labels": {"severity": self.severity.name()},
            "annotations": {"summary": self.summary, "runbook_url": format!("{RUNBOOK}#{anchor}")},
        })
    }
}

// === impl Severity ===

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }
}

/// Renders a Prometheus rules file.
pub fn render_rules(alerts: &[Alert]) -> Value {
    let rules: Vec<Value> = alerts.iter().map(Alert::render).collect();
    json!({"groups": [{"name": "signpost", "rules": rules}]})
}

/// Returns all alerts.
pub fn alerts() -> Vec<Alert> {
    let mut alerts = Vec::from(of_nodes());
    alerts.extend(of_changes());
    alerts.extend(of_conntrack());
    alerts.extend(of_operator());
    alerts
}

fn of_nodes() -> [Alert; 6] {
    [
        Alert {
            name: "SignpostAgentDown",
            measured: format!(r#"up{{job=~"{AGENT_JOB}"}}"#),
            when: " == 0",
            lasts: "5m",
            severity: Severity::Critical,
            summary: "The agent on {{ $labels.node }} {{ $labels.instance }} cannot be scraped: its rules keep forwarding, but follow no change.",
        },
        Alert {
            name: "SignpostNodeNotReady",
            measured: r#"max by (node, instance) (signpost_node_condition{type="Ready"})"#
                .to_owned(),
            when: r#" unless on (node, instance) signpost_node_condition{type="Ready",status="True"} unless on (node, instance) signpost_node_serving == 0"#,
            lasts: "5m",
            severity: Severity::Critical,
            summary: "{{ $labels.node }} is not Ready; condition Ready of its NodeProxy says why.",
        },
        Alert {
            name: "SignpostNodeDegraded",
            measured: r#"max by (node, instance) (signpost_node_condition{type="Degraded"})"#
                .to_owned(),
            when: r#" and on (node, instance) signpost_node_condition{type="Degraded",status="True"}"#,
            lasts: "15m",
            severity: Severity::Warning,
            summary: "{{ $labels.node }} is Degraded; condition Degraded of its NodeProxy says why.",
        },
        Alert {
            name: "SignpostSourceStale",
            measured: "max by (node, instance) (signpost_source_stale_seconds)".to_owned(),
            when: " > 300",
            lasts: "1m",
            severity: Severity::Critical,
            summary: "{{ $labels.node }} has had no answer from the API server for {{ $value | humanizeDuration }}: it may send traffic to removed endpoints.",
        },
        Alert {
            name: "SignpostRulesDrifted",
            measured: "sum by (node, instance) (increase(signpost_drift_total[1h]))".to_owned(),
            when: " > 3",
            lasts: "0m",
            severity: Severity::Warning,
            summary: "Another program has changed the rules on {{ $labels.node }} {{ $value | humanize }} times within an hour.",
        },
        Alert {
            name: "SignpostServicesRejected",
            measured: "max by (node, instance) (signpost_rejections)".to_owned(),
            when: " > 0",
            lasts: "15m",
            severity: Severity::Info,
            summary: "{{ $labels.node }} rejects {{ $value | humanize }} objects or fields: status.rejections of its NodeProxy names them.",
        },
    ]
}

fn of_changes() -> [Alert; 3] {
    [
        Alert {
            name: "SignpostSyncsFail",
            // Not a rate: with a syncPeriod of hours, failures are hours apart.
            measured: "max by (node, instance, ip_family) (signpost_failed_syncs)".to_owned(),
            // Of a family that this agent has programmed before. A family that the kernel lacks is tried
            // again and again; if the node needs it, the node is not Ready.
            when: " > 0 and on (node, instance, ip_family) kubeproxy_sync_proxy_rules_last_timestamp_seconds",
            lasts: "10m",
            severity: Severity::Critical,
            summary: "Syncs of {{ $labels.ip_family }} on {{ $labels.node }} keep failing, {{ $value }} since the last that succeeded: changes do not reach the kernel.",
        },
        Alert {
            name: "SignpostChangesWait",
            measured: "max by (node, instance, ip_family) (kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds - kubeproxy_sync_proxy_rules_last_timestamp_seconds)".to_owned(),
            when: " > 0 unless on (node, instance) signpost_node_serving == 0",
            lasts: "2m",
            severity: Severity::Critical,
            summary: "Changes of {{ $labels.ip_family }} on {{ $labels.node }} have waited for the kernel for minutes.",
        },
        Alert {
            name: "SignpostChangesSlow",
            measured: r#"histogram_quantile(0.99, sum by (node, instance, le) (rate(signpost_phase_duration_seconds_bucket{phase="total"}[10m])))"#.to_owned(),
            when: " > 1",
            lasts: "15m",
            severity: Severity::Warning,
            summary: "Changes take {{ $value | humanizeDuration }} to reach the kernel of {{ $labels.node }} (p99).",
        },
    ]
}

fn of_conntrack() -> [Alert; 2] {
    [
        Alert {
            name: "SignpostConntrackFilling",
            measured:
                "max by (node, instance) (signpost_conntrack_entries / (signpost_conntrack_limit > 0))"
                    .to_owned(),
            when: " > 0.9",
            lasts: "2m",
            severity: Severity::Critical,
            summary: "The conntrack table of {{ $labels.node }} is {{ $value | humanizePercentage }} full: a full one drops new connections.",
        },
        Alert {
            name: "SignpostConntrackDrops",
            measured: "sum by (node, instance) (increase(signpost_conntrack_drop_total[5m]))"
                .to_owned(),
            when: " > 0",
            lasts: "5m",
            severity: Severity::Warning,
            summary: "The kernel of {{ $labels.node }} drops packets that it cannot track.",
        },
    ]
}

fn of_operator() -> [Alert; 6] {
    [
        Alert {
            name: "SignpostOperatorAbsent",
            measured: "(sum(signpost_operator_leader) or vector(0))".to_owned(),
            when: " < 1",
            lasts: "10m",
            severity: Severity::Warning,
            summary: "No operator holds the lease: nodes keep forwarding; changes of profiles and new nodes wait.",
        },
        Alert {
            name: "SignpostProfileDegraded",
            measured: r#"max by (profile) (signpost_profile_condition{type="Degraded"})"#.to_owned(),
            when: r#" and on (profile) signpost_profile_condition{type="Degraded",status="True"}"#,
            lasts: "15m",
            severity: Severity::Warning,
            summary: "Profile {{ $labels.profile }} is Degraded; its condition Degraded says why.",
        },
        Alert {
            name: "SignpostRolloutStuck",
            measured: "max by (profile) (time() - signpost_profile_rollout_since_timestamp_seconds)".to_owned(),
            // With a long rollout.minReady, of a day at most, waves and steps within them are as far apart.
            when: r#" > 3600 and on (profile) signpost_profile_rollout_phase{phase=~"RollingOut|RollingBack"} unless on (profile) max by (profile) (changes(signpost_profile_nodes{state="updated"}[30m])) > 0 unless on (profile) (max by (profile) (signpost_profile_min_ready_seconds) > 1200 and on (profile) max by (profile) (changes(signpost_profile_nodes{state="updated"}[25h])) > 0)"#,
            lasts: "5m",
            severity: Severity::Warning,
            summary: "The rollout of profile {{ $labels.profile }} makes no progress: its phase or wave has lasted {{ $value | humanizeDuration }}.",
        },
        Alert {
            name: "SignpostOperatorWritesFail",
            measured: r#"sum by (action) (increase(signpost_operator_writes_total{result="failure"}[10m]))"#.to_owned(),
            when: " > 5",
            lasts: "10m",
            severity: Severity::Warning,
            summary: "Writes of the operator to the API server fail (action {{ $labels.action }}).",
        },
        Alert {
            name: "SignpostOperatorWatchFails",
            measured: "max by (kind) (signpost_operator_watch_failing_seconds)".to_owned(),
            when: " > 300",
            lasts: "1m",
            severity: Severity::Warning,
            summary: "The operator has failed to list or watch objects of kind {{ $labels.kind }} for {{ $value | humanizeDuration }}.",
        },
        Alert {
            name: "SignpostNodesExcluded",
            measured: r#"max by (profile) (signpost_profile_nodes{state="excluded"})"#.to_owned(),
            // All nodes are always too many, also where rollout.maxUnavailable is 100 % or there is one node.
            when: r#" > max by (profile) (signpost_profile_max_unavailable) or max by (profile) (signpost_profile_nodes{state="excluded"}) > 0 and max by (profile) (signpost_profile_nodes{state="matched"}) == 0"#,
            lasts: "15m",
            severity: Severity::Warning,
            summary: "The DaemonSet of the agents excludes {{ $value | humanize }} nodes of profile {{ $labels.profile }}: no agent can run there, and what was programmed follows no change.",
        },
    ]
}
