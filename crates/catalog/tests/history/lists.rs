//! Lists: what is removed at their end, what stays meanwhile, and when the catalog is synced.

use catalog::object::{EndpointSlice, Node, Service, ServiceCidr};
use catalog::{Catalog, Event};
use dataplane::ObjectKind;

use crate::world::{list, pods, served, service, slice, synced, taken};
use catalog::object::Object;

#[test]
fn nothing_counts_as_known_before_every_kind_was_listed() {
    let mut catalog = Catalog::new("node-1");
    let missing = |catalog: &Catalog| catalog.missing().collect::<Vec<_>>();
    let all = [
        ObjectKind::Service,
        ObjectKind::EndpointSlice,
        ObjectKind::Node,
        ObjectKind::ServiceCidr,
    ];
    assert_eq!(missing(&catalog), all);
    catalog.apply(Event::<Service>::Init);
    catalog.apply(Event::InitApply(service("a")));
    assert_eq!(
        missing(&catalog),
        all,
        "a list that has begun has not ended"
    );
    catalog.apply(Event::<Service>::InitDone);
    list::<EndpointSlice>(&mut catalog, &[]);
    list::<Node>(&mut catalog, &[]);
    assert_eq!(missing(&catalog), [ObjectKind::ServiceCidr]);
    assert!(!catalog.synced());
    list::<ServiceCidr>(&mut catalog, &[]);
    assert!(catalog.synced());

    catalog.apply(Event::<Service>::Init);
    assert!(
        catalog.synced(),
        "what was known stays known while it is listed again"
    );
}

#[test]
fn the_end_of_a_list_that_never_began_says_nothing() {
    let mut catalog = Catalog::new("node-1");
    catalog.apply(Event::Apply(service("a")));
    catalog.apply(Event::<Service>::InitDone);
    assert_eq!(catalog.missing().next(), Some(ObjectKind::Service));
    assert_eq!(served(&catalog), ["a"]);

    let mut catalog = synced(&[service("a")], &[]);
    catalog.apply(Event::<Service>::InitDone);
    assert_eq!(served(&catalog), ["a"]);
}

#[test]
fn a_list_removes_exactly_what_it_does_not_mention() {
    let slices = [
        slice("a-1", "a", &[1]),
        slice("a-2", "a", &[2]),
        slice("b-1", "b", &[3]),
    ];
    let mut catalog = synced(&[service("a"), service("b"), service("c")], &slices);

    list(&mut catalog, &[service("a"), service("c")]);
    assert_eq!(served(&catalog), ["a", "c"]);
    assert_eq!(taken(&mut catalog), ["b"]);

    list(
        &mut catalog,
        &[slice("a-2", "a", &[2]), slice("b-1", "b", &[3])],
    );
    assert_eq!(pods(&catalog, "a"), ["2"]);
    assert_eq!(taken(&mut catalog), ["a"]);
}

#[test]
fn until_the_list_ends_everything_stays_and_what_it_mentions_is_current() {
    let mut catalog = synced(
        &[service("a")],
        &[slice("a-1", "a", &[1]), slice("a-2", "a", &[2])],
    );
    catalog.apply(Event::<EndpointSlice>::Init);
    assert_eq!(pods(&catalog, "a"), ["1", "2"]);
    catalog.apply(Event::InitApply(slice("a-1", "a", &[5])));
    assert_eq!(pods(&catalog, "a"), ["2", "5"]);
    catalog.apply(Event::<EndpointSlice>::InitDone);
    assert_eq!(pods(&catalog, "a"), ["5"]);
}

#[test]
fn changes_within_a_list_are_taken() {
    let mut catalog = synced(&[service("a"), service("b")], &[]);
    catalog.apply(Event::<Service>::Init);
    catalog.apply(Event::InitApply(service("a")));
    catalog.apply(Event::InitApply(service("b")));
    catalog.apply(Event::Apply(service("new")));
    catalog.apply(Event::<Service>::Delete(service("a").key()));
    assert_eq!(served(&catalog), ["b", "new"]);
    catalog.apply(Event::<Service>::InitDone);
    assert_eq!(served(&catalog), ["b", "new"]);
}

#[test]
fn a_list_that_was_cut_off_is_forgotten() {
    let mut catalog = synced(&[service("a"), service("b")], &[]);
    catalog.apply(Event::<Service>::Init);
    catalog.apply(Event::InitApply(service("a")));
    list(&mut catalog, &[service("b")]);
    assert_eq!(served(&catalog), ["b"]);

    let mut catalog = Catalog::new("node-1");
    catalog.apply(Event::<Service>::Init);
    catalog.apply(Event::InitApply(service("a")));
    catalog.apply(Event::<Service>::Init);
    assert_eq!(catalog.missing().next(), Some(ObjectKind::Service));
    catalog.apply(Event::<Service>::InitDone);
    assert_eq!(
        served(&catalog),
        [""; 0],
        "the second list did not mention it"
    );
}

#[test]
fn the_same_list_again_changes_nothing() {
    let services = [service("a"), service("b")];
    let slices = [slice("a-1", "a", &[1, 2]), slice("b-1", "b", &[3])];
    let mut catalog = synced(&services, &slices);
    list(&mut catalog, &services);
    list(&mut catalog, &slices);
    assert!(catalog.dirty().is_empty(), "{:?}", catalog.dirty());
}

#[test]
fn what_the_compiler_would_not_see_is_no_change() {
    let mut catalog = synced(&[service("a")], &[slice("a-1", "a", &[1, 2])]);
    let mut same = service("a");
    same.metadata.resource_version = Some("77".to_owned());
    same.metadata
        .labels
        .insert("app".to_owned(), "x".to_owned());
    catalog.apply(Event::Apply(same));
    catalog.apply(Event::Apply(slice("a-1", "a", &[2, 1])));
    catalog.apply(Event::Apply(slice("a-2", "a", &[2])));
    catalog.apply(Event::Apply(slice("other-1", "other", &[9])));
    catalog.apply(Event::<Service>::Delete(service("never-was").key()));
    assert!(catalog.dirty().is_empty(), "{:?}", catalog.dirty());
}

#[test]
fn endpoints_that_came_before_their_service_are_there_when_it_comes() {
    let mut catalog = synced(&[], &[slice("a-1", "a", &[1])]);
    assert_eq!(taken(&mut catalog), [""; 0]);
    catalog.apply(Event::Apply(service("a")));
    assert_eq!(taken(&mut catalog), ["a"]);
    assert_eq!(pods(&catalog, "a"), ["1"]);
}

#[test]
fn a_slice_that_changes_its_service_changes_both() {
    let mut catalog = synced(&[service("a"), service("b")], &[slice("x", "a", &[1])]);
    catalog.apply(Event::Apply(slice("x", "b", &[1])));
    assert_eq!(taken(&mut catalog), ["a", "b"]);
    assert_eq!(pods(&catalog, "a"), [""; 0]);
    assert_eq!(pods(&catalog, "b"), ["1"]);
}

#[test]
fn a_slice_that_changes_its_port_alone_is_a_change() {
    let mut catalog = synced(&[service("a")], &[slice("a-1", "a", &[1])]);
    let mut moved = slice("a-1", "a", &[1]);
    moved.ports[0].port = 9090.into();
    catalog.apply(Event::Apply(moved));
    assert_eq!(taken(&mut catalog), ["a"]);
}

/// T414: each address of an event was looked for in all slices of the Service. A slice whose endpoints
/// another one has, too, changes nothing; to find that out takes too long beside very many.
#[test]
fn t414_an_event_of_a_slice_looks_into_others_only_as_long_as_that_takes_little() {
    let pods: Vec<u8> = (1..=100).collect();
    for (others, expected) in [(650, vec![]), (660, vec!["a"])] {
        let twins = ["a-1", "a-2"].map(|name| slice(name, "a", &pods));
        let others = (0..others).map(|n| slice(&format!("b-{n:03}"), "a", &[200]));
        let slices: Vec<EndpointSlice> = twins.into_iter().chain(others).collect();
        let mut catalog = synced(&[service("a")], &slices);
        catalog.apply(Event::<EndpointSlice>::Delete(slices[0].key()));
        assert_eq!(taken(&mut catalog), expected);
        // Few addresses are always compared.
        catalog.apply(Event::Apply(slice("a-1", "a", &[1])));
        assert_eq!(taken(&mut catalog), Vec::<String>::new());
    }
}
