//! Explanations with a kernel that was not read, cannot be read, or differs from the desired state.

use std::collections::BTreeMap;

use dataplane::Family;
use netlink::nf_tables::Operation;
use testkit::{mk_endpoints, mk_service};

use super::{World, cart, compare_with_golden, observed, till, without};
use crate::explain::Kernel;
use crate::explain::answer::PieceState;

#[test]
fn without_a_kernel_it_is_reported_what_would_be_there() {
    let mut world = World::new(&[till(&["10.0.1.5:53"])]);
    world.kernel = Kernel::NotAsked;
    let explanation = world.ask("shop/till").expect("it is known");
    let elements = &explanation.services[0].frontends[0].elements;
    assert!(elements.iter().all(|e| e.state == PieceState::Unverified));
    compare_with_golden("without-kernel", &explanation.to_string());
}

#[test]
fn where_the_kernel_differs_is_marked() {
    let mut world = World::new(&[till(&["10.0.1.5:53", "10.0.1.6:53"])]);
    world.repaired_drift(|table| without(table, "endpoints { 10.96.0.11 . udp . 53 . 0x00000001"));
    compare_with_golden("missing", &world.answer("shop/till"));

    world.repaired_drift(|_| Operation::FlushChain("lb-2".into()));
    let text = world.answer("shop/till");
    assert!(
        text.contains("! differs: chain lb-2\n      in the kernel it is empty\n"),
        "{text}"
    );

    world.repaired_drift(|_| Operation::FlushChain("dispatch".into()));
    let text = world.answer("shop/till");
    assert!(text.contains("  ! differs: chain dispatch\n"), "{text}");

    world.repaired_drift(|_| Operation::DeleteTable);
    let text = world.answer("shop/till");
    assert!(
        text.contains("IPv4: ! the table is missing in the kernel\n"),
        "{text}"
    );
    assert!(
        text.contains("! missing in the kernel: services {"),
        "{text}"
    );
}

/// All Services with the same number of endpoints share it: it is reported once, for the table.
#[test]
fn a_number_that_leads_nowhere_is_reported_of_the_table() {
    let mut world = World::new(&[cart(), till(&["10.0.1.5:53"])]);
    world.repaired_drift(|table| without(table, "service-chains { 0x03000001"));
    let text = world.answer("shop/till");
    let line = "! missing in the kernel: service-chains { 0x03000001 : goto cluster-1 }\n";
    let (of_service, of_table) = text.split_once("IPv4: ").expect("both are printed");
    assert!(of_table.contains(line), "{text}");
    assert!(!of_service.contains("service-chains"), "{text}");
}

#[test]
fn what_leads_elsewhere_and_leftovers_are_marked() {
    let mut world = World::new(&[till(&["10.0.1.5:53"])]);
    let other = World::new(&[till(&["10.0.1.5:53", "10.0.1.9:53"])]);
    world.kernel = observed(&other.observed);
    let text = world.answer("shop/till");
    for line in [
        "! differs: services { 10.96.0.11 . udp . 53 : 1 . 0x03000001 } # cluster-1",
        "in the kernel: services { 10.96.0.11 . udp . 53 : 2 . 0x03000002 } # cluster-2",
        "! leftover: endpoints { 10.96.0.11 . udp . 53 . 0x00000001 : 10.0.1.9 . 53 }",
    ] {
        assert!(text.contains(line), "no {line:?} in:\n{text}");
    }
}

#[test]
fn an_address_among_the_cluster_ips_that_no_service_has_is_marked() {
    let mut world = World::new(&[cart(), till(&["10.0.1.5:53"])]);
    let text = world.answer("shop/till");
    assert!(!text.contains("! leftover"), "{text}");

    let surplus = mk_service("shop/gone")
        .cluster_ip("10.96.0.99")
        .port("", 80);
    let surplus = (surplus.build(), mk_endpoints().build());
    let other = World::new(&[cart(), till(&["10.0.1.5:53"]), surplus]);
    world.kernel = observed(&other.observed);
    let text = world.answer("shop/till");
    let line = "! leftover: cluster-ips { 10.96.0.99 }\n";
    assert!(text.contains(line), "no {line:?} in:\n{text}");
}

#[test]
fn a_kernel_that_cannot_be_read_is_reported_to_be_unread() {
    let mut world = World::new(&[till(&["10.0.1.5:53"])]);
    let refused = Err("the kernel refused: permission denied".to_owned());
    world.kernel = Kernel::Observed(BTreeMap::from([(Family::Ipv4, refused)]));
    let text = world.answer("shop/till");
    assert!(
        text.contains("IPv4: ! the table could not be read: the kernel refused"),
        "{text}"
    );
    assert!(!text.contains("missing"), "{text}");
}

#[test]
fn what_is_left_of_a_service_that_is_gone_is_not_wanted() {
    let mut world = World::new(&[cart()]);
    world.kernel = observed(&World::new(&[till(&["10.0.1.5:53"])]).observed);
    let text = world.answer("10.96.0.11:53/udp");
    let line = "! leftover: services { 10.96.0.11 . udp . 53 : 1 . 0x03000001 } # cluster-1";
    assert!(text.contains(line), "{text}");
}

#[test]
fn machines_are_reported_the_same() {
    let mut world = World::new(&[till(&["10.0.1.5:53"])]);
    world.repaired_drift(|table| without(table, "endpoints {"));
    let explanation = world.ask("shop/till").expect("it is known");
    let json = serde_json::to_value(&explanation).expect("it can be written");
    let service = &json["services"][0];
    assert_eq!(service["type"], "ClusterIP");
    assert_eq!(service["ports"][0]["endpoints"][0]["usage"], "used");
    let elements = &service["frontends"][0]["elements"];
    assert_eq!(elements[0]["state"], "present");
    assert_eq!(elements[1]["state"], "missing");
}
