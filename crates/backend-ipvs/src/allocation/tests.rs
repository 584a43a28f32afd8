use std::cell::Cell;
use std::sync::Arc;

use backend::{Backend, Rendered};
use dataplane::{
    Dataplane, Family, FrontendKey, Protocol, Scheduler, ServiceKey, ServicePortName, compile,
};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service, port};

use super::*;
use crate::kernel::Ipvs;
use crate::plan::Scope;

const BACKEND: fn() -> Ipvs = || Ipvs::detached(Family::Ipv4);

fn owner(namespace: &str, number: usize) -> Owner {
    Owner {
        port: ServicePortName {
            service: ServiceKey::new(namespace, "many"),
            port: number.to_string().into(),
            protocol: Protocol::Tcp,
        },
        scope: Scope::Cluster,
        variant: 0,
    }
}

/// An empty kernel in which so few virtual servers may exist.
fn at_most(most: usize) -> Rendered<Rules> {
    let allocation = Allocation {
        most,
        ..Allocation::default()
    };
    let rules = Rules {
        allocation,
        // Nothing at all would be the begin of the mode, with the usual room.
        delivery: netlink::route::Presence::Whole,
        ..Rules::default()
    };
    Rendered {
        dataplane: Dataplane::default(),
        rules,
    }
}

/// A dataplane with one port for each of these Services. The last byte of each cluster IP is the
/// number given.
fn services(names: &[(&str, u8)], scheduler: Scheduler) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for (name, number) in names {
        let service = mk_service(name).cluster_ip(&format!("10.96.0.{number}"));
        let service = service.port("http", 80).scheduler(scheduler).build();
        let endpoints = mk_endpoints().tcp("http").ready("10.0.2.5:80", "node-2");
        dataplane.set(compile(&service, &endpoints.build(), &node, &config).into());
    }
    dataplane
}

fn is_served(rules: &Rules, number: u8) -> bool {
    let frontend = FrontendKey::Address {
        address: [10, 96, 0, number].into(),
        protocol: Protocol::Tcp,
        port: port(80),
    };
    !rules.targets(&frontend).is_empty()
}

fn unserved(rules: &Rules) -> Vec<String> {
    let unserved = BACKEND().without_room(rules).into_iter();
    unserved.map(|field| field.service.to_string()).collect()
}

fn next(desired: Dataplane, from: &Rendered<Rules>) -> Rendered<Rules> {
    Rendered {
        rules: BACKEND().render(&desired, from),
        dataplane: desired,
    }
}

/// Failure story T310: no tenant takes all virtual servers, and where none is left, a Service costs no
/// search through a million marks.
#[test]
fn t310_where_no_mark_is_left_none_is_searched_for() {
    let mut allocation = Allocation {
        most: 3,
        ..Allocation::default()
    };
    let searched = Cell::new(0);
    let mut ask = |owner: &Owner, claim| {
        let is_free = |_| {
            searched.set(searched.get() + 1);
            true
        };
        allocation.number(owner, claim, is_free)
    };
    let tenant = [0, 1, 2].map(|number| ask(&owner("tenant", number), Claim::New));
    assert_eq!(tenant, [Some(1), Some(2), None], "as many as it leaves");
    assert_eq!(ask(&owner("shop", 0), Claim::New), Some(3));
    assert_eq!(searched.take(), 3);
    assert_eq!(ask(&owner("late", 0), Claim::New), None);
    assert_eq!(searched.take(), 0);
    assert_eq!(MOST_OWNERS, 524_287, "as documented");
}

/// Failure story T310: a Service without a mark is named, and served once others leave one.
#[test]
fn t310_a_service_without_a_mark_is_named_until_one_is_left() {
    const ALL: [(&str, u8); 4] = [
        ("shop/web", 4),
        ("tenant/a", 1),
        ("tenant/b", 2),
        ("tenant/c", 3),
    ];
    let before = next(services(&ALL[1..], Scheduler::RoundRobin), &at_most(4));
    assert_eq!(unserved(&before.rules), ["tenant/c"]);
    assert!(!is_served(&before.rules, 3));
    let after = next(services(&ALL, Scheduler::RoundRobin), &before);
    assert!(is_served(&after.rules, 4), "of another namespace");
    assert_eq!(unserved(&after.rules), ["tenant/c"]);

    // Another scheduler means other virtual servers: those that have one have another one.
    let renewed = next(services(&ALL, Scheduler::SourceHash), &after);
    assert_eq!(unserved(&renewed.rules), ["tenant/c"]);

    let [web, _, b, c] = ALL;
    let left = next(services(&[web, b, c], Scheduler::RoundRobin), &after);
    assert_eq!(unserved(&left.rules), [""; 0]);
    assert!(is_served(&left.rules, 3));
}

/// Failure story T310: an agent that starts gives a Service without a mark none that is another's.
#[test]
fn t310_a_restart_lets_nobody_have_more_marks_than_before() {
    const ALL: [(&str, u8); 3] = [("tenant/a", 1), ("tenant/b", 2), ("tenant/c", 3)];
    let held = next(services(&ALL[1..], Scheduler::RoundRobin), &at_most(3));
    assert_eq!(unserved(&held.rules), [""; 0]);
    let mut read = Rendered {
        dataplane: Dataplane::default(),
        rules: held.rules.clone(),
    };
    read.rules.allocation = Allocation {
        most: 3,
        ..Allocation::after(2)
    };
    let restarted = next(services(&ALL, Scheduler::RoundRobin), &read);
    assert_eq!(unserved(&restarted.rules), ["tenant/a"]);
}
