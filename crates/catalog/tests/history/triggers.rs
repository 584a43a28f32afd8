//! The start of network programming latency.

use std::time::{Duration, SystemTime};

use catalog::object::{EndpointSlice, Node, Object, ServiceCidr};
use catalog::{Catalog, Event, Trigger};
use dataplane::ServiceKey;

use crate::world::{list, service, slice, synced, triggered};

fn at(second: u64) -> Trigger {
    Trigger::At(SystemTime::UNIX_EPOCH + Duration::from_secs(second))
}

fn trigger(catalog: &mut Catalog) -> Trigger {
    catalog.take_dirty().services[&ServiceKey::new("shop", "a")]
}

#[test]
fn a_change_of_endpoints_is_measured_from_its_slice_and_the_oldest_counts() {
    let mut catalog = synced(&[service("a")], &[]);
    catalog.apply(Event::Apply(triggered(slice("a-1", "a", &[1]), 30)));
    catalog.apply(Event::Apply(triggered(slice("a-2", "a", &[2]), 20)));
    catalog.apply(Event::Apply(triggered(slice("a-3", "a", &[3]), 40)));
    assert_eq!(trigger(&mut catalog), at(20));

    catalog.apply(Event::Apply(triggered(slice("a-1", "a", &[4]), 50)));
    assert_eq!(
        trigger(&mut catalog),
        at(50),
        "what was taken no longer counts"
    );
}

#[test]
fn a_time_that_was_there_before_tells_nothing_of_a_new_change() {
    let mut catalog = synced(&[service("a")], &[triggered(slice("a-1", "a", &[1]), 10)]);
    catalog.apply(Event::Apply(triggered(slice("a-1", "a", &[2]), 10)));
    assert_eq!(trigger(&mut catalog), Trigger::Untimed);
    catalog.apply(Event::<EndpointSlice>::Delete(slice("a-1", "a", &[]).key()));
    assert_eq!(trigger(&mut catalog), Trigger::Untimed);
}

#[test]
fn a_new_time_on_the_same_content_is_no_change() {
    let mut catalog = synced(&[service("a")], &[triggered(slice("a-1", "a", &[1]), 10)]);
    catalog.apply(Event::Apply(triggered(slice("a-1", "a", &[1]), 20)));
    assert!(catalog.dirty().is_empty(), "{:?}", catalog.dirty());
}

#[test]
fn a_service_that_changes_by_itself_is_untimed() {
    let mut catalog = synced(&[], &[triggered(slice("a-1", "a", &[1]), 10)]);
    catalog.apply(Event::Apply(service("a")));
    assert_eq!(trigger(&mut catalog), Trigger::Untimed);
}

/// T64: after a restart the histogram held the ages of old slices (kubernetes#82378).
#[test]
fn t64_slices_that_were_there_before_the_start_are_not_measured() {
    let mut catalog = Catalog::new("node-1");
    list(&mut catalog, &[service("a")]);
    list(&mut catalog, &[triggered(slice("a-1", "a", &[1]), 10)]);
    // The lists of Nodes and ServiceCIDRs arrive late, and nothing can be programmed before them.
    catalog.apply(Event::Apply(triggered(slice("a-1", "a", &[2]), 20)));
    list::<Node>(&mut catalog, &[]);
    list::<ServiceCidr>(&mut catalog, &[]);
    catalog.apply(Event::Apply(triggered(slice("a-1", "a", &[3]), 30)));
    assert_eq!(
        trigger(&mut catalog),
        Trigger::Bootstrap,
        "all are programmed in the first round"
    );

    catalog.apply(Event::Apply(triggered(slice("a-1", "a", &[4]), 40)));
    assert_eq!(trigger(&mut catalog), at(40));
}

#[test]
fn a_change_that_arrives_with_a_later_list_is_measured() {
    let mut catalog = synced(&[service("a")], &[triggered(slice("a-1", "a", &[1]), 10)]);
    list(&mut catalog, &[triggered(slice("a-1", "a", &[2]), 20)]);
    assert_eq!(trigger(&mut catalog), at(20));
}
