//! What the node's own object contains, gains and loses.

use std::net::IpAddr;

use serde_json::Value;

use super::*;

/// The addresses with node ports, the pod ranges of this node, and the rejected fields.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    node_ports: Vec<String>,
    pods: Vec<String>,
    rejected: Vec<&'static str>,
}

fn seen(story: &mut Story) -> Seen {
    story.compile();
    let view = story.engine.view();
    let dataplane = view.desired.expect("it was compiled");
    let config = dataplane.config();
    let texts = Family::ALL.map(|family| {
        let node_ports = config.node_ports.of(family).into_iter().flatten();
        let pods = config.local_detection.source(family);
        (
            node_ports.map(ToString::to_string).collect::<Vec<String>>(),
            pods.map(|range| range.to_string()),
        )
    });
    let fields = view.rejections.iter().map(|rejection| {
        assert_eq!(rejection.object.kind, dataplane::ObjectKind::Node);
        match rejection.field.as_str() {
            "status.addresses" => "status.addresses",
            "spec.podCIDRs" => "spec.podCIDRs",
            _ => "another field",
        }
    });
    let rejected = fields.collect();
    let [ipv4, ipv6] = texts;
    Seen {
        node_ports: [ipv4.0, ipv6.0].concat(),
        pods: ipv4.1.into_iter().chain(ipv6.1).collect(),
        rejected,
    }
}

fn node(addresses: &[(&str, &str)], pod_cidrs: &[&str]) -> Value {
    let addresses = addresses.iter();
    let addresses: Vec<Value> = addresses
        .map(|(kind, address)| json!({"type": kind, "address": address}))
        .collect();
    json!({
        "metadata": {"name": "node-1"},
        "spec": {"podCIDRs": pod_cidrs},
        "status": {"addresses": addresses},
    })
}

/// A node with an address of each family, and one interface address that its object does not list.
fn primary() -> Story {
    let mut story = Story::new(MissingAssignment::IsAnAnswer).listed();
    let spec = "nodePorts: {addresses: [primary]}";
    story.apply(Delivery::Configuration(Some(assignment(spec))));
    interfaces(
        &mut story,
        &["192.168.0.1", "192.168.0.2", "fd00:192:168::1"],
    );
    says(&mut story, whole());
    story
}

fn whole() -> Value {
    let both = [
        ("InternalIP", "192.168.0.1"),
        ("InternalIP", "fd00:192:168::1"),
    ];
    node(&both, &["10.0.1.0/24", "fd00:10:0:1::/64"])
}

fn says(story: &mut Story, object: Value) {
    story.deliver(Event::Apply(decode::<object::Node>(object)));
}

fn interfaces(story: &mut Story, addresses: &[&str]) {
    let addresses = addresses.iter().map(|text| text.parse());
    let addresses: Result<BTreeSet<IpAddr>, _> = addresses.collect();
    let addresses = addresses.expect("addresses");
    story.apply(Delivery::Addresses(addresses.into()));
}

fn expect(node_ports: &[&str], pods: &[&str], rejected: &[&'static str]) -> Seen {
    let owned = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
    Seen {
        node_ports: owned(node_ports),
        pods: owned(pods),
        rejected: rejected.to_vec(),
    }
}

const BOTH: [&str; 2] = ["192.168.0.1", "fd00:192:168::1"];
const PODS: [&str; 2] = ["10.0.1.0/24", "fd00:10:0:1::/64"];
const LOST: [&str; 4] = [
    "spec.podCIDRs",
    "spec.podCIDRs",
    "status.addresses",
    "status.addresses",
];

#[test]
fn t88_a_node_object_that_comes_back_bare_closes_nothing_and_is_named() {
    let mut story = primary();
    assert_eq!(seen(&mut story), expect(&BOTH, &PODS, &[]));
    let gone = |story: &mut Story| {
        story.deliver(Event::<object::Node>::Delete(ObjectKey::cluster("node-1")));
    };
    gone(&mut story);
    assert_eq!(seen(&mut story), expect(&BOTH, &PODS, &[]));
    says(&mut story, node(&[], &[]));
    assert!(story.compile().is_none(), "nothing changes in the kernel");
    assert_eq!(seen(&mut story), expect(&BOTH, &PODS, &LOST));
    says(&mut story, node(&[("Hostname", "node-1")], &[]));
    assert_eq!(seen(&mut story), expect(&BOTH, &PODS, &LOST));
    // Deleted and empty once more: the kept values survive any number of objects.
    gone(&mut story);
    says(&mut story, node(&[], &[]));
    assert_eq!(seen(&mut story), expect(&BOTH, &PODS, &LOST));
    says(&mut story, whole());
    assert_eq!(seen(&mut story), expect(&BOTH, &PODS, &[]));
}

/// Failure story T464: without an API server nobody deletes the node, and its load balancers left it
/// for good when only its manifest went.
#[test]
fn t464_a_node_whose_manifest_goes_keeps_the_traffic_of_load_balancers() {
    for (silence, lifecycle) in [
        (MissingAssignment::IsAnAnswer, NodeLifecycle::Staying),
        (MissingAssignment::MayEnd, NodeLifecycle::Gone),
    ] {
        let mut story = Story::new(silence).listed();
        says(&mut story, whole());
        assert_eq!(story.engine.view().lifecycle, NodeLifecycle::Staying);
        story.deliver(Event::<object::Node>::Delete(ObjectKey::cluster("node-1")));
        assert_eq!(story.engine.view().lifecycle, lifecycle);
    }
}

/// The agent is killed while the Node object is empty or missing.
#[test]
fn t118_an_agent_that_starts_while_the_node_object_is_bare_closes_nothing() {
    let mut earlier = primary();
    seen(&mut earlier);
    let known = earlier.engine.node().expect("it was read").clone();
    let start = |object: Option<Value>| {
        let mut story = Story::new(MissingAssignment::IsAnAnswer);
        story.engine.recall_node(known.clone());
        story.deliver(Event::<object::Service>::Init);
        story.deliver(Event::<object::EndpointSlice>::Init);
        story.deliver(Event::<object::ServiceCidr>::Init);
        story.deliver(Event::<object::Node>::Init);
        if let Some(object) = object {
            story.deliver(Event::InitApply(decode::<object::Node>(object)));
        }
        story.deliver(Event::<object::Service>::InitDone);
        story.deliver(Event::<object::EndpointSlice>::InitDone);
        story.deliver(Event::<object::ServiceCidr>::InitDone);
        story.deliver(Event::<object::Node>::InitDone);
        let spec = "nodePorts: {addresses: [primary]}";
        story.apply(Delivery::Configuration(Some(assignment(spec))));
        interfaces(&mut story, &["192.168.0.1", "fd00:192:168::1"]);
        story
    };
    let mut story = start(Some(node(&[], &[])));
    assert_eq!(seen(&mut story), expect(&BOTH, &PODS, &LOST));
    says(&mut story, whole());
    assert_eq!(seen(&mut story), expect(&BOTH, &PODS, &[]));
    assert_eq!(seen(&mut start(None)), expect(&BOTH, &PODS, &[]));
}

#[test]
fn t88_an_address_that_does_not_parse_takes_the_place_of_none() {
    let mut story = primary();
    let damaged = [
        ("InternalIP", "192.168.0.1.5"),
        ("InternalIP", "fd00:192:168::1"),
    ];
    says(&mut story, node(&damaged, &PODS));
    let named = ["status.addresses", "another field"];
    assert_eq!(seen(&mut story), expect(&BOTH, &PODS, &named));
}

#[test]
fn t88_an_address_that_left_the_node_is_not_kept() {
    let mut story = primary();
    says(&mut story, node(&[], &PODS));
    interfaces(&mut story, &["192.168.0.2", "fd00:192:168::1"]);
    let named = ["status.addresses"; 2];
    let ipv6 = ["fd00:192:168::1"];
    assert_eq!(seen(&mut story), expect(&ipv6, &PODS, &named));
    // The address returns while the object is still empty: its interface was down.
    interfaces(&mut story, &["192.168.0.1", "fd00:192:168::1"]);
    assert_eq!(seen(&mut story), expect(&BOTH, &PODS, &named));
}

#[test]
fn t88_what_the_object_says_now_counts_before_what_it_said() {
    let mut story = primary();
    says(&mut story, node(&[], &[]));
    let renumbered = [("InternalIP", "192.168.0.2")];
    says(&mut story, node(&renumbered, &["10.0.7.0/24"]));
    let ports = ["192.168.0.2", "fd00:192:168::1"];
    let pods = ["10.0.7.0/24", "fd00:10:0:1::/64"];
    let named = ["spec.podCIDRs", "status.addresses"];
    assert_eq!(seen(&mut story), expect(&ports, &pods, &named));
}

#[test]
fn a_family_that_the_node_never_had_is_not_missed() {
    let mut story = Story::new(MissingAssignment::IsAnAnswer).listed();
    let spec = "nodePorts: {addresses: [primary]}";
    story.apply(Delivery::Configuration(Some(assignment(spec))));
    let ipv4 = ["192.168.0.1"];
    assert_eq!(seen(&mut story), expect(&ipv4, &["10.0.1.0/24"], &[]));
    says(&mut story, node(&[], &[]));
    let named = ["spec.podCIDRs", "status.addresses"];
    assert_eq!(seen(&mut story), expect(&ipv4, &["10.0.1.0/24"], &named));
}
