//! The two kinds that do not belong to a Service: the agent's own Node and the ServiceCIDRs.

use catalog::object::{Node, Object, ServiceCidr, ZONE};
use catalog::{Event, NodeLifecycle};
use dataplane::Family;
use serde_json::json;

use crate::world::{list, synced};

fn node(name: &str, zone: &str) -> Node {
    let object = json!({
        "metadata": {"name": name, "labels": {ZONE: zone}},
        "spec": {"podCIDRs": ["10.0.1.0/24", "fd00:10::/64"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.168.0.1"}]},
    });
    serde_json::from_value(object).expect("the shape is right")
}

fn ranges(name: &str, cidrs: &[&str]) -> ServiceCidr {
    let object = json!({"metadata": {"name": name}, "spec": {"cidrs": cidrs}});
    serde_json::from_value(object).expect("the shape is right")
}

#[test]
fn only_the_agents_own_node_matters() {
    let mut catalog = synced(&[], &[]);
    catalog.apply(Event::Apply(node("node-2", "zone-b")));
    assert!(catalog.dirty().is_empty());
    assert_eq!(catalog.node(), None);

    catalog.apply(Event::Apply(node("node-1", "zone-a")));
    assert!(catalog.take_dirty().node);
    let own = catalog.node().expect("seen");
    assert_eq!(own.zone.as_deref(), Some("zone-a"));
    assert_eq!(own.address(Family::Ipv4), Some([192, 168, 0, 1].into()));
    assert_eq!(own.address(Family::Ipv6), None);
    assert_eq!(
        own.pod_cidr(Family::Ipv6).map(|cidr| cidr.to_string()),
        Some("fd00:10::/64".to_owned())
    );

    let mut heartbeat = node("node-1", "zone-a");
    heartbeat.metadata.resource_version = Some("2".to_owned());
    catalog.apply(Event::Apply(heartbeat));
    assert!(catalog.dirty().is_empty(), "a heartbeat is no change");

    catalog.apply(Event::Apply(node("node-1", "zone-b")));
    assert!(catalog.take_dirty().node);
}

#[test]
fn the_agents_node_as_it_last_was_outlives_its_object() {
    let deleted = |catalog: &mut catalog::Catalog| {
        catalog.apply(Event::<Node>::Delete(node("node-1", "").key()));
    };
    let unlisted = |catalog: &mut catalog::Catalog| list(catalog, &[node("node-2", "zone-b")]);
    for leave in [deleted as fn(&mut catalog::Catalog), unlisted] {
        let mut catalog = synced(&[], &[]);
        catalog.apply(Event::Apply(node("node-1", "zone-a")));
        catalog.take_dirty();
        leave(&mut catalog);
        assert!(catalog.take_dirty().node);
        let own = catalog.node().expect("kept");
        assert_eq!(own.lifecycle, NodeLifecycle::Gone);
        assert_eq!(own.pod_cidrs.len(), 2);

        leave(&mut catalog);
        assert!(catalog.dirty().is_empty(), "gone once is gone");
        catalog.apply(Event::Apply(node("node-1", "zone-a")));
        assert!(catalog.take_dirty().node);
        assert_eq!(
            catalog.node().map(|own| own.lifecycle),
            Some(NodeLifecycle::Staying)
        );
    }
}

#[test]
fn service_cidrs_are_the_union_of_all_objects() {
    let texts = |catalog: &catalog::Catalog| -> Vec<String> {
        catalog
            .service_cidrs()
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    let mut catalog = synced(&[], &[]);
    catalog.apply(Event::Apply(ranges(
        "kubernetes",
        &["10.96.0.0/16", "fd00::/112"],
    )));
    catalog.apply(Event::Apply(ranges("more", &["10.97.0.0/16", "10.98.0.0"])));
    assert!(catalog.take_dirty().service_cidrs);
    assert_eq!(
        texts(&catalog),
        ["10.96.0.0/16", "10.97.0.0/16", "fd00::/112"]
    );
    let rejections: Vec<String> = catalog.rejections().map(ToString::to_string).collect();
    let expected = "ServiceCIDR more: spec.cidrs[1]: \"10.98.0.0\" is not a CIDR; unused addresses in it are not dropped";
    assert_eq!(rejections, [expected]);

    catalog.apply(Event::Apply(ranges("again", &["10.97.0.0/16"])));
    assert!(!catalog.take_dirty().service_cidrs, "the union is the same");
    list(&mut catalog, &[ranges("kubernetes", &["10.96.0.0/16"])]);
    assert!(catalog.take_dirty().service_cidrs);
    assert_eq!(texts(&catalog), ["10.96.0.0/16"]);
}
