//! Queries by people: Services that are not served, and the Services of an endpoint.

use std::net::IpAddr;

use catalog::object::Service;
use catalog::{Catalog, Event, Unserved};
use dataplane::ServiceKey;
use serde_json::json;

use crate::world::{list, service, slice, synced};

fn headless(name: &str) -> Service {
    let object = json!({
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]},
    });
    serde_json::from_value(object).expect("the shape is right")
}

fn unserved(catalog: &Catalog, name: &str) -> Option<Unserved> {
    catalog.unserved(&ServiceKey::new("shop", name))
}

#[test]
fn a_service_that_is_not_served_says_why() {
    let mut catalog = synced(&[service("a"), headless("b")], &[]);
    assert_eq!(unserved(&catalog, "a"), None);
    assert_eq!(unserved(&catalog, "b"), Some(Unserved::Headless));

    let mut another = service("a");
    let label = "service.kubernetes.io/service-proxy-name";
    another.metadata.labels.insert(label.into(), "mesh".into());
    catalog.apply(Event::Apply(another));
    assert_eq!(unserved(&catalog, "a"), Some(Unserved::AnotherProxy));
    catalog.apply(Event::Apply(service("a")));
    assert_eq!(unserved(&catalog, "a"), None);

    list(&mut catalog, &[service("a")]);
    assert_eq!(unserved(&catalog, "b"), None, "it is gone");
}

#[test]
fn an_endpoint_is_that_of_every_service_that_lists_it() {
    let slices = [
        slice("a-1", "a", &[5, 6]),
        slice("b-1", "b", &[5]),
        slice("c-1", "c", &[7]),
    ];
    let catalog = synced(&[service("a"), service("b"), service("c")], &slices);
    let address: IpAddr = [10, 0, 1, 5].into();
    let behind: Vec<String> = catalog
        .services_behind(address)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(behind, ["shop/a", "shop/b"]);
}
