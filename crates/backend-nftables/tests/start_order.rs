//! The order of writing. Failure story T55, kubernetes#133773: on a new node of a large cluster, no
//! pod can reach the API server or resolve a name until all of its thousands of Services are
//! programmed.

use std::sync::Arc;

use backend::{Backend, Rendered};
use backend_nftables::{Nftables, Table};
use dataplane::{Dataplane, Family, ServiceRules};
use testkit::{mk_endpoints, mk_node, mk_service};

/// Enough for several transactions.
const OTHERS: u16 = 4_000;

/// A Service with a cluster IP and two endpoints, one of them on the node.
fn compile(name: &str, address: &str, first: bool) -> Arc<ServiceRules> {
    let service = mk_service(name).cluster_ip(address).port("", 443);
    let service = if first { service.first() } else { service };
    let endpoints = mk_endpoints()
        .tcp("")
        .ready("10.0.1.5:6443", "node-1")
        .ready("10.0.2.7:6443", "node-2")
        .build();
    let (node, config) = (mk_node(1).build(), testkit::mk_config().build());
    dataplane::compile(&service.build(), &endpoints, &node, &config).into()
}

fn cluster() -> Dataplane {
    let mut dataplane = Dataplane::new(mk_node(1).build(), testkit::mk_config().build());
    // Neither the lowest address nor the first name.
    dataplane.set(compile("default/kubernetes", "10.96.200.1", true));
    dataplane.set(compile("kube-system/kube-dns", "10.96.200.10", true));
    for number in 0..OTHERS {
        let [high, low] = number.to_be_bytes();
        let name = format!("another/service-{number}");
        dataplane.set(compile(&name, &format!("10.96.{high}.{low}"), false));
    }
    dataplane
}

/// The transactions from `observed` to the table of `cluster`.
fn transactions(observed: &Table) -> Vec<String> {
    let backend = Nftables::detached(Family::Ipv4);
    let desired = backend.render(&cluster(), &Rendered::default());
    let change = backend.diff(observed, &desired);
    change
        .transactions()
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn t55_the_first_transaction_is_the_api_server_and_dns() {
    let all = transactions(&Table::default());
    let first = &all[0];
    for desired in [
        "add table ip signpost",
        "add chain ip signpost nat-prerouting",
        "add rule ip signpost masquerading",
        "service-chains { 0x03000002 : goto cluster-2 }",
        "services { 10.96.200.1 . tcp . 443 : 2 . 0x03000002 }",
        "services { 10.96.200.10 . tcp . 443 : 2 . 0x03000002 }",
        "endpoints { 10.96.200.1 . tcp . 443 . 0x00000001 : 10.0.2.7 . 6443 }",
        "cluster-ips { 10.96.200.10 }",
        "hairpins { 10.0.1.5 . 10.0.1.5 . tcp . 6443 }",
    ] {
        assert!(first.contains(desired), "no {desired:?} in:\n{first}");
    }
    assert!(!first.contains("10.96.0."), "others share it:\n{first}");
    assert!(all.len() > 2, "the others are one transaction");
}

/// Another program has removed the elements but not the table.
#[test]
fn t55_a_repair_begins_with_the_api_server_and_dns() {
    let backend = Nftables::detached(Family::Ipv4);
    let without_services = Dataplane::new(mk_node(1).build(), testkit::mk_config().build());
    let emptied = backend.render(&without_services, &Rendered::default());
    let first = &transactions(&emptied)[0];
    assert!(
        first.contains("services { 10.96.200.1 . tcp . 443"),
        "{first}"
    );
    assert!(!first.contains("10.96.0."), "others share it:\n{first}");
}

#[test]
fn a_table_is_the_same_whatever_of_it_was_written_first() {
    let backend = Nftables::detached(Family::Ipv4);
    let mut dataplane = Dataplane::new(mk_node(1).build(), testkit::mk_config().build());
    dataplane.set(compile("kube-system/kube-dns", "10.96.200.10", false));
    let before = backend.render(&dataplane, &Rendered::default());
    dataplane.set(compile("kube-system/kube-dns", "10.96.200.10", true));
    assert_eq!(before, backend.render(&dataplane, &Rendered::default()));
}
