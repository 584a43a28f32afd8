use std::cell::Cell;
use std::sync::Arc;

use backend::{Backend, Rendered};
use dataplane::{
    Dataplane, Family, FrontendKey, Mode, Protocol, Scheduler, ServiceKey, ServicePortName, compile,
};
use netlink::ipvs::Operation;
use nftables_model::{Contents, Elements};
use proptest::prelude::*;
use testkit::{cases, histories, mk_config, mk_endpoints, mk_node, mk_service, port};

use super::*;
use crate::diff::Step;
use crate::kernel::Ipvs;
use crate::missing_schedulers::MissingSchedulers;
use crate::plan::Scope;
use crate::render::{mark_key, render};
use crate::rules::Server;

impl Allocation {
    /// An allocation in which so many virtual servers may serve, with so many pages of tables.
    pub(crate) fn bounded([most, pages]: [usize; 2], last: u32) -> Allocation {
        Allocation {
            servers: Bound::new(most, most),
            tables: Bound::new(pages, pages),
            ..Allocation::after(last)
        }
    }

    /// Whether a virtual server of `namespace` could be replaced that has a table of `mh`.
    pub(crate) fn has_room_beside(&self, namespace: &str) -> bool {
        self.admits_beside(&namespace.into(), Pages(8))
    }

    /// The number that was given out last.
    pub(crate) fn last(&self) -> u32 {
        self.last
    }
}

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
    with_room([most, 1_000])
}

/// The same, with so many pages for their tables.
fn with_room(room: [usize; 2]) -> Rendered<Rules> {
    let rules = Rules {
        allocation: Allocation::bounded(room, 0),
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
    services_at("10.0.2.5:80", names, scheduler)
}

/// The same with this endpoint.
fn services_at(endpoint: &str, names: &[(&str, u8)], scheduler: Scheduler) -> Dataplane {
    let config = mk_config().mode(Mode::Ipvs).build();
    let node = mk_node(1).build();
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for (name, number) in names {
        let service = mk_service(name).cluster_ip(&format!("10.96.0.{number}"));
        let service = service.port("http", 80).scheduler(scheduler).build();
        let endpoints = mk_endpoints().tcp("http").ready(endpoint, "node-2");
        dataplane.set(compile(&service, &endpoints.build(), &node, &config).into());
    }
    dataplane
}

fn frontend(number: u8) -> FrontendKey {
    FrontendKey::Address {
        address: [10, 96, 0, number].into(),
        protocol: Protocol::Tcp,
        port: port(80),
    }
}

fn leaving_servers<const N: usize>(numbers: [u32; N]) -> LeavingServers {
    LeavingServers::of(numbers.map(|number| (number, Pages::default())))
}

fn is_served(rules: &Rules, number: u8) -> bool {
    !rules.targets(&frontend(number)).is_empty()
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
    let mut allocation = Allocation::bounded([3, 0], 0);
    let searched = Cell::new(0);
    let mut ask = |owner: &Owner| {
        let is_free = |_| {
            searched.set(searched.get() + 1);
            true
        };
        allocation.number(owner, is_free)
    };
    let tenant = [0, 1, 2].map(|number| ask(&owner("tenant", number)));
    assert_eq!(tenant, [Some(1), Some(2), None], "as many as it leaves");
    assert_eq!(ask(&owner("shop", 0)), Some(3));
    assert_eq!(searched.take(), 3);
    assert_eq!(ask(&owner("late", 0)), None);
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
    read.rules.allocation = Allocation::bounded([3, 0], 2);
    let restarted = next(services(&ALL, Scheduler::RoundRobin), &read);
    assert_eq!(unserved(&restarted.rules), ["tenant/a"]);
}

/// The kernel searches one of 256 lists of virtual servers for each new connection of any Service.
#[test]
fn t389_one_namespace_has_no_more_virtual_servers_than_a_search_may_cost() {
    let mut allocation = Allocation {
        servers: Bound::new(20, 3),
        ..Allocation::default()
    };
    let mut has = |namespace, number| {
        let owner = owner(namespace, number);
        allocation.number(&owner, |_| true).is_some()
    };
    let of_one: Vec<bool> = (0..5).map(|number| has("mmm", number)).collect();
    assert_eq!(of_one, [true, true, true, false, false]);
    assert!(has("shop", 0));
    assert_eq!(MOST_OWNERS_OF_A_NAMESPACE, 32_768, "as documented");
}

/// Failure story T369: a tenant that made and deleted Services went through all marks, and the
/// connections of virtual servers that were leaving ended when theirs were given out again.
#[test]
fn t369_the_mark_of_a_virtual_server_that_leaves_is_given_to_nobody() {
    let mut allocation = Allocation::default();
    allocation.set_leaving_servers(leaving_servers([1, 2, NUMBERS]));
    allocation.last = NUMBERS - 1;
    let mut ask = |number| allocation.number(&owner("shop", number), |_| true);
    assert_eq!([ask(0), ask(1)], [Some(3), Some(4)]);
}

/// Failure story T369: what leaves is bounded by itself. A rollout that replaced all ports of a namespace
/// found no room while the connections of the previous ones lasted.
#[test]
fn t369_a_namespace_near_its_bound_that_replaces_all_its_ports_has_all_new_ones_served() {
    const FIRST: [(&str, u8); 4] = [("shop/a", 1), ("shop/b", 2), ("shop/c", 3), ("shop/d", 4)];
    const SECOND: [(&str, u8); 4] = [("shop/e", 5), ("shop/f", 6), ("shop/g", 7), ("shop/h", 8)];
    const THIRD: [(&str, u8); 1] = [("shop/i", 9)];
    // As long as it lasts, no connection ends.
    let next = |names: &[(&str, u8)], from: &Rendered<Rules>| {
        let dataplane = services(names, Scheduler::RoundRobin);
        let missing = MissingSchedulers::default();
        let rules = render(Family::Ipv4, &dataplane, from, &missing);
        Rendered { dataplane, rules }
    };
    let first = next(&FIRST, &at_most(8));
    assert_eq!(unserved(&first.rules), [""; 0], "all that it may have");

    let at_once = next(&SECOND, &first);
    assert_eq!(unserved(&at_once.rules), [""; 0]);
    let mut one_by_one = first;
    for replaced in 1..=4 {
        let names = [&SECOND[..replaced], &FIRST[replaced..]].concat();
        one_by_one = next(&names, &one_by_one);
        assert_eq!(unserved(&one_by_one.rules), [""; 0]);
    }
    for mut second in [at_once, one_by_one] {
        assert!((5..=8).all(|number| is_served(&second.rules, number)));
        let third = next(&[&SECOND[1..], &THIRD].concat(), &second);
        assert_eq!(unserved(&third.rules), ["shop/i"], "as much again leaves");
        second
            .rules
            .allocation
            .set_leaving_servers(leaving_servers([1]));
        let third = next(&[&SECOND[1..], &THIRD].concat(), &second);
        assert_eq!(unserved(&third.rules), [""; 0]);
    }
}

/// Failure story T369: where endpoints of a hash change, another virtual server takes the place, and the
/// previous one leaves with its connections. A tenant whose endpoints changed again and again had as many
/// as there are marks.
#[test]
fn t369_a_hash_changes_where_it_is_once_too_many_virtual_servers_leave() {
    const ALL: [(&str, u8); 1] = [("tenant/web", 1)];
    let with = |endpoint: &str, from: &Rendered<Rules>| {
        let dataplane = services_at(endpoint, &ALL, Scheduler::Maglev);
        let missing = MissingSchedulers::default();
        let rules = render(Family::Ipv4, &dataplane, from, &missing);
        Rendered { dataplane, rules }
    };
    let mut held = with("10.0.2.5:80", &at_most(2));
    let mut marks = BTreeSet::new();
    for last in 6..20 {
        held = with(&format!("10.0.2.{last}:80"), &held);
        marks.extend(held.rules.marks(&frontend(1)));
        let targets = held.rules.targets(&frontend(1)).into_iter();
        let targets: Vec<_> = targets.map(|target| target.address.to_string()).collect();
        assert_eq!(targets, [format!("10.0.2.{last}")]);
    }
    assert_eq!(
        marks.len(),
        1,
        "the second of the two that a namespace may have here"
    );
    held.rules
        .allocation
        .set_leaving_servers(LeavingServers::default());
    let after = with("10.0.2.5:80", &held).rules;
    assert!(
        after.marks(&frontend(1)).is_disjoint(&marks),
        "there is room again"
    );
}

/// The schedulers of the virtual servers of these frontends.
fn schedulers<const N: usize>(rules: &Rules, frontends: [u8; N]) -> Vec<String> {
    let numbers = frontends
        .iter()
        .flat_map(|last| rules.numbers(&frontend(*last)));
    let servers = numbers.filter_map(|number| rules.servers.get(&number));
    servers
        .map(|held| held.server.scheduler.to_string())
        .collect()
}

/// Failure story T370: a tenant's virtual servers took gigabytes of the kernel's memory, for the tables of
/// their schedulers did not count.
#[test]
fn t370_a_port_without_room_for_its_table_is_served_by_the_nearest_scheduler_and_named() {
    const ALL: [(&str, u8); 3] = [("tenant/a", 1), ("tenant/b", 2), ("tenant/c", 3)];
    let read = |rules: &Rules, pages: usize| {
        let mut rules = rules.clone();
        rules.allocation = Allocation::bounded([100, pages], rules.allocation.last);
        Rendered {
            dataplane: Dataplane::default(),
            rules,
        }
    };
    for (pages, others) in [(9, "rr"), (20, "sh")] {
        let before = next(services(&ALL, Scheduler::Maglev), &with_room([100, pages]));
        let rules = &before.rules;
        assert_eq!(schedulers(rules, [1, 2, 3]), ["mh", others, others]);
        assert!((1..=3).all(|number| is_served(rules, number)));
        assert_eq!(unserved(rules), ["tenant/b", "tenant/c"]);
        let message = &BACKEND().without_room(rules)[0].message;
        let start = format!("{others} in the place of scheduler mh on this port");
        assert!(message.starts_with(&start), "{message}");

        // An agent that starts finds the same.
        let restarted = next(services(&ALL, Scheduler::Maglev), &read(rules, pages)).rules;
        assert_eq!(schedulers(&restarted, [1, 2, 3]), ["mh", others, others]);
        assert_eq!(unserved(&restarted), ["tenant/b", "tenant/c"]);

        // One that leaves makes room, at the latest when its connections have ended.
        let left = services(&ALL[1..], Scheduler::Maglev);
        let leaves = next(left.clone(), &before);
        let rules = next(left, &leaves).rules;
        assert_eq!(schedulers(&rules, [2, 3]), ["mh", others]);
        assert_eq!(unserved(&rules), ["tenant/c"]);
    }
}

/// Failure story T370: a Service that is served may ask for a scheduler with a table.
#[test]
fn t370_a_scheduler_without_room_for_its_table_replaces_none() {
    const ALL: [(&str, u8); 3] = [("tenant/a", 1), ("tenant/b", 2), ("tenant/c", 3)];
    let pages = [100, 9];
    let turns = next(services(&ALL, Scheduler::RoundRobin), &with_room(pages));
    assert_eq!(unserved(&turns.rules), [""; 0]);
    let maglev = next(services(&ALL, Scheduler::Maglev), &turns);
    assert_eq!(schedulers(&maglev.rules, [1, 2, 3]), ["mh", "rr", "rr"]);
    assert_eq!(
        maglev.rules.marks(&frontend(2)),
        turns.rules.marks(&frontend(2))
    );
    let locality = next(services(&ALL, Scheduler::LocalityLeastConnection), &maglev);
    let expected = ["lblc", "wlc", "wlc"];
    assert_eq!(schedulers(&locality.rules, [1, 2, 3]), expected);
    let turns = next(services(&ALL, Scheduler::RoundRobin), &locality);
    assert_eq!(unserved(&turns.rules), [""; 0]);
}

/// Failure story T379: a Service of a hash got the room that another one left in the same change, and was
/// changed where it is, with its endpoints in the order in which this node had seen them.
#[test]
fn t379_a_hash_gets_another_virtual_server_also_with_room_that_the_same_change_leaves() {
    let with = |first: &[(&str, u8)], second: &[(&str, u8)], scheduler| {
        let mut all = services(first, Scheduler::Maglev);
        let others = services_at("10.0.2.6:80", second, scheduler);
        for (_, service) in others.services().iter() {
            all.set(Arc::clone(service));
        }
        all
    };
    let [a, b] = [("tenant/a", 1), ("tenant/b", 2)];
    let before = next(with(&[b], &[], Scheduler::Maglev), &with_room([100, 9]));
    let before = next(with(&[b], &[a], Scheduler::Maglev), &before);
    assert_eq!(schedulers(&before.rules, [1, 2]), ["rr", "mh"]);
    let after = next(with(&[a], &[b], Scheduler::RoundRobin), &before);
    assert_eq!(schedulers(&after.rules, [1, 2]), ["mh", "rr"]);
    let [old, new] = [&before, &after].map(|held| held.rules.marks(&frontend(1)));
    assert!(old.is_disjoint(&new), "its order is that of the past");
    assert_eq!(unserved(&after.rules), [""; 0]);
}

/// Failure story T380: a Service that had found no room for any table waited for the largest, and got a
/// smaller one only when the agent was started again.
#[test]
fn t380_a_port_without_its_scheduler_gets_a_nearer_one_as_soon_as_there_is_room() {
    let [a, b] = [("tenant/a", 1), ("tenant/b", 2)];
    let all = services(&[a, b], Scheduler::Maglev);
    let before = next(all, &with_room([100, 9]));
    assert_eq!(schedulers(&before.rules, [1, 2]), ["mh", "rr"]);
    let mut locality = services(&[a], Scheduler::LocalityLeastConnection);
    for (_, service) in services(&[b], Scheduler::Maglev).services().iter() {
        locality.set(Arc::clone(service));
    }
    let after = next(locality.clone(), &before);
    assert_eq!(schedulers(&after.rules, [1, 2]), ["lblc", "sh"]);
    assert_eq!(unserved(&after.rules), ["tenant/b"]);
}

/// Failure story T370: two Services exchange their schedulers.
#[test]
fn t370_a_smaller_table_is_written_before_a_larger_one() {
    let with = |first, second| {
        let mut all = services(&[("tenant/a", 1)], first);
        let other = services(&[("tenant/b", 2)], second);
        for (_, service) in other.services().iter() {
            all.set(Arc::clone(service));
        }
        all
    };
    let [turns, locality] = [Scheduler::RoundRobin, Scheduler::LocalityLeastConnection];
    let before = next(with(turns, locality), &Rendered::default());
    let after = next(with(locality, turns), &before);
    let change = BACKEND().diff(&before.rules, &after.rules);
    let [Step::Servers(operations)] = change.steps() else {
        panic!("{change}");
    };
    let set = operations.iter().map(|operation| match operation {
        Operation::SetVirtualServer { server, .. } => server.scheduler.to_string(),
        other => panic!("{other}"),
    });
    assert_eq!(set.collect::<Vec<_>>(), ["rr", "lblc"]);
}

/// Failure story T370: the bounds are no obstacle for a large cluster that uses one scheduler.
#[test]
fn t370_ten_thousand_ports_of_maglev_have_their_tables_also_after_all_are_replaced() {
    let mut allocation = Allocation::default();
    let table = Pages(8);
    for number in 0..10_000 {
        let owner = owner("shop", number);
        assert!(allocation.number(&owner, |_| true).is_some());
        assert!(allocation.admits_table(&"shop".into(), table), "{number}");
        allocation.set_table(&owner, table);
    }
    for number in 0..10_000 {
        let before = allocation.renew(&owner("shop", number), |_| Some(table), |_| true);
        assert!(before.is_some(), "{number}");
    }
    assert!(!allocation.admits_table(&"shop".into(), Pages(16_384)));
    assert!(allocation.admits_table(&"other".into(), Pages(41_920)));
}

/// A kernel that held `rules` when another program removed all tables, as an agent reads it that
/// `remembered` these owners of marks.
fn flushed(rules: &Rules, remembered: Elements) -> Rendered<Rules> {
    let servers = rules.servers.iter().map(|(number, server)| {
        let mut server = Server::clone(server);
        server.owner = None;
        (*number, Arc::new(server))
    });
    let last = rules.servers.iter().map(|(number, _)| *number).max();
    let rules = Rules {
        table: Contents::default(),
        servers: servers.collect(),
        delivery: rules.delivery,
        allocation: Allocation::after(last.unwrap_or(0)),
        remembered,
        ..Rules::default()
    };
    Rendered {
        dataplane: Dataplane::default(),
        rules,
    }
}

/// The marks of the virtual servers that a change removes, or from which it takes destinations.
fn losing(family: Family, from: &Rules, desired: &Rules) -> BTreeSet<u32> {
    let change = Ipvs::detached(family).diff(from, desired);
    let mut marks = BTreeSet::new();
    for step in change.steps() {
        match step {
            Step::Servers(operations) => marks.extend(operations.iter().filter_map(|operation| {
                let removes = matches!(
                    operation,
                    Operation::RemoveVirtualServer { .. } | Operation::RemoveDestination { .. }
                );
                removes.then_some(operation.key().mark.value())
            })),
            Step::Departures(departures) => {
                marks.extend(
                    departures
                        .iter()
                        .map(|departure| departure.key.mark.value()),
                );
            }
            Step::Delivery(_) | Step::Timeouts(_) | Step::Table(_) => {}
        }
    }
    marks
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(64)))]

    /// Failure story T358: the repair of a flushed ruleset gave new marks, and the virtual servers of the
    /// old ones went with their connections. Other Services may have come or gone meanwhile.
    #[test]
    fn t358_after_a_flush_no_virtual_server_of_a_service_that_stays_loses_a_connection(
        history in histories(3),
    ) {
        for family in Family::ALL {
            let backend = Ipvs::detached(family);
            let mut held = Rendered::<Rules>::default();
            for desired in &history {
                let again = flushed(&held.rules, held.rules.owners());
                let repaired = backend.render(&held.dataplane, &again);
                if !held.dataplane.services().is_empty() {
                    prop_assert_eq!(&repaired, &held.rules);
                    prop_assert_eq!(losing(family, &again.rules, &repaired), BTreeSet::new());
                    // Another agent, after T366.
                    let read = flushed(&held.rules, Elements::new());
                    let repaired = backend.render(&held.dataplane, &read);
                    prop_assert_eq!(losing(family, &read.rules, &repaired), BTreeSet::new());
                    prop_assert!(repaired.servers == held.rules.servers);
                }
                let rules = backend.render(desired, &again);
                let lost = losing(family, &again.rules, &rules);
                for (key, claims) in desired.frontends().iter().filter(|(key, _)| key.family() == family) {
                    let before = held.dataplane.frontends().get(key);
                    if before.is_some_and(|before| before.winner() == claims.winner()) {
                        let marks = held.rules.marks(key);
                        prop_assert!(lost.is_disjoint(&marks), "{}", key);
                        prop_assert_eq!(&marks, &rules.marks(key), "{}", key);
                    }
                }
                held = Rendered { dataplane: desired.clone(), rules };
            }
        }
    }
}

/// Failure story T366: no program knows the protocol of a virtual server whose table was removed.
#[test]
fn t366_connections_of_tcp_are_not_adopted_by_a_port_of_udp() {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let with = |names: &[(&str, u8)]| {
        let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
        for (name, number) in names {
            let service = mk_service(name).cluster_ip(&format!("10.96.0.{number}"));
            let (service, endpoints) = match *name {
                "shop/a-udp" => (service.udp("x", 80), mk_endpoints().udp("x")),
                _ => (service.port("x", 80), mk_endpoints().tcp("x")),
            };
            let endpoints = endpoints.ready("10.0.2.5:80", "node-2").build();
            dataplane.set(compile(&service.build(), &endpoints, &node, &config).into());
        }
        dataplane
    };
    let before = next(with(&[("shop/web", 1)]), &Rendered::default());
    let read = flushed(&before.rules, Elements::new());
    let after = next(with(&[("shop/a-udp", 2), ("shop/web", 1)]), &read).rules;
    assert_eq!(after.marks(&frontend(1)), before.rules.marks(&frontend(1)));
}

/// Failure story T366: the agent that finds the kernel after a flush is another one, and remembers nothing.
#[test]
fn t366_an_agent_that_remembers_nothing_adopts_virtual_servers_with_the_right_endpoints() {
    let both = services(&[("shop/web", 1), ("shop/cart", 2)], Scheduler::RoundRobin);
    let before = next(both.clone(), &Rendered::default());
    let read = flushed(&before.rules, Elements::new());
    let after = next(both, &read).rules;
    assert_eq!(losing(Family::Ipv4, &read.rules, &after), BTreeSet::new());
    let [first, second] = [1, 2].map(|last| after.marks(&frontend(last)));
    assert!(first.is_disjoint(&second), "one for each");

    let hashed = services(&[("shop/web", 1)], Scheduler::SourceHash);
    let after = next(hashed, &read).rules;
    let held: BTreeSet<_> = read
        .rules
        .servers
        .iter()
        .map(|(number, _)| *number)
        .collect();
    let mark = *after.marks(&frontend(1)).first().expect("it has one");
    let number = number_of(mark).expect("it is one of them");
    assert!(
        !held.contains(&number),
        "another scheduler, another virtual server"
    );
    assert_eq!(losing(Family::Ipv4, &read.rules, &after).len(), 2);
}

/// Failure story T358: another program removed more than the tables, or what an agent remembers is older
/// than what it reads.
#[test]
fn t358_what_is_remembered_is_used_only_where_the_kernel_does_not_say_otherwise() {
    let both = services(&[("shop/web", 1), ("shop/cart", 2)], Scheduler::RoundRobin);
    let before = next(both.clone(), &Rendered::default());
    let [web, cart] = [1, 2].map(|last| before.rules.marks(&frontend(last)));
    let owners = before.rules.owners();

    let mut lacking = flushed(&before.rules, owners.clone());
    let number = number_of(*cart.first().expect("it has one")).expect("it is one of them");
    lacking.rules.servers.remove(&number);
    let after = next(both.clone(), &lacking).rules;
    assert_eq!(after.marks(&frontend(1)), web);
    assert_ne!(
        after.marks(&frontend(2)),
        cart,
        "its virtual server is gone"
    );

    let number = number_of(*cart.first().expect("it has one")).expect("it is one of them");
    let owner = owners
        .get(&mark_key(number))
        .expect("it has an owner")
        .clone();
    let alone = services(&[("shop/web", 1)], Scheduler::RoundRobin);
    let mut read = next(alone, &Rendered::default());
    assert_eq!(read.rules.marks(&frontend(1)), cart, "the first mark");
    read.rules.remembered = [(mark_key(number), owner)].into_iter().collect();
    read.dataplane = Dataplane::default();
    let after = next(both, &read).rules;
    assert_eq!(
        after.marks(&frontend(1)),
        cart,
        "the table names another owner"
    );
    assert!(after.marks(&frontend(2)).is_disjoint(&cart));
}

/// Failure story T358: a change that gave a Service another mark was cut short before its last step.
#[test]
fn t358_where_an_owner_has_two_marks_the_table_is_right() {
    let web = services(&[("shop/web", 1)], Scheduler::RoundRobin);
    let mut read = next(web.clone(), &Rendered::default());
    let marks = read.rules.marks(&frontend(1));
    let number = number_of(*marks.first().expect("it has one")).expect("it is one of them");
    let owners = read.rules.owners();
    let owner = owners.get(&mark_key(number)).expect("it has an owner");
    let server = read.rules.servers.get(&number).expect("it exists").clone();
    read.dataplane = Dataplane::default();
    for earlier in [777, 256] {
        let mut read = read.clone();
        read.rules.servers.insert(earlier, server.clone());
        read.rules.remembered = [(mark_key(earlier), owner.clone())].into_iter().collect();
        let after = next(web.clone(), &read).rules;
        assert_eq!(after.marks(&frontend(1)), marks, "not {earlier}");
    }
}

/// Failure story T358: only the map of owners was flushed.
#[test]
fn t358_a_flushed_map_of_owners_changes_no_mark() {
    let both = services(&[("shop/web", 1), ("shop/cart", 2)], Scheduler::RoundRobin);
    let before = next(both.clone(), &Rendered::default());
    let mut read = Rendered {
        dataplane: Dataplane::default(),
        rules: before.rules.clone(),
    };
    read.rules.remembered = before.rules.owners();
    let owners = read.rules.table.sets.get_mut("owners").expect("it exists");
    owners.elements = Elements::new();
    let repaired = next(both, &read).rules;
    assert_eq!(repaired, before.rules);
    assert_eq!(
        losing(Family::Ipv4, &read.rules, &repaired),
        BTreeSet::new()
    );
}

/// Failure story T424: thousands of virtual servers have lost their owners and have the same endpoints,
/// and for each port all those of another scheduler were passed over.
#[test]
fn t424_virtual_servers_without_owners_are_together_with_those_that_choose_alike() {
    let names: Vec<String> = (1..=40_u8).map(|number| format!("shop/{number}")).collect();
    let named: Vec<_> = names.iter().map(String::as_str).zip(1..).collect();
    let (first, second) = named.split_at(20);
    let rules = next(services(first, Scheduler::RoundRobin), &Rendered::default()).rules;
    let hashed = next(
        services(second, Scheduler::SourceHash),
        &Rendered::default(),
    );
    let servers = rules.servers.iter().chain(hashed.rules.servers.iter());
    let servers: Vec<_> = servers
        .zip(1..)
        .map(|((_, s), number)| (number, Arc::clone(s)))
        .collect();
    let mut ownerless =
        OwnerlessServers::of(servers.iter().map(|(number, server)| (number, server)));
    let sizes: Vec<usize> = ownerless.0.values().map(Vec::len).collect();
    assert_eq!(sizes, [20, 20], "none is searched for among the others");
    let missing = MissingSchedulers::default();
    let (service, _) = hashed
        .dataplane
        .services()
        .iter()
        .next()
        .expect("there are some");
    let plan = ServicePlan::of(&hashed.dataplane, service, Family::Ipv4, &missing);
    let need = plan.needs.values().next().expect("it has a port");
    let taken: Vec<u32> = std::iter::from_fn(|| ownerless.take(need)).collect();
    assert_eq!(taken, (21..=40).collect::<Vec<u32>>(), "the lowest first");
}
