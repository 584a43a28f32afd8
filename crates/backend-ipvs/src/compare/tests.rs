use std::sync::Arc;

use backend::{Found, Inspect as _, PieceState};
use dataplane::Family;
use netlink::ipvs::{
    AddressedServer, ForeignVirtualServer, SchedulerName, VirtualServer, VirtualServerFlags,
};

use super::*;
use crate::kernel::Ipvs;
use crate::rules::{Figures, Server, destination};

fn at(last: u8) -> SocketAddr {
    ([10, 0, 1, last], 8080).into()
}

/// Virtual servers by number, each with destinations and their weights.
fn rules(servers: &[(u32, &[(u8, u32)])]) -> Rules {
    let mut rules = Rules::default();
    for (number, destinations) in servers {
        let destinations = destinations.iter();
        let server = Server {
            server: VirtualServer {
                scheduler: SchedulerName::new("rr").expect("a scheduler"),
                flags: VirtualServerFlags::default(),
            },
            destinations: destinations
                .map(|(last, weight)| (at(*last), destination(Weight(*weight))))
                .collect(),
            owner: None,
        };
        rules.servers.insert(*number, Arc::new(server));
    }
    rules.table.exists = true;
    rules
}

/// An endpoint has left, a virtual server was replaced, and the connections of both last.
fn found() -> Rules {
    let mut found = rules(&[(1, &[(5, 1), (6, 0)]), (2, &[(7, 0)])]);
    let connections = Connections {
        active: 2,
        inactive: 1,
    };
    let foreign = AddressedServer {
        protocol: 6,
        address: ([192, 0, 2, 1], 80).into(),
    };
    found.figures = Arc::new(Figures {
        connections: [((1, at(6)), connections)].into(),
        foreign: vec![ForeignVirtualServer::Addressed(foreign)],
    });
    found
}

#[test]
fn what_waits_for_its_connections_is_draining_and_no_difference() {
    let (desired, found) = (rules(&[(1, &[(5, 1)])]), found());
    let server = desired.compare_server(&found, 1);
    let states: Vec<&PieceState> = server.iter().map(|piece| &piece.state).collect();
    let expected = [
        &PieceState::Present,
        &PieceState::Present,
        &PieceState::Draining,
    ];
    assert_eq!(states, expected);
    let leaving = "virtual server -f 1396703233 -r 10.0.1.6:8080 -m -w 0, 2 active connections, \
                   1 inactive";
    assert_eq!(server[2].text, leaving);
    let others = desired.compare_other_servers(&found);
    assert_eq!(others.len(), 2);
    assert!(others.iter().all(|p| p.state == PieceState::Draining));
    let text = Ipvs::detached(Family::Ipv4).describe(Found::Rules {
        programmed: &desired,
        found: &found,
    });
    let expected = "the kernel holds what was programmed, 1 element; virtual servers of other \
                    programs: TCP 192.0.2.1:80";
    assert_eq!(text, expected);
}

/// Another program has set a weight to 0, or has added a destination.
#[test]
fn what_another_program_changed_is_a_difference() {
    let desired = rules(&[(1, &[(5, 1)])]);
    let changed = rules(&[(1, &[(5, 0), (6, 3)]), (2, &[(7, 1)])]);
    let server = desired.compare_server(&changed, 1);
    assert!(matches!(server[1].state, PieceState::Different { .. }));
    assert_eq!(server[2].state, PieceState::Leftover);
    let others = desired.compare_other_servers(&changed);
    assert!(others.iter().all(|p| p.state == PieceState::Leftover));
    let text = Ipvs::detached(Family::Ipv4).describe(Found::Rules {
        programmed: &desired,
        found: &changed,
    });
    assert!(text.starts_with("! the kernel differs"), "{text}");
}
