use std::sync::Arc;

use backend::{Found, Inspect as _, PieceState};
use netlink::ipvs::{AddressedServer, ForeignVirtualServer, Forwarding, SchedulerName};

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
        connections: Some([((1, at(6)), connections)].into()),
        foreign: vec![ForeignVirtualServer::Addressed(foreign)],
    });
    found
}

#[test]
fn what_waits_for_its_connections_is_draining_and_no_difference() {
    let (desired, found) = (rules(&[(1, &[(5, 1)])]), found());
    let server = desired.compare_server(&found, Family::Ipv4, 1);
    let states: Vec<&PieceState> = server.iter().map(|piece| &piece.state).collect();
    let expected = [
        &PieceState::Present,
        &PieceState::Present,
        &PieceState::Draining,
    ];
    assert_eq!(states, expected);
    let texts: Vec<&str> = server.iter().map(|piece| piece.text.as_str()).collect();
    let expected = [
        "virtual server FWM 1396703233, scheduler rr",
        "FWM 1396703233 -> 10.0.1.5:8080, Masq, weight 1, 0 active, 0 inactive connections",
        "FWM 1396703233 -> 10.0.1.6:8080, Masq, weight 0, 2 active, 1 inactive connections",
    ];
    assert_eq!(texts, expected);
    let others = desired.compare_other_servers(&found, Family::Ipv4);
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
    let server = desired.compare_server(&changed, Family::Ipv4, 1);
    assert!(matches!(server[1].state, PieceState::Different { .. }));
    assert_eq!(server[2].state, PieceState::Leftover);
    let others = desired.compare_other_servers(&changed, Family::Ipv4);
    assert!(others.iter().all(|p| p.state == PieceState::Leftover));
    let text = Ipvs::detached(Family::Ipv4).describe(Found::Rules {
        programmed: &desired,
        found: &changed,
    });
    assert!(text.starts_with("! the kernel differs"), "{text}");
}

/// The two families number their virtual servers alike.
#[test]
fn what_ipvsadm_lists_is_printed_and_what_was_not_read_is_not_counted() {
    let mut desired = rules(&[(1, &[(5, 1)])]);
    let server = Server {
        server: VirtualServer {
            scheduler: SchedulerName::new("mh").expect("a scheduler"),
            flags: VirtualServerFlags::FALLBACK,
        },
        ..Server::clone(desired.servers.get(&1).expect("it is there"))
    };
    desired.servers.insert(1, Arc::new(server));
    let texts = |found: &Rules| -> Vec<String> {
        let pieces = desired.compare_server(found, Family::Ipv6, 1).into_iter();
        pieces.map(|piece| piece.text).collect()
    };
    let expected = [
        "virtual server FWM 1396703233 IPv6, scheduler mh (mh-fallback)",
        "FWM 1396703233 IPv6 -> 10.0.1.5:8080, Masq, weight 1",
    ];
    assert_eq!(texts(&desired), expected);

    let tunnelled = Destination {
        forwarding: Forwarding::Tunnel,
        ..destination(Weight(1))
    };
    let mut found = desired.clone();
    let changed = Server {
        destinations: [(at(5), tunnelled)].into(),
        ..Server::clone(desired.servers.get(&1).expect("it is there"))
    };
    found.servers.insert(1, Arc::new(changed));
    let pieces = desired.compare_server(&found, Family::Ipv6, 1);
    let expected = "FWM 1396703233 IPv6 -> 10.0.1.5:8080, Tunnel, weight 1";
    let PieceState::Different { found } = &pieces[1].state else {
        panic!("{pieces:?}");
    };
    assert_eq!(found, &[expected]);
}

/// As `ipvsadm` 1.31 prints them: `print_service_entry`, where schedulers other than `sh` and `mh` have no
/// names for their flags.
#[test]
fn t378_flags_are_printed_as_ipvsadm_does() {
    let printed = |scheduler: &str, flags: &[VirtualServerFlags]| {
        let server = VirtualServer {
            scheduler: SchedulerName::new(scheduler).expect("a scheduler"),
            flags: VirtualServerFlags::of(flags),
        };
        print_server("FWM 7", &server)
    };
    let both = [VirtualServerFlags::FALLBACK, VirtualServerFlags::HASH_PORT];
    let others = [
        VirtualServerFlags::PERSISTENT,
        VirtualServerFlags::ONE_PACKET,
    ];
    for (scheduler, flags, expected) in [
        ("rr", &[][..], "rr"),
        ("mh", &both, "mh (mh-fallback,mh-port)"),
        ("sh", &both[1..], "sh (sh-port)"),
        ("lc", &both, "lc (flag-1,flag-2)"),
        ("rr", &others, "rr persistent ops"),
    ] {
        let expected = format!("virtual server FWM 7, scheduler {expected}");
        assert_eq!(printed(scheduler, flags), expected);
    }
}
