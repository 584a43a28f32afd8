//! The status that a simulated agent writes: every field that a real agent fills in mode nftables,
//! and conditions with its reasons and messages (`node-agent`, `status.rs`).
//!
//! The end-to-end test `an_agents_status_has_the_fields_that_make_fleet_simulates` compares the
//! fields with those of a real agent.

use std::collections::BTreeSet;

use crds::condition::reason::{self, Reason};
use crds::condition::{self, Finding, Status, set_condition};
use crds::node_proxy::drift::Drift;
use crds::node_proxy::latency::{Microseconds, Quantiles, SyncLatency};
use crds::node_proxy::rejections::Rejections;
use crds::node_proxy::{ConntrackFill, Counts, Heartbeat};
use crds::profile::handover::Handover;
use crds::{NodeProxy, NodeProxyStatus, Span};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::node::{ServedBy, SimulatedNode};

/// The number of Services at the start.
const SERVICES: u32 = 3;

/// Returns the status of a healthy node with the configuration of `proxy`.
pub fn simulated_status(proxy: &NodeProxy) -> NodeProxyStatus {
    let before = NodeProxyStatus::default();
    compose(proxy, &SimulatedNode::default(), &before, Timestamp::now())
}

/// Returns the path of every value in `status`: the names of fields with dots between them. For
/// elements of a list, `[type]` follows for conditions and `[]` for all others.
pub fn paths_of(status: &Value) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    collect(status, "", &mut paths);
    paths
}

fn collect(value: &Value, path: &str, paths: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                collect(value, &format!("{path}.{name}"), paths);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                let kind = element["type"].as_str().unwrap_or_default();
                collect(element, &format!("{path}[{kind}]"), paths);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            paths.insert(path.trim_start_matches('.').to_owned());
        }
    }
}

/// Composes the status of `node` at `now`. Conditions that are unchanged since `before` keep their
/// transition times.
pub(super) fn compose(
    proxy: &NodeProxy,
    node: &SimulatedNode,
    before: &NodeProxyStatus,
    now: Timestamp,
) -> NodeProxyStatus {
    let spec = &proxy.spec;
    let desired = spec.config.handover;
    let is_serving = node.served_by == ServedBy::Signpost;
    let is_applied = node.is_handed_over(desired) && (is_serving || desired == Handover::Handback);
    let mut conditions = before.conditions.clone();
    for finding in findings(node, desired) {
        let finding = Finding {
            generation: proxy.metadata.generation,
            ..finding
        };
        set_condition(&mut conditions, finding, now);
    }
    NodeProxyStatus {
        observed_generation: proxy.metadata.generation,
        applied_hash: if is_applied {
            Some(spec.config_hash.clone())
        } else {
            before.applied_hash.clone()
        },
        mode: is_serving.then_some(spec.config.mode),
        last_sync_time: Some(Time(now)),
        sync_latency: Some(latency()),
        heartbeat: Some(Heartbeat::Lease),
        counts: Counts {
            services: SERVICES + node.added_services,
            endpoints: 5,
            elements: if is_serving { 40 } else { 0 },
        },
        conntrack: Some(ConntrackFill {
            entries: 1_500,
            max: 131_072,
        }),
        // Mode iptables alone has something to say here.
        iptables: None,
        agent_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        kernel_version: Some("6.12.57+deb13-amd64".to_owned()),
        // No Service asks for what cannot be served.
        rejections: Rejections::default(),
        drift: vec![Drift {
            program: Some("nft".to_owned()),
            continues: false,
            repairs: 1,
            last_found: repaired_at(proxy),
            elements: 3,
            objects: 1,
        }],
        conditions,
    }
}

/// Each node's rules were changed once, and repaired, before the measurement.
fn repaired_at(proxy: &NodeProxy) -> Time {
    let created = proxy.metadata.creation_timestamp.clone();
    created.unwrap_or(Time(Timestamp::UNIX_EPOCH))
}

fn latency() -> SyncLatency {
    let quantiles = Quantiles {
        p50_microseconds: Microseconds::new(900),
        p99_microseconds: Microseconds::new(4_000),
        max_microseconds: Microseconds::new(5_000),
    };
    SyncLatency {
        window: Span::minutes(5),
        decode: quantiles,
        compile: quantiles,
        commit: quantiles,
        total: quantiles,
        network_programming: Some(quantiles),
        p99: quantiles.p99_microseconds.to_string(),
    }
}

fn findings(node: &SimulatedNode, desired: Handover) -> Vec<Finding> {
    let say = |kind, status, reason, message: &str| {
        Finding::new(kind, status, reason, message.to_owned())
    };
    let (family_status, family_reason, family_message) = family_programmed(node);
    let families = [condition::IPV4_PROGRAMMED, condition::IPV6_PROGRAMMED];
    let families = families.map(|kind| say(kind, family_status, family_reason, family_message));
    let (ready_status, ready_reason, ready_message) = ready(node, desired);
    let mut findings = vec![
        say(condition::READY, ready_status, ready_reason, ready_message),
        progressing(node, desired),
        degraded(node, desired),
        say(
            condition::FEATURES_HONOURED,
            Status::True,
            reason::ALL_HONOURED,
            "",
        ),
    ];
    findings.extend(families);
    findings.extend([
        say(
            condition::RULES_CONTESTED,
            Status::False,
            reason::UNDISTURBED,
            "last repaired at 2026-01-02T03:04:05Z: IPv4: nft (process 4711) had changed 3 elements and 1 objects",
        ),
        foreign_proxy(node),
        say(
            condition::SOURCE_SYNCED,
            Status::True,
            reason::LISTS_COMPLETE,
            "",
        ),
        say(
            condition::CONNTRACK_PRESSURE,
            Status::False,
            reason::TABLE_ROOMY,
            "",
        ),
        say(
            condition::CONNTRACK_CONFIGURED,
            Status::True,
            reason::LIMITS_SET,
            "",
        ),
        match node.served_by {
            ServedBy::Signpost => say(
                condition::API_SERVICE_REACHABLE,
                Status::True,
                reason::CONNECTED,
                "a new connection to 10.96.0.1:443 was accepted",
            ),
            ServedBy::KubeProxy => say(
                condition::API_SERVICE_REACHABLE,
                Status::Unknown,
                reason::NOT_CHECKED,
                "",
            ),
        },
    ]);
    findings
}

/// What a node that was handed back reports of it.
const HANDED_BACK: &str = "handed back to another proxy: Signpost serves no Service here";
/// What a node reports whose kernel refuses changes.
const COMMIT_FAILED: &str =
    "IPv4: failed to commit a change of table ip signpost: Cannot allocate memory (os error 12)";

fn ready(node: &SimulatedNode, desired: Handover) -> (Status, Reason, &'static str) {
    if node.served_by == ServedBy::KubeProxy {
        let is_done = desired == Handover::Handback && node.has_kube_proxy_rules;
        return (Status::from(is_done), reason::HANDED_BACK, HANDED_BACK);
    }
    if node.is_failing {
        return (Status::False, reason::COMMIT_FAILED, COMMIT_FAILED);
    }
    let message = "everything the profile and the Services ask for is programmed";
    (Status::True, reason::PROGRAMMED, message)
}

fn progressing(node: &SimulatedNode, desired: Handover) -> Finding {
    let (status, reason, message) = match (node.is_handed_over(desired), node.served_by) {
        (true, ServedBy::KubeProxy) => (Status::False, reason::HANDED_BACK, HANDED_BACK),
        (true, ServedBy::Signpost) => (
            Status::False,
            reason::SETTLED,
            "the current configuration is programmed",
        ),
        (false, _) => (
            Status::True,
            reason::HANDOVER_PENDING,
            match desired {
                Handover::Handback => "Services are being handed back to kube-proxy",
                Handover::Manual | Handover::Takeover => {
                    "Services are being taken over from kube-proxy"
                }
            },
        ),
    };
    Finding::new(condition::PROGRESSING, status, reason, message.to_owned())
}

fn degraded(node: &SimulatedNode, desired: Handover) -> Finding {
    let refusal = node.refusal.filter(|_| !node.is_handed_over(desired));
    let (status, reason, message) = match refusal {
        _ if node.is_failing => (Status::True, reason::COMMIT_FAILED, COMMIT_FAILED),
        Some(refusal) => (Status::True, reason::HANDOVER_REFUSED, refusal),
        None => (Status::False, reason::AS_EXPECTED, ""),
    };
    Finding::new(condition::DEGRADED, status, reason, message.to_owned())
}

fn family_programmed(node: &SimulatedNode) -> (Status, Reason, &'static str) {
    match node.served_by {
        ServedBy::KubeProxy => (Status::False, reason::HANDED_BACK, ""),
        ServedBy::Signpost if node.is_failing => {
            (Status::False, reason::COMMIT_FAILED, COMMIT_FAILED)
        }
        ServedBy::Signpost => (Status::True, reason::FAMILY_PROGRAMMED, ""),
    }
}

fn foreign_proxy(node: &SimulatedNode) -> Finding {
    let kind = condition::FOREIGN_PROXY_DETECTED;
    if !node.has_kube_proxy_rules {
        return Finding::new(kind, Status::False, reason::NONE_FOUND, String::new());
    }
    let process = match node.has_kube_proxy {
        true => "kube-proxy answers at 127.0.0.1:10256",
        false => "no kube-proxy answers on this node",
    };
    let message = format!(
        "found rules of kube-proxy in mode nftables for IPv4 and IPv6; {process}; new connections follow Signpost's \
         rules in mode nftables, and in mode iptables the rules whose chains were attached last; established \
         connections are unaffected"
    );
    Finding::new(kind, Status::True, reason::KUBE_PROXY_NFTABLES, message)
}

#[cfg(test)]
mod tests {
    use crds::NodeProxySpec;
    use serde_json::json;

    use super::*;

    /// A NodeProxy whose profile requests `handover`.
    fn proxy(handover: Handover) -> NodeProxy {
        let mut spec = NodeProxySpec::default();
        spec.config.handover = handover;
        spec.config_hash = serde_json::from_value(json!(format!("{handover:?}"))).expect("a hash");
        NodeProxy::new("node-1", spec)
    }

    fn said(status: &NodeProxyStatus, kind: &str) -> String {
        let found = status.conditions.iter().find(|c| c.type_ == kind);
        found.map_or_else(String::new, |c| format!("{} {}", c.status, c.reason))
    }

    /// The same reports as those of a real agent (`node-agent`, `status/tests/handover.rs`).
    #[test]
    fn a_node_applies_a_handover_once_it_is_done_and_reports_a_refusal_as_degraded() {
        let mut node = SimulatedNode {
            has_kube_proxy: true,
            has_kube_proxy_rules: true,
            ..SimulatedNode::default()
        };
        let now = Timestamp::UNIX_EPOCH;
        let mut status = NodeProxyStatus::default();
        let mut report = |proxy: &NodeProxy, node: &SimulatedNode| {
            status = compose(proxy, node, &status, now);
            status.clone()
        };

        let handback = proxy(Handover::Handback);
        let pending = report(&handback, &node);
        assert_eq!(pending.applied_hash, None);
        assert_eq!(said(&pending, condition::READY), "True Programmed");
        assert_eq!(
            said(&pending, condition::PROGRESSING),
            "True HandoverPending"
        );
        assert_eq!(node.obstacle(Handover::Handback), None);
        node.hand_over(Handover::Handback);
        let done = report(&handback, &node);
        let handed_back = Some(handback.spec.config_hash.clone());
        assert_eq!(done.applied_hash, handed_back);
        assert_eq!(done.mode, None);
        assert_eq!(said(&done, condition::READY), "True HandedBack");

        let takeover = proxy(Handover::Takeover);
        node.refusal = node.obstacle(Handover::Takeover);
        let refused = report(&takeover, &node);
        assert_eq!(refused.applied_hash, handed_back);
        assert_eq!(said(&refused, condition::READY), "False HandedBack");
        assert_eq!(said(&refused, condition::DEGRADED), "True HandoverRefused");

        node.has_kube_proxy = false;
        assert_eq!(node.obstacle(Handover::Takeover), None);
        node.hand_over(Handover::Takeover);
        let done = report(&takeover, &node);
        assert_eq!(done.applied_hash, Some(takeover.spec.config_hash.clone()));
        for (kind, expected) in [
            (condition::READY, "True Programmed"),
            (condition::PROGRESSING, "False Settled"),
            (condition::DEGRADED, "False AsExpected"),
            (condition::FOREIGN_PROXY_DETECTED, "False NoneFound"),
        ] {
            assert_eq!(said(&done, kind), expected);
        }
    }

    #[test]
    fn a_path_names_fields_and_the_types_of_conditions_and_no_numbers() {
        let status = json!({
            "mode": "nftables",
            "counts": {"services": 3},
            "drift": [{"program": "nft"}, {"program": "iptables"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        });
        let paths: Vec<String> = paths_of(&status).into_iter().collect();
        assert_eq!(
            paths,
            [
                "conditions[Ready].status",
                "conditions[Ready].type",
                "counts.services",
                "drift[].program",
                "mode",
            ]
        );
    }
}
