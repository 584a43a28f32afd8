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
use crds::{NodeProxy, NodeProxyStatus, Span};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::node::SimulatedNode;

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
    let mut conditions = before.conditions.clone();
    for finding in findings(node) {
        let finding = Finding {
            generation: proxy.metadata.generation,
            ..finding
        };
        set_condition(&mut conditions, finding, now);
    }
    NodeProxyStatus {
        observed_generation: proxy.metadata.generation,
        applied_hash: Some(spec.config_hash.clone()),
        mode: Some(spec.config.mode),
        last_sync_time: Some(Time(now)),
        sync_latency: Some(latency()),
        heartbeat: Some(Heartbeat::Lease),
        counts: Counts {
            services: SERVICES + node.added_services,
            endpoints: 5,
            elements: 40,
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

/// The type of a condition, its status, reason and message.
type Said = (&'static str, Status, Reason, &'static str);

fn findings(node: &SimulatedNode) -> Vec<Finding> {
    let all = [
        ready(node),
        (
            condition::PROGRESSING,
            Status::False,
            reason::SETTLED,
            "the current configuration is programmed",
        ),
        degraded(node),
        (
            condition::FEATURES_HONOURED,
            Status::True,
            reason::ALL_HONOURED,
            "",
        ),
        family_programmed(node, condition::IPV4_PROGRAMMED),
        family_programmed(node, condition::IPV6_PROGRAMMED),
        (
            condition::RULES_CONTESTED,
            Status::False,
            reason::UNDISTURBED,
            "last repaired at 2026-01-02T03:04:05Z: IPv4: nft (process 4711) had changed 3 elements and 1 objects",
        ),
        (
            condition::FOREIGN_PROXY_DETECTED,
            Status::False,
            reason::NONE_FOUND,
            "",
        ),
        (
            condition::SOURCE_SYNCED,
            Status::True,
            reason::LISTS_COMPLETE,
            "",
        ),
        (
            condition::CONNTRACK_PRESSURE,
            Status::False,
            reason::TABLE_ROOMY,
            "",
        ),
        (
            condition::CONNTRACK_CONFIGURED,
            Status::True,
            reason::LIMITS_SET,
            "",
        ),
        (
            condition::API_SERVICE_REACHABLE,
            Status::True,
            reason::CONNECTED,
            "a new connection to 10.96.0.1:443 was accepted",
        ),
    ];
    let say = |(kind, status, reason, message): Said| {
        Finding::new(kind, status, reason, message.to_owned())
    };
    all.map(say).to_vec()
}

/// What a node reports whose kernel refuses changes.
const COMMIT_FAILED: &str =
    "IPv4: failed to commit a change of table ip signpost: Cannot allocate memory (os error 12)";

fn ready(node: &SimulatedNode) -> Said {
    if node.is_failing {
        return (
            condition::READY,
            Status::False,
            reason::COMMIT_FAILED,
            COMMIT_FAILED,
        );
    }
    let message = "everything the profile and the Services ask for is programmed";
    (condition::READY, Status::True, reason::PROGRAMMED, message)
}

fn degraded(node: &SimulatedNode) -> Said {
    match node.is_failing {
        true => (
            condition::DEGRADED,
            Status::True,
            reason::COMMIT_FAILED,
            COMMIT_FAILED,
        ),
        false => (condition::DEGRADED, Status::False, reason::AS_EXPECTED, ""),
    }
}

fn family_programmed(node: &SimulatedNode, kind: &'static str) -> Said {
    match node.is_failing {
        true => (kind, Status::False, reason::COMMIT_FAILED, COMMIT_FAILED),
        false => (kind, Status::True, reason::FAMILY_PROGRAMMED, ""),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
