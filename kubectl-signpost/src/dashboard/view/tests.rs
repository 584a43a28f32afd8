use jiff::Timestamp;
use kube::api::DynamicObject;
use serde_json::{Value, from_value, json};

use super::*;
use crate::cluster::{ClusterError, ObjectEvent};
use crate::dashboard::facts::Source;

fn now() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

fn object(value: Value) -> DynamicObject {
    from_value(value).expect("an object")
}

fn node(name: &str) -> DynamicObject {
    object(json!({"metadata": {"name": name}}))
}

/// Returns a NodeProxy whose condition Ready has this status and reason.
fn proxy(name: &str, (ready, reason): (&str, &str)) -> DynamicObject {
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-11-24T00:00:00Z",
        })
    };
    object(json!({
        "apiVersion": "signpost.dev/v1alpha1", "kind": "NodeProxy",
        "metadata": {"name": name},
        "spec": {"profileName": "default", "configHash": "0123456789abcdef"},
        "status": {
            "appliedHash": "0123456789abcdef", "mode": "nftables",
            "conditions": [condition("Ready", ready, reason)],
        },
    }))
}

fn profile(status: Value) -> DynamicObject {
    object(json!({
        "apiVersion": "signpost.dev/v1alpha1", "kind": "ProxyProfile",
        "metadata": {"name": "default", "generation": 2}, "spec": {}, "status": status,
    }))
}

fn facts(proxies: Vec<DynamicObject>) -> ClusterState {
    let mut facts = ClusterState::new("https://api", "default", String::new());
    let nodes = ["n1", "n2", "n3"].map(node).into();
    facts.apply(
        Source::Profiles,
        ObjectEvent::Listed(vec![profile(json!({}))]),
        now(),
    );
    facts.apply(Source::NodeProxies, ObjectEvent::Listed(proxies), now());
    facts.apply(Source::Nodes, ObjectEvent::Listed(nodes), now());
    facts
}

const READY: (&str, &str) = ("True", "Programmed");
const FAILING: (&str, &str) = ("False", "CommitFailed");

fn json_of(change: &Change<'_>) -> Value {
    serde_json::to_value(change).expect("JSON")
}

/// NodeProxies may be listed late, or not at all for want of rights: that says nothing about nodes.
#[test]
fn no_node_is_without_a_configuration_before_all_configurations_are_listed() {
    let mut facts = ClusterState::new("https://api", "default", String::new());
    facts.apply(Source::Nodes, ObjectEvent::Listed(vec![node("n1")]), now());
    let refused = || {
        ObjectEvent::Fails(ClusterError::Request {
            doing: "list NodeProxies".to_owned(),
            server: "https://api".to_owned(),
            source: kube::Error::LinesCodecMaxLineLengthExceeded,
        })
    };
    facts.apply(Source::NodeProxies, refused(), now());
    assert!(facts.unconfigured().is_empty());
    facts.apply(Source::NodeProxies, ObjectEvent::Listed(vec![]), now());
    facts.apply(Source::NodeProxies, refused(), now());
    assert_eq!(facts.unconfigured(), ["n1"]);
}

#[test]
fn a_page_gets_everything_once_and_then_what_changed() {
    let mut facts = facts(vec![proxy("n1", READY), proxy("n2", READY)]);
    let first = View::of(&facts);
    let whole = json_of(&first.difference(None));
    let names: Vec<&Value> = whole["nodes"]["put"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|node| &node["name"])
        .collect();
    assert_eq!(names, ["n1", "n2", "n3"]);
    assert_eq!(whole["nodes"]["whole"], true);
    assert_eq!(whole["nodes"]["put"][2]["state"], "without a configuration");
    assert_eq!(whole["connection"]["state"], "live");

    assert_eq!(
        json_of(&View::of(&facts).difference(Some(&first))),
        json!({})
    );

    // One agent writes an unchanged status, another reports a failure, and a node is deleted.
    let changed = |name, ready| ObjectEvent::Changed(Box::new(proxy(name, ready)));
    facts.apply(Source::NodeProxies, changed("n1", READY), now());
    facts.apply(Source::NodeProxies, changed("n2", FAILING), now());
    facts.apply(Source::Nodes, ObjectEvent::Deleted("n3".to_owned()), now());
    let second = View::of(&facts);
    let change = json_of(&second.difference(Some(&first)));
    let put = change["nodes"]["put"].as_array().expect("nodes");
    assert_eq!(put.len(), 1, "{change}");
    assert_eq!(
        (&put[0]["name"], &put[0]["state"]),
        (&json!("n2"), &json!("unhealthy"))
    );
    assert_eq!(change["nodes"]["gone"], json!(["n3"]));
    assert_eq!(change.get("connection"), None);
}

#[test]
fn a_list_replaces_what_was_known_and_an_unreadable_object_is_named() {
    let mut facts = facts(vec![proxy("n1", READY), proxy("n2", READY)]);
    let mut strange = proxy("n2", READY);
    strange.data["spec"]["configHash"] = json!(["not", "text"]);
    facts.apply(
        Source::NodeProxies,
        ObjectEvent::Listed(vec![strange]),
        now(),
    );
    let view = View::of(&facts);
    let whole = json_of(&view.difference(None));
    assert_eq!(whole["rollouts"]["unreadable"][0]["object"], "NodeProxy n2");
    let named = &whole["rollouts"]["nodesWithoutConfiguration"];
    assert_eq!(named, &json!({"first": ["n1", "n3"], "total": 2}));
}

#[test]
fn what_blocks_a_rollout_is_reported_in_the_words_of_the_command_line() {
    let mut facts = facts(vec![proxy("n1", FAILING), proxy("n2", READY)]);
    let status = json!({
        "observedGeneration": 2, "matchedNodes": 2, "updatedNodes": 1,
        "conditions": [{
            "type": "Progressing", "status": "False", "reason": "Halted",
            "message": "1 of 2 nodes failed: n1 (CommitFailed)",
            "lastTransitionTime": "2026-11-24T00:00:00Z",
        }],
    });
    let changed = ObjectEvent::Changed(Box::new(profile(status)));
    facts.apply(Source::Profiles, changed, now());
    let whole = json_of(&View::of(&facts).difference(None));
    let rollout = &whole["rollouts"]["profiles"][0];
    assert_eq!(
        rollout["progress"],
        "default generation 2: Halted, 1 of 2 nodes updated, 0 ready, 0 degraded"
    );
    assert_eq!(rollout["state"], "unhealthy");
    assert_eq!(rollout["stage"]["stopped"]["reason"], "Halted");
    assert!(rollout["stage"]["stopped"]["advice"].is_string());
    let reason = &rollout["reasons"][0];
    assert_eq!(reason["reason"], "CommitFailed");
    assert_eq!(reason["nodes"], json!({"first": ["n1"], "total": 1}));
    assert!(reason["advice"].is_string(), "{reason}");
}

#[test]
fn rejections_of_many_nodes_are_grouped_by_object() {
    let rejecting = |name: &str, services: &[&str], total: u32| {
        let mut proxy = proxy(name, READY);
        let rejection = |service: &&str| json!({"object": format!("Service {service}"), "field": "spec.externalIPs", "message": "is not served"});
        let first: Vec<Value> = services.iter().map(rejection).collect();
        proxy.data["status"]["rejections"] = json!({"total": total, "first": first});
        proxy
    };
    let facts = facts(vec![
        rejecting("n1", &["shop/cart"], 1),
        rejecting("n2", &["shop/cart", "a/a"], 30),
    ]);
    let whole = json_of(&View::of(&facts).difference(None));
    let rejections = &whole["rejections"];
    assert_eq!(rejections["objects"][0]["object"], "Service shop/cart");
    let nodes = &rejections["objects"][0]["parts"][0]["nodes"];
    assert_eq!(nodes, &json!({"first": ["n1", "n2"], "total": 2}));
    assert_eq!(rejections["objects"][1]["object"], "Service a/a");
    assert_eq!(rejections["nodesWithMore"]["first"], json!(["n2"]));
}

#[test]
fn drift_is_grouped_by_program_and_what_lasts_comes_first() {
    let drifting = |name: &str, drift: Value| {
        let mut proxy = proxy(name, READY);
        proxy.data["status"]["drift"] = drift;
        proxy
    };
    let of = |program: &str, continues: bool| {
        json!({
            "program": program, "continues": continues, "repairs": 6,
            "lastFound": "2026-11-24T00:00:00Z", "elements": 12, "objects": 1,
        })
    };
    let facts = facts(vec![
        drifting("n1", json!([of("nft", false)])),
        drifting("n2", json!([of("flush", true)])),
        drifting("n3", json!([])),
    ]);
    let whole = json_of(&View::of(&facts).difference(None));
    let programs = whole["drift"]["programs"].as_array().expect("programs");
    let found: Vec<_> = programs
        .iter()
        .map(|program| {
            (
                &program["name"],
                &program["contested"],
                &program["first"][0]["node"],
            )
        })
        .collect();
    let [one, other] = [
        (json!("flush"), json!(1), json!("n2")),
        (json!("nft"), json!(0), json!("n1")),
    ];
    assert_eq!(
        found,
        [(&one.0, &one.1, &one.2), (&other.0, &other.1, &other.2)]
    );
    assert!(programs.iter().all(|program| program["advice"].is_string()));
}
