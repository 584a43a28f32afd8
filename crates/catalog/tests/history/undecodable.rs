//! Objects that cannot be decoded: they are reported, and their last valid version is served.

use std::sync::Arc;

use catalog::object::{EndpointSlice, Node, Object, Service};
use catalog::{Catalog, Event, ObjectKey};

use crate::world::{list, pods, served, service, slice, synced};

fn undecodable<T: Object>(key: ObjectKey) -> Event<T> {
    Event::Undecodable {
        key,
        field: "spec.ports".to_owned(),
        message: "invalid type: map, expected a sequence".to_owned(),
    }
}

fn rejections(catalog: &Catalog) -> Vec<String> {
    catalog.rejections().map(ToString::to_string).collect()
}

const NAMED: &str = "Service shop/a: spec.ports: invalid type: map, expected a sequence";

#[test]
fn the_last_good_version_stays_and_the_object_is_named() {
    let mut catalog = synced(&[service("a")], &[slice("a-1", "a", &[1])]);
    catalog.apply(undecodable::<Service>(service("a").key()));
    assert_eq!(served(&catalog), ["a"]);
    assert_eq!(rejections(&catalog), [NAMED]);
    let dirty = catalog.take_dirty();
    assert!(dirty.rejections && dirty.services.is_empty());

    catalog.apply(undecodable::<Service>(service("a").key()));
    assert!(catalog.dirty().is_empty(), "nothing new was said");

    catalog.apply(Event::Apply(service("a")));
    assert_eq!(rejections(&catalog), [""; 0]);
    let dirty = catalog.take_dirty();
    assert!(dirty.rejections && dirty.services.is_empty());
}

#[test]
fn a_list_with_an_object_that_cannot_be_decoded_does_not_remove_it() {
    let mut catalog = synced(&[service("a"), service("b")], &[]);
    catalog.apply(Event::<Service>::Init);
    catalog.apply(undecodable::<Service>(service("a").key()));
    catalog.apply(Event::<Service>::InitDone);
    assert_eq!(served(&catalog), ["a"]);
    assert_eq!(rejections(&catalog), [NAMED]);

    list::<Service>(&mut catalog, &[]);
    assert_eq!(served(&catalog), [""; 0]);
    assert_eq!(rejections(&catalog), [""; 0]);
}

#[test]
fn an_object_that_never_could_be_decoded_is_named_until_it_is_gone() {
    let mut catalog = synced(&[service("a")], &[]);
    let key = ObjectKey::namespaced("shop", "a-1");
    catalog.apply(undecodable::<EndpointSlice>(key.clone()));
    assert_eq!(rejections(&catalog).len(), 1);
    assert_eq!(pods(&catalog, "a"), [""; 0]);
    catalog.take_dirty();
    catalog.apply(Event::<EndpointSlice>::Delete(key));
    assert_eq!(rejections(&catalog), [""; 0]);
    assert!(catalog.take_dirty().rejections);
}

#[test]
fn what_was_wrong_with_the_last_good_version_is_still_reported() {
    let mut bad_port = service("a");
    bad_port.spec.external_ips = vec!["nonsense".into()];
    let mut catalog = synced(&[bad_port], &[]);
    catalog.apply(undecodable::<Service>(service("a").key()));
    let expected =
        "Service shop/a: spec.externalIPs[0]: \"nonsense\" is not an IP address; it is not served";
    assert_eq!(rejections(&catalog), [expected, NAMED]);
}

#[test]
fn only_the_agents_own_node_is_named() {
    let mut catalog = synced(&[], &[]);
    catalog.apply(undecodable::<Node>(ObjectKey::cluster("node-2")));
    assert_eq!(rejections(&catalog), [""; 0]);
    catalog.apply(undecodable::<Node>(ObjectKey::cluster("node-1")));
    assert_eq!(rejections(&catalog).len(), 1);
    catalog.apply(Event::<Node>::Delete(ObjectKey::cluster("node-1")));
    assert_eq!(rejections(&catalog), [""; 0]);
    assert_eq!(catalog.node(), None);
}

/// T416: every change of any object's messages copied those of all objects.
#[test]
fn t416_messages_about_an_object_are_kept_once() {
    let mut catalog = synced(&[service("a"), service("b")], &[]);
    for name in ["a", "b"] {
        catalog.apply(undecodable::<Service>(service(name).key()));
    }
    let before: Vec<_> = catalog.faults().cloned().collect();
    catalog.apply(Event::Undecodable::<Service> {
        key: service("b").key(),
        field: "spec".to_owned(),
        message: "invalid type: string, expected a map".to_owned(),
    });
    let after: Vec<_> = catalog.faults().cloned().collect();
    let are_same: Vec<bool> = before
        .iter()
        .zip(&after)
        .map(|(a, b)| Arc::ptr_eq(a, b))
        .collect();
    assert_eq!(are_same, [true, false]);
    let kept: Vec<String> = before[1].rejections().map(ToString::to_string).collect();
    assert_eq!(kept, [NAMED.replace("shop/a", "shop/b")]);
}
