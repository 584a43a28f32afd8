//! How a change is divided into transactions. Failure story T71, kubernetes#135639: a node that
//! starts in a large cluster holds the kernel's lock on all rules for minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use backend::{Backend, Rendered};
use backend_nftables::{Change, Nftables};
use dataplane::{Dataplane, Family, ServiceRules};
use netlink::nf_tables::{Bytes, Operation, Set};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

/// Enough for several transactions.
const SERVICES: u16 = 2_500;
/// What the kernel commits in some 20 ms; other processes may have to wait for 50 ms.
const MOST: usize = 10_000;
/// The bytes of an IPv4 address, a protocol and a port, in whole registers.
const FRONTEND: usize = 12;

/// A Service with five endpoints, different ones in each `generation`.
fn service(number: u16, generation: u8) -> Arc<ServiceRules> {
    let [high, low] = number.to_be_bytes();
    let mut endpoints = mk_endpoints().tcp("");
    for endpoint in 0..5 {
        let subnet = 10 * generation + endpoint;
        endpoints = endpoints.ready(&format!("10.{subnet}.{high}.{low}:8080"), "node-2");
    }
    let service = mk_service(&format!("another/service-{number}"));
    let service = service
        .cluster_ip(&format!("10.96.{high}.{low}"))
        .port("", 80);
    let (node, config) = (mk_node(1).build(), mk_config().build());
    dataplane::compile(&service.build(), &endpoints.build(), &node, &config).into()
}

fn cluster(generation: u8) -> Dataplane {
    let mut dataplane = Dataplane::new(mk_node(1).build(), mk_config().build());
    for number in 0..SERVICES {
        dataplane.set(service(number, generation));
    }
    dataplane
}

/// The changes from an empty kernel to a cluster, and from that to one in which every Service
/// differs.
static CHANGES: LazyLock<[Change; 2]> = LazyLock::new(|| {
    let backend = Nftables::detached(Family::Ipv4);
    let from = Rendered::default();
    let dataplane = cluster(0);
    let rules = backend.render(&dataplane, &from);
    let cold = backend.diff(&from.rules, &rules);
    let from = Rendered { dataplane, rules };
    let desired = backend.render(&cluster(1), &from);
    [cold, backend.diff(&from.rules, &desired)]
});

/// The set of an operation on elements, and their keys.
fn elements(operation: &Operation) -> Option<(&Set, Vec<&Bytes>)> {
    match operation {
        Operation::AddElements { set, elements } => {
            Some((set, elements.iter().map(|(key, _)| key).collect()))
        }
        Operation::DeleteElements { set, keys } => Some((set, keys.iter().collect())),
        _ => None,
    }
}

/// Each operation on elements is at least one message, and a message costs the kernel two lookups.
#[test]
fn t71_a_set_is_written_to_once_in_a_transaction_after_what_goes_is_removed() {
    for change in &*CHANGES {
        for transaction in change.transactions() {
            let operations = transaction.operations.iter();
            let written = operations.filter_map(|operation| {
                let (set, _) = elements(operation)?;
                let adds = matches!(operation, Operation::AddElements { .. });
                Some((adds, Arc::clone(&set.name)))
            });
            let written: Vec<_> = written.collect();
            let once: BTreeSet<_> = written.iter().cloned().collect();
            assert_eq!(written.len(), once.len(), "{written:?}");
            assert!(written.is_sorted_by_key(|(adds, _)| *adds), "{written:?}");
        }
    }
}

#[test]
fn t71_transactions_are_bounded_and_none_has_a_part_of_a_frontend() {
    for change in &*CHANGES {
        let mut transaction_of: BTreeMap<&[u8], usize> = BTreeMap::new();
        let transactions = change.transactions();
        assert!(transactions.len() > 1, "too few Services to tell");
        for (nth, transaction) in transactions.iter().enumerate() {
            let count = transaction.elements();
            assert!(count <= MOST, "{count} elements in one transaction");
            for (set, keys) in transaction.operations.iter().filter_map(elements) {
                if !["services", "endpoints"].contains(&&*set.name) {
                    continue;
                }
                for key in keys {
                    let frontend = &key.as_slice()[..FRONTEND];
                    let whole = *transaction_of.entry(frontend).or_insert(nth);
                    assert_eq!(whole, nth, "half of {frontend:?} is in another one");
                }
            }
        }
        assert_eq!(transaction_of.len(), usize::from(SERVICES));
    }
}

/// If the kernel refuses a change, the cause is searched among the Services of that change.
#[test]
fn a_change_is_about_the_services_whose_elements_it_has() {
    let backend = Nftables::detached(Family::Ipv4);
    let after = cluster(1);
    for change in &*CHANGES {
        let suspects = backend.suspects(change, &after);
        assert_eq!(suspects.len(), usize::from(SERVICES));
    }
    let from = Rendered {
        rules: backend.render(&after, &Rendered::default()),
        dataplane: after.clone(),
    };
    let mut desired = after;
    desired.set(service(7, 2));
    let rules = backend.render(&desired, &from);
    let suspects = backend.suspects(&backend.diff(&from.rules, &rules), &desired);
    let names: Vec<String> = suspects.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["another/service-7"]);
}

/// Taking source ranges away only removes elements.
#[test]
fn a_service_that_only_loses_elements_is_one_that_the_change_is_about() {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let endpoints = mk_endpoints().tcp("").ready("10.0.2.7:8080", "node-2");
    let endpoints = endpoints.build();
    let open = mk_service("shop/web").cluster_ip("10.96.0.10");
    let open = open.load_balancer_ip("192.0.2.7").port("", 80);
    let [restricted, open] = [open.clone().source_range("198.51.100.0/24"), open].map(|service| {
        let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
        let rules = dataplane::compile(&service.build(), &endpoints, &node, &config);
        dataplane.set(rules.into());
        dataplane
    });
    let backend = Nftables::detached(Family::Ipv4);
    let from = Rendered {
        rules: backend.render(&restricted, &Rendered::default()),
        dataplane: restricted,
    };
    let change = backend.diff(&from.rules, &backend.render(&open, &from));
    let suspects = backend.suspects(&change, &open);
    let names: Vec<String> = suspects.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["shop/web"], "{change}");
    assert!(!change.to_string().contains("add element"), "{change}");
}
