use serde_json::{Value, json};

use super::*;

fn parsed(object: Value) -> Parsed<OwnNode> {
    parsed_after(None, object)
}

fn parsed_after(before: Option<&OwnNode>, object: Value) -> Parsed<OwnNode> {
    let object = serde_json::from_value(object).expect("the shape is right");
    parse_node(&object, before, &mut SharedNames::default())
}

fn clean(object: Value) -> OwnNode {
    let parsed = parsed(object);
    assert_eq!(parsed.rejections, []);
    parsed.value.expect("every Node is kept")
}

#[test]
fn internal_addresses_come_before_external_ones_in_each_family() {
    let node = clean(json!({
        "metadata": {"name": "node-1"},
        "status": {"addresses": [
            {"type": "Hostname", "address": "node-1"},
            {"type": "ExternalIP", "address": "203.0.113.1"},
            {"type": "ExternalIP", "address": "2001:db8::1"},
            {"type": "InternalIP", "address": "192.168.0.1"},
            {"type": "InternalIP", "address": "192.168.0.2"},
        ]},
    }));
    assert_eq!(node.ipv4, Some(Ipv4Addr::new(192, 168, 0, 1)));
    assert_eq!(node.ipv6, Some("2001:db8::1".parse().expect("an address")));
}

#[test]
fn an_empty_zone_is_none() {
    let zone =
        |labels: Value| clean(json!({"metadata": {"name": "node-1", "labels": labels}})).zone;
    assert_eq!(zone(json!({ZONE: "zone-a"})).as_deref(), Some("zone-a"));
    assert_eq!(zone(json!({ZONE: ""})), None);
    assert_eq!(zone(json!({})), None);
}

#[test]
fn a_node_that_is_to_go_says_why() {
    let lifecycle = |deleted: Value, taint: &str| {
        clean(json!({
            "metadata": {"name": "node-1", "deletionTimestamp": deleted},
            "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}]},
        }))
        .lifecycle
    };
    assert_eq!(lifecycle(json!(null), "other"), NodeLifecycle::Staying);
    assert_eq!(
        lifecycle(json!(null), TO_BE_DELETED),
        NodeLifecycle::MarkedByAutoscaler
    );
    let time = json!("2026-01-01T00:00:00Z");
    assert_eq!(lifecycle(time, TO_BE_DELETED), NodeLifecycle::BeingDeleted);
}

#[test]
fn what_does_not_parse_is_named_and_the_rest_is_kept() {
    let parsed = parsed(json!({
        "metadata": {"name": "node-1"},
        "spec": {"podCIDRs": ["10.0.1.0/24", "10.0.2.0"]},
        "status": {"addresses": [
            {"type": "InternalIP", "address": "here"},
            {"type": "InternalIP", "address": "192.168.0.1"},
        ]},
    }));
    let texts: Vec<String> = parsed.rejections.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "Node node-1: status.addresses[0].address: \"here\" is not an IP address; it is ignored",
            "Node node-1: spec.podCIDRs[1]: \"10.0.2.0\" is not a CIDR; pods in it do not count as this node's",
        ]
    );
    let node = parsed.value.expect("every Node is kept");
    assert_eq!(node.ipv4, Some(Ipv4Addr::new(192, 168, 0, 1)));
    assert_eq!(node.pod_cidrs, ["10.0.1.0/24".parse().expect("a range")]);
}

fn whole() -> Value {
    json!({
        "metadata": {"name": "node-1"},
        "spec": {"podCIDRs": ["10.0.1.0/24", "fd00:10::/64"]},
        "status": {"addresses": [
            {"type": "InternalIP", "address": "192.168.0.1"},
            {"type": "InternalIP", "address": "fd00:192::1"},
        ]},
    })
}

/// A cloud provider adds the addresses to a recreated Node some time later.
#[test]
fn t88_a_node_that_comes_back_bare_keeps_what_it_last_had_and_says_so() {
    let before = clean(whole());
    for (bare, instead) in [
        (json!({"metadata": {"name": "node-1"}}), 4),
        (
            json!({
                "metadata": {"name": "node-1"},
                "status": {"addresses": [{"type": "Hostname", "address": "node-1"}]},
            }),
            4,
        ),
        (
            json!({
                "metadata": {"name": "node-1"},
                "status": {"addresses": [
                    {"type": "InternalIP", "address": "pending"},
                    {"type": "InternalIP", "address": "0.0.0.0"},
                    {"type": "InternalIP", "address": "127.0.0.1"},
                    {"type": "InternalIP", "address": "ff02::1"},
                ]},
            }),
            8,
        ),
    ] {
        let parsed = parsed_after(Some(&before), bare);
        let node = parsed.value.expect("every Node is kept");
        assert_eq!((node.ipv4, node.ipv6), (None, None));
        assert_eq!(node.last_given, before.last_given);
        assert_eq!(node.pod_cidrs, before.pod_cidrs);
        let texts: Vec<String> = parsed.rejections.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), instead, "{texts:#?}");
        for expected in [
            "Node node-1: spec.podCIDRs: there is no IPv4 range any more; pods in 10.0.1.0/24, the last one, still count as this node's",
            "Node node-1: status.addresses: there is no IPv6 address any more; fd00:192::1, the last one, counts for as long as an interface of this node has it",
        ] {
            assert!(texts.iter().any(|text| text == expected), "{texts:#?}");
        }
        let again = parsed_after(Some(&node), whole());
        assert_eq!(again.rejections, []);
        assert_eq!(again.value, Some(before.clone()));
    }
}

#[test]
fn a_family_that_is_still_reported_is_taken_as_it_is_reported() {
    let before = clean(whole());
    let parsed = parsed_after(
        Some(&before),
        json!({
            "metadata": {"name": "node-1"},
            "spec": {"podCIDRs": ["10.0.2.0/24"]},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.168.0.2"}]},
        }),
    );
    assert_eq!(parsed.rejections.len(), 2, "{:#?}", parsed.rejections);
    let node = parsed.value.expect("every Node is kept");
    assert_eq!(node.ipv4, Some(Ipv4Addr::new(192, 168, 0, 2)));
    assert_eq!(node.last_given.ipv4, node.ipv4);
    assert_eq!(node.last_given.ipv6, before.ipv6);
    let cidrs: Vec<String> = node.pod_cidrs.iter().map(ToString::to_string).collect();
    assert_eq!(cidrs, ["10.0.2.0/24", "fd00:10::/64"]);
}
