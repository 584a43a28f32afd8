use std::collections::BTreeMap;
use std::net::IpAddr;

use dataplane::{Choice, Config, NodePortAddresses, Origin, Packet, Target, Verdict, compile};
use proptest::prelude::*;
use proptest::sample::Index;
use testkit::{histories, mk_config, mk_endpoints, mk_node, mk_service};

use super::*;
use crate::Transport;

/// The steps as text: each port and its targets.
fn described(steps: &[Step]) -> Vec<String> {
    let targets = |route: &Route| {
        let targets: Vec<String> = route.targets.iter().map(Target::to_string).collect();
        targets.join(" ")
    };
    let describe = |step: &Step| match step {
        Step::Open(port, route) => format!("open {port}: {}", targets(route)),
        Step::Retarget(port, route) => format!("retarget {port}: {}", targets(route)),
        Step::Close(port) => format!("close {port}"),
    };
    let mut lines: Vec<String> = steps.iter().map(describe).collect();
    lines.sort();
    lines
}

/// `shop/web` with a node port for each protocol, and these endpoints for the TCP port.
fn web(endpoints: &[&str]) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let service = mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .port("http", 80)
        .node_port(30080)
        .udp("quic", 80)
        .node_port(30080)
        .sctp("other", 80)
        .node_port(30080)
        .build();
    let mut list = mk_endpoints().tcp("http");
    for endpoint in endpoints {
        list = list.ready(endpoint, "node-2");
    }
    let list = list.udp("quic").ready("10.0.2.7:8443", "node-2");
    let list = list.sctp("other").ready("10.0.2.7:9000", "node-2").build();
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    dataplane.set(Arc::new(compile(&service, &list, &node, &config)));
    dataplane
}

fn refusal(port: LocalPort) -> OpenError {
    OpenError::TooMany { port, limit: 0 }
}

fn tcp() -> LocalPort {
    LocalPort {
        family: Family::Ipv4,
        transport: Transport::Tcp,
        port: testkit::port(30080),
    }
}

#[test]
fn a_port_is_open_as_long_as_there_is_an_endpoint() {
    let mut listeners = Listeners::default();
    let mut follow = |dataplane: Option<&Dataplane>| {
        let steps = listeners.follow(Family::Ipv4, dataplane);
        for step in &steps {
            if let Step::Open(port, _) = step {
                listeners.opened(*port);
            }
        }
        described(&steps)
    };
    let one = web(&["10.0.2.7:8080"]);
    assert_eq!(
        follow(Some(&one)),
        [
            "open 127.0.0.1:30080/tcp: 10.0.2.7:8080",
            "open 127.0.0.1:30080/udp: 10.0.2.7:8443"
        ],
        "SCTP is not relayed"
    );
    assert_eq!(follow(Some(&one)), [""; 0]);
    assert_eq!(
        follow(Some(&web(&["10.0.2.7:8080", "10.0.2.8:8080"]))),
        ["retarget 127.0.0.1:30080/tcp: 10.0.2.7:8080 10.0.2.8:8080"]
    );
    assert_eq!(follow(Some(&web(&[]))), ["close 127.0.0.1:30080/tcp"]);
    assert_eq!(follow(None), ["close 127.0.0.1:30080/udp"]);
    assert_eq!(follow(None), [""; 0]);
}

#[test]
fn a_family_opens_no_port_of_the_other() {
    let mut listeners = Listeners::default();
    let steps = listeners.follow(Family::Ipv6, Some(&web(&["10.0.2.7:8080"])));
    assert_eq!(described(&steps), [""; 0]);
}

#[test]
fn a_port_that_is_refused_is_named_and_tried_again_with_its_newest_endpoints() {
    let mut listeners = Listeners::default();
    let _ = listeners.follow(Family::Ipv4, Some(&web(&["10.0.2.7:8080"])));
    let _ = listeners.refused(tcp(), refusal(tcp()));
    let listen_failures: Vec<ListenFailure> = listeners.listen_failures().collect();
    let [refused] = listen_failures.as_slice() else {
        panic!("{listen_failures:?}");
    };
    assert_eq!(refused.service_port.to_string(), "shop/web:http");

    let steps = listeners.follow(Family::Ipv4, Some(&web(&["10.0.2.8:8080"])));
    assert_eq!(described(&steps), [""; 0], "no process listens on it");
    assert_eq!(
        described(&listeners.retry(usize::MAX)),
        ["open 127.0.0.1:30080/tcp: 10.0.2.8:8080"]
    );
    listeners.opened(tcp());
    assert_eq!(listeners.listen_failures().count(), 0);
    assert_eq!(described(&listeners.retry(usize::MAX)), [""; 0]);

    let _ = listeners.refused(tcp(), refusal(tcp()));
    let steps = listeners.follow(Family::Ipv4, Some(&web(&[])));
    assert_eq!(described(&steps), [""; 0], "there is nothing to close");
    assert_eq!(listeners.listen_failures().count(), 0);
}

#[test]
fn ports_that_want_for_room_are_tried_when_there_is_some_and_others_always() {
    let mut listeners = Listeners::default();
    let udp = LocalPort {
        transport: Transport::Udp,
        ..tcp()
    };
    let in_use = |port| OpenError::Bind {
        port,
        source: std::io::ErrorKind::AddrInUse.into(),
    };
    let _ = listeners.follow(Family::Ipv4, Some(&web(&["10.0.2.7:8080"])));
    assert_eq!(
        listeners.refused(tcp(), refusal(tcp())),
        ListenFailureChange::Fresh
    );
    assert_eq!(
        listeners.refused(udp, refusal(udp)),
        ListenFailureChange::Fresh
    );

    assert_eq!(described(&listeners.retry(0)), [""; 0]);
    let open_tcp = "open 127.0.0.1:30080/tcp: 10.0.2.7:8080";
    let open_udp = "open 127.0.0.1:30080/udp: 10.0.2.7:8443";
    assert_eq!(described(&listeners.retry(1)), [open_tcp]);
    assert_eq!(
        listeners.refused(tcp(), in_use(tcp())),
        ListenFailureChange::Fresh
    );
    assert_eq!(described(&listeners.retry(1)), [open_tcp, open_udp]);
    assert_eq!(
        listeners.refused(tcp(), in_use(tcp())),
        ListenFailureChange::Stale
    );
    listeners.opened(udp);
    assert_eq!(described(&listeners.retry(1)), [open_tcp]);
}

/// An address of the node that accepts node ports and that no Service claims.
fn own_address(dataplane: &Dataplane, family: Family) -> Option<IpAddr> {
    let is_claimed = |address: IpAddr| {
        let keys = dataplane.frontends().iter().map(|(key, _)| *key);
        keys.into_iter().any(
            |key| matches!(key, FrontendKey::Address { address: claimed, .. } if claimed == address),
        )
    };
    let mut own = dataplane.node().local_addresses.iter().copied();
    own.find(|address| {
        Family::of(*address) == family && !address.is_loopback() && !is_claimed(*address)
    })
}

proptest! {
    #[test]
    fn whatever_happens_what_is_open_is_what_is_desired_and_goes_where_the_nodes_own_packets_go(
        history in histories(6),
        refused in proptest::collection::vec(any::<Index>(), 6),
        family in prop_oneof![Just(Family::Ipv4), Just(Family::Ipv6)],
    ) {
        let mut listeners = Listeners::default();
        let mut open: BTreeMap<LocalPort, Arc<Route>> = BTreeMap::new();
        for (dataplane, refused) in history.iter().zip(refused) {
            let again = listeners.retry(usize::MAX);
            carry_out(again, refused, &mut listeners, &mut open)?;
            let steps = listeners.follow(family, Some(dataplane));
            carry_out(steps, refused, &mut listeners, &mut open)?;
            let mut all = open.clone();
            for refusal in listeners.listen_failures() {
                prop_assert!(!open.contains_key(&refusal.port));
                let desired = listeners.ports.get(&refusal.port).expect("it is wanted");
                all.insert(refusal.port, Arc::clone(&desired.route));
            }
            expect_routes_of_own_packets(dataplane, family, &all)?;
        }
    }
}

/// Applies `steps` to `open`; the step with index `refused`, if it opens a port, fails.
fn carry_out(
    steps: Vec<Step>,
    refused: Index,
    listeners: &mut Listeners,
    open: &mut BTreeMap<LocalPort, Arc<Route>>,
) -> Result<(), TestCaseError> {
    let refused = refused.index(steps.len() + 1);
    for (at, step) in steps.into_iter().enumerate() {
        match step {
            Step::Open(port, _) if at == refused => {
                let _ = listeners.refused(port, refusal(port));
            }
            Step::Open(port, route) => {
                prop_assert!(open.insert(port, route).is_none(), "{port} is open");
                listeners.opened(port);
            }
            Step::Retarget(port, route) => {
                prop_assert!(open.insert(port, route).is_some(), "{port} is closed");
            }
            Step::Close(port) => {
                prop_assert!(open.remove(&port).is_some(), "{port} is closed");
            }
        }
    }
    Ok(())
}

/// Checks that every node port of `family` is in `routes` if and only if a packet from this node to
/// that port on one of the node's addresses is delivered, and to the same endpoints.
fn expect_routes_of_own_packets(
    dataplane: &Dataplane,
    family: Family,
    routes: &BTreeMap<LocalPort, Arc<Route>>,
) -> Result<(), TestCaseError> {
    let mut dataplane = dataplane.clone();
    let config = Config {
        node_ports: NodePortAddresses::ANY,
        ..Config::clone(dataplane.config())
    };
    dataplane.set_node(Arc::clone(dataplane.node()), Arc::new(config));
    let Some(own) = own_address(&dataplane, family) else {
        return Ok(());
    };
    let mut ports = 0;
    for (key, _) in dataplane.frontends().iter() {
        let Some(port) = LocalPort::of(key).filter(|port| port.family == family) else {
            continue;
        };
        let packet = Packet {
            origin: Origin::Node,
            source: own,
            destination: own,
            protocol: port.transport.protocol(),
            port: port.port,
        };
        let desired: Vec<(Target, u32)> = match dataplane.verdict(&packet) {
            Verdict::Deliver(choices) => choices.iter().map(weighed).collect(),
            Verdict::Reject | Verdict::Drop | Verdict::Untouched => Vec::new(),
        };
        let mut weights: BTreeMap<Target, u32> = BTreeMap::new();
        let route = routes.get(&port);
        for target in route.iter().flat_map(|route| route.targets.iter()) {
            *weights.entry(*target).or_default() += 1;
        }
        prop_assert_eq!(
            weights.into_iter().collect::<Vec<_>>(),
            desired,
            "{}",
            packet
        );
        ports += usize::from(route.is_some());
    }
    prop_assert_eq!(ports, routes.len());
    Ok(())
}

fn weighed(choice: &Choice) -> (Target, u32) {
    (choice.target, choice.weight)
}
