use std::time::Duration;

use netlink::ipvs::{Connections, SchedulerName, VirtualServer, VirtualServerFlags};

use dataplane::{Protocol, ServiceKey};

use super::*;
use crate::layout::MARKS;
use crate::scheduler_tables::Pages;

const NUMBER: u32 = 7;
const LIMIT: Duration = Duration::from_secs(60);

fn key() -> VirtualServerKey {
    VirtualServerKey {
        family: Family::Ipv4,
        mark: MARKS.mark(NUMBER).expect("a mark"),
    }
}

fn at(last: u8) -> SocketAddr {
    ([10, 0, 1, last], 8080).into()
}

fn departure(destinations: &[SocketAddr], server_removal: ServerRemoval) -> Departure {
    Departure {
        key: key(),
        owner: Some(owner()),
        destinations: destinations.iter().map(|at| (*at, Some(LIMIT))).collect(),
        server_removal,
        table: Pages(2),
    }
}

fn owner() -> ServicePortName {
    ServicePortName {
        service: ServiceKey {
            namespace: "shop".into(),
            name: "web".into(),
        },
        port: "http".into(),
        protocol: Protocol::Tcp,
    }
}

fn virtual_server() -> VirtualServer {
    VirtualServer {
        scheduler: SchedulerName::new("rr").expect("a scheduler"),
        flags: VirtualServerFlags::default(),
    }
}

/// The kernel's list: addresses with weight and number of connections.
fn found(listed: &[(SocketAddr, u32, u32)]) -> Vec<(VirtualServerKey, Destinations)> {
    let listed = listed.iter().map(|(address, weight, active)| {
        let connections = Connections {
            active: *active,
            ..Connections::default()
        };
        (*address, (destination(Weight(*weight)), connections))
    });
    vec![(key(), listed.collect())]
}

/// What is left to compare of such a list.
fn hide(draining: &mut Draining, listed: &[(SocketAddr, u32)]) -> Option<Vec<SocketAddr>> {
    let destinations = listed.iter();
    let server = Server {
        server: virtual_server(),
        destinations: destinations
            .map(|(address, weight)| (*address, destination(Weight(*weight))))
            .collect(),
        owner: None,
    };
    let mut servers = BTreeMap::from([(NUMBER, Arc::new(server))]);
    draining.hide(&mut servers);
    let server = servers.get(&NUMBER)?;
    Some(server.destinations.keys().copied().collect())
}

fn print(operations: &[Operation]) -> Vec<String> {
    operations.iter().map(Operation::to_string).collect()
}

/// Failure story T369.
#[test]
fn t369_a_virtual_server_leaves_while_its_last_connections_do() {
    let (mut draining, now) = (Draining::default(), Instant::now());
    draining.begin(vec![departure(&[at(1)], ServerRemoval::Stays)], now);
    assert_eq!(
        draining.leaving_servers(),
        &LeavingServers::default(),
        "it serves"
    );
    let mut expected = LeavingServers::default();
    expected.add(NUMBER, Pages(2), Some(&"shop".into()));
    let leaves = |draining: &mut Draining| {
        draining.begin(vec![departure(&[at(2)], ServerRemoval::Leaves)], now);
        assert_eq!(draining.leaving_servers(), &expected);
    };
    leaves(&mut draining);
    draining.end(&found(&[(at(1), 0, 0), (at(2), 0, 1)]), now);
    assert_eq!(draining.leaving_servers(), &expected);
    draining.end(&found(&[(at(2), 0, 0)]), now);
    assert_eq!(draining.leaving_servers(), &LeavingServers::default());
    leaves(&mut draining);
    assert_eq!(hide(&mut draining, &[(at(2), 0)]), None);
    assert_eq!(draining.leaving_servers(), &expected);
    draining.hide(&mut BTreeMap::new());
    assert_eq!(
        draining.leaving_servers(),
        &LeavingServers::default(),
        "removed by another program"
    );
    leaves(&mut draining);
    draining.resume(
        vec![Operation::RemoveVirtualServer { key: key() }],
        &BTreeMap::new(),
    );
    assert_eq!(draining.leaving_servers(), &LeavingServers::default());
}

#[test]
fn a_destination_is_removed_when_its_last_connection_has_ended() {
    let (mut draining, now) = (Draining::default(), Instant::now());
    let begun = draining.begin(vec![departure(&[at(5), at(6)], ServerRemoval::Stays)], now);
    assert_eq!(begun.len(), 2);
    assert!(
        begun.iter().all(|o| o.to_string().contains("-w 0")),
        "{begun:?}"
    );
    let removals = draining.end(&found(&[(at(5), 0, 1), (at(6), 0, 0), (at(7), 1, 0)]), now);
    assert_eq!(print(&removals), [format!("-d {} -r {}", key(), at(6))]);
    assert_eq!(
        hide(&mut draining, &[(at(5), 0), (at(7), 1)]),
        Some(vec![at(7)])
    );
    let removals = draining.end(&found(&[(at(5), 0, 0), (at(7), 1, 3)]), now);
    assert_eq!(print(&removals), [format!("-d {} -r {}", key(), at(5))]);
    assert_eq!(draining.keys(), []);
}

#[test]
fn connections_end_with_the_deadline() {
    let (mut draining, now) = (Draining::default(), Instant::now());
    draining.begin(vec![departure(&[at(5)], ServerRemoval::Stays)], now);
    // It is asked again, as after a failed attempt: the first time counts.
    draining.begin(
        vec![departure(&[at(5)], ServerRemoval::Stays)],
        now + LIMIT / 2,
    );
    let used = found(&[(at(5), 0, 1)]);
    assert_eq!(draining.end(&used, now + LIMIT / 2), []);
    assert_eq!(draining.end(&used, now + LIMIT).len(), 1);
    let mut unlimited = departure(&[at(5)], ServerRemoval::Stays);
    unlimited.destinations = vec![(at(5), None)];
    draining.begin(vec![unlimited], now);
    assert_eq!(draining.end(&used, now + 1000 * LIMIT), []);
}

#[test]
fn a_virtual_server_goes_with_its_last_destination() {
    let (mut draining, now) = (Draining::default(), Instant::now());
    draining.begin(vec![departure(&[at(5), at(6)], ServerRemoval::Leaves)], now);
    assert_eq!(hide(&mut draining, &[(at(5), 0), (at(6), 0)]), None);
    let removals = draining.end(&found(&[(at(5), 0, 0), (at(6), 0, 2)]), now);
    assert_eq!(print(&removals), [format!("-d {} -r {}", key(), at(5))]);
    assert_eq!(hide(&mut draining, &[(at(6), 0)]), None);
    let removals = draining.end(&found(&[(at(6), 0, 0)]), now);
    let expected = [
        format!("-d {} -r {}", key(), at(6)),
        format!("-D {}", key()),
    ];
    assert_eq!(print(&removals), expected);
    assert_eq!(draining.keys(), []);
}

#[test]
fn a_destination_that_comes_back_is_there_already() {
    let (mut draining, now) = (Draining::default(), Instant::now());
    draining.begin(vec![departure(&[at(5)], ServerRemoval::Stays)], now);
    let back = Operation::AddDestination {
        key: key(),
        address: at(5),
        destination: destination(Weight(1)),
    };
    let taken = draining.resume(vec![back.clone()], &BTreeMap::new());
    assert!(
        matches!(taken[..], [Operation::SetDestination { .. }]),
        "{taken:?}"
    );
    assert_eq!(
        draining.resume(vec![back.clone()], &BTreeMap::new()),
        [back]
    );
    assert_eq!(draining.end(&found(&[(at(5), 1, 0)]), now + LIMIT), []);
}

#[test]
fn what_another_program_changes_counts_as_drift() {
    let (mut draining, now) = (Draining::default(), Instant::now());
    draining.begin(vec![departure(&[at(5), at(6)], ServerRemoval::Stays)], now);
    // One has a weight again, the other is gone.
    assert_eq!(hide(&mut draining, &[(at(5), 1)]), Some(vec![at(5)]));
    assert_eq!(draining.keys(), []);
}

/// A virtual server with a hash is replaced when another endpoint comes. Its endpoints have not left
/// yet, and their connections have no deadline until they do.
#[test]
fn the_deadline_begins_when_the_endpoint_leaves_and_not_when_its_virtual_server_does() {
    let (mut draining, now) = (Draining::default(), Instant::now());
    let mut replaced = departure(&[], ServerRemoval::Leaves);
    replaced.key.mark = MARKS.mark(NUMBER + 1).expect("a mark");
    replaced.destinations = vec![(at(5), None)];
    let used = vec![(replaced.key, found(&[(at(5), 0, 1)]).remove(0).1)];
    draining.begin(vec![replaced], now);
    assert_eq!(draining.end(&used, now + 1000 * LIMIT), []);
    draining.begin(vec![departure(&[at(5)], ServerRemoval::Stays)], now);
    assert_eq!(draining.end(&used, now + LIMIT / 2), []);
    assert_eq!(draining.end(&used, now + LIMIT).len(), 2);
}

/// Failure story T298: a deployment of thousands of endpoints is deleted, and each endpoint that
/// comes in the next minutes is compared with all of them.
#[test]
fn t298_many_destinations_that_leave_are_removed_over_several_checks() {
    let (mut draining, now) = (Draining::default(), Instant::now());
    let count = u16::try_from(2 * REMOVED_AT_ONCE + 1).expect("few");
    let all = (0..count).map(|port| SocketAddr::from(([10, 0, 1, 5], port)));
    let all: Vec<SocketAddr> = all.collect();
    draining.begin(vec![departure(&all, ServerRemoval::Leaves)], now);
    let mut listed: Vec<(SocketAddr, u32, u32)> = all.iter().map(|at| (*at, 0, 0)).collect();
    let mut operations = Vec::new();
    while !draining.keys().is_empty() {
        let left: Vec<(SocketAddr, u32)> = listed.iter().map(|(at, ..)| (*at, 0)).collect();
        assert_eq!(hide(&mut draining, &left), None, "they serve no Service");
        // Those whose deadline has passed, too.
        let removals = draining.end(&found(&listed), now + LIMIT);
        listed.retain(|(at, ..)| {
            let removal = Operation::RemoveDestination {
                key: key(),
                address: *at,
            };
            !removals.contains(&removal)
        });
        operations.push(removals.len());
    }
    // The last one is the virtual server.
    assert_eq!(operations, [REMOVED_AT_ONCE, REMOVED_AT_ONCE, 2]);
}

/// Failure story T367: a tenant may have hundreds of thousands of virtual servers that keep their connections,
/// and each one that left, of any Service, was compared with all of them.
#[test]
fn t367_what_leaves_is_not_compared_with_what_leaves_of_others() {
    let (mut draining, began) = (Draining::default(), Instant::now());
    let departures = (1..=50_000).map(|number| {
        let mut owner = owner();
        owner.service.name = number.to_string().into();
        Departure {
            key: VirtualServerKey {
                family: Family::Ipv4,
                mark: MARKS.mark(number).expect("a mark"),
            },
            owner: Some(owner),
            ..departure(&[at(5)], ServerRemoval::Leaves)
        }
    });
    let begun = draining.begin(departures.collect(), began);
    assert_eq!(begun.len(), 50_000);
    assert!(began.elapsed() < Duration::from_secs(10));
}

/// A connection at a replaced virtual server may last for days, and endpoints come and go meanwhile.
#[test]
fn t377_an_endpoint_that_left_is_remembered_until_its_deadline() {
    let (mut draining, now) = (Draining::default(), Instant::now());
    let mut lasting = departure(&[at(5)], ServerRemoval::Stays);
    lasting.destinations = vec![(at(5), None)];
    draining.begin(vec![lasting], now);
    draining.begin(vec![departure(&[at(6), at(7)], ServerRemoval::Stays)], now);
    let remembered = |draining: &Draining| draining.by_owner[&owner()].limited.len();
    draining.end(&found(&[(at(5), 0, 1)]), now);
    assert_eq!(remembered(&draining), 2);
    draining.end(&found(&[(at(5), 0, 1)]), now + LIMIT);
    assert_eq!(remembered(&draining), 0);
}
