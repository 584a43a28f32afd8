//! Large changes, divided into parts.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use dataplane::{
    Dataplane, Endpoints, Family, FrontendKey, NextPart, Origin, Packet, PartContents, PartSize,
    Protocol, Service, ServiceKey, Verdict,
};
use proptest::prelude::*;
use testkit::{
    clusters, histories, laws, mk_config, mk_endpoints, mk_node, mk_service, packets, port,
};

use crate::dataplane_of;

/// Every dataplane on the way from `before` to `after`, including the last.
pub(crate) fn way(before: &Dataplane, after: &Dataplane, size: usize) -> Vec<Dataplane> {
    way_of(Family::Ipv4, before, after, size, PartContents::Large)
}

/// The same for one family and these contents.
fn way_of(
    family: Family,
    before: &Dataplane,
    after: &Dataplane,
    size: usize,
    contents: PartContents,
) -> Vec<Dataplane> {
    way_in(family, before, after, PartSize::new(size), contents)
}

/// The same for this part size.
fn way_in(
    family: Family,
    before: &Dataplane,
    after: &Dataplane,
    size: PartSize,
    contents: PartContents,
) -> Vec<Dataplane> {
    let mut way: Vec<Dataplane> = Vec::new();
    loop {
        let at = way.last().unwrap_or(before);
        match NextPart::next(family, at, after, size, contents) {
            NextPart::Part(next) | NextPart::Small(next) => {
                assert!(way.len() < 10_000, "every part is progress");
                way.push(next);
            }
            NextPart::Last => {
                way.push(after.clone());
                return way;
            }
        }
    }
}

/// A Service with `ports` ports and these endpoints at each.
fn service(name: &str, cluster_ip: &str, ports: u16, endpoints: &[&str]) -> (Service, Endpoints) {
    let mut service = mk_service(name).cluster_ip(cluster_ip);
    let mut all = mk_endpoints();
    for number in 0..ports {
        let port = format!("p{number}");
        service = service.port(&port, 8000 + number);
        all = all.tcp(&port);
        for endpoint in endpoints {
            all = all.ready(&format!("{endpoint}:{}", 9000 + number), "node-2");
        }
    }
    (service.build(), all.build())
}

pub(crate) fn dataplane(services: &[(Service, Endpoints)]) -> Dataplane {
    dataplane_of(&mk_node(1).build(), &mk_config().build(), services)
}

fn served(dataplane: &Dataplane) -> BTreeSet<String> {
    let frontends = dataplane.frontends().iter();
    frontends
        .map(|(_, claims)| claims.winner().0.to_string())
        .collect()
}

fn has_cluster_ip(dataplane: &Dataplane, ip: &str) -> bool {
    let ip = ip.parse().expect("an address");
    dataplane.cluster_ips().get(&ip).is_some()
}

#[test]
fn a_small_change_is_one_part() {
    let before = dataplane(&[service("shop/web", "10.96.0.10", 2, &["10.0.2.1"])]);
    let after = dataplane(&[service("shop/web", "10.96.0.10", 2, &["10.0.2.2"])]);
    // Two frontends with one endpoint each.
    assert_eq!(way(&before, &after, 4).len(), 1);
    assert_eq!(way(&before, &after, 3).len(), 2);
}

/// T85: a Service with hundreds of ports does not delay other Services.
#[test]
fn t85_a_small_service_comes_before_a_large_one() {
    let large = service("a/large", "10.96.0.10", 200, &["10.0.2.1", "10.0.2.2"]);
    let small = service("z/small", "10.96.0.11", 1, &["10.0.2.3"]);
    let after = dataplane(&[large, small]);
    let way = way(&dataplane(&[]), &after, 60);
    assert_eq!(way.len(), 11);
    assert_eq!(
        served(&way[0]),
        ["a/large", "z/small"].map(str::to_owned).into(),
        "there was room beside the small one"
    );
    assert_eq!(way[0].frontends().len(), 20);
}

/// A Service of the namespace of add-ons may be of any size.
#[test]
fn t85_a_large_service_that_is_to_be_first_keeps_no_small_one_waiting() {
    let (mut large, endpoints) = service("a/large", "10.96.0.10", 200, &["10.0.2.1"]);
    large.precedence = dataplane::Precedence::First;
    let small = service("z/small", "10.96.0.11", 1, &["10.0.2.3"]);
    let after = dataplane(&[(large, endpoints), small]);
    assert!(served(&way(&dataplane(&[]), &after, 60)[0]).contains("z/small"));
}

/// A change that arrives while a large change is in progress is in the next part.
#[test]
fn t85_a_change_that_comes_later_is_in_the_next_part() {
    let large = service("a/large", "10.96.0.10", 200, &["10.0.2.1", "10.0.2.2"]);
    let first = way(
        &dataplane(&[]),
        &dataplane(std::slice::from_ref(&large)),
        60,
    )
    .remove(0);
    let small = service("z/small", "10.96.0.11", 1, &["10.0.2.3"]);
    let next = way(&first, &dataplane(&[large, small]), 60).remove(0);
    assert!(served(&next).contains("z/small"));
    assert_eq!(next.frontends().len(), 40);
}

/// T94: a small change waits for no large one that was not started before.
#[test]
fn t94_what_is_small_goes_alone_in_its_turn() {
    let large = service("a/large", "10.96.0.10", 200, &["10.0.2.1", "10.0.2.2"]);
    let small = [
        service("y/small", "10.96.0.11", 1, &["10.0.2.3"]),
        service("z/small", "10.96.0.12", 1, &["10.0.2.3"]),
    ];
    let before = dataplane(&[]);
    let after = dataplane(&[large.clone(), small[0].clone(), small[1].clone()]);
    let next = |at: &Dataplane, contents| {
        NextPart::next(Family::Ipv4, at, &after, PartSize::new(60), contents)
    };
    let NextPart::Small(at) = next(&before, PartContents::Small) else {
        panic!("two frontends with an endpoint each are small");
    };
    assert_eq!(
        served(&at),
        ["y/small", "z/small"].map(str::to_owned).into()
    );
    // Without small changes left, the rest follows with either contents.
    for contents in [PartContents::Small, PartContents::Large] {
        assert!(matches!(next(&at, contents), NextPart::Part(at) if at.frontends().len() == 22));
    }
    assert!(
        matches!(next(&before, PartContents::Large), NextPart::Part(at) if served(&at).len() == 3)
    );
}

/// T97: a start has parts, and the first contains what everything else on the node needs.
#[test]
fn t97_a_start_begins_with_what_is_first_and_fits_into_a_part() {
    let mut first = service("z/first", "10.96.0.10", 3, &["10.0.2.1"]);
    first.0.precedence = dataplane::Precedence::First;
    let mut large = service("a/large", "10.96.0.11", 200, &["10.0.2.1"]);
    large.0.precedence = dataplane::Precedence::First;
    let small = |n: u8| {
        service(
            &format!("b/small-{n}"),
            &format!("10.96.1.{n}"),
            1,
            &["10.0.2.3"],
        )
    };
    let mut all = vec![first, large];
    all.extend((0..60).map(small));
    let way = way_of(
        Family::Ipv4,
        &Dataplane::default(),
        &dataplane(&all),
        60,
        PartContents::Small,
    );
    let served = served(&way[0]);
    assert!(served.contains("z/first") && !served.contains("a/large"));
    assert_eq!(way[0].frontends().len(), 30, "6 and 54 of 60");
}

/// T97: a frontend that sends packets to a removed endpoint does not wait for new frontends.
#[test]
fn t97_a_small_loss_comes_before_what_changes_as_little() {
    let front = |endpoint| service("z/front", "10.96.0.10", 1, &[endpoint]);
    let small = |n: u8| {
        service(
            &format!("b/small-{n}"),
            &format!("10.96.1.{n}"),
            1,
            &["10.0.2.3"],
        )
    };
    let before = dataplane(&[front("10.0.2.1")]);
    let mut all: Vec<_> = (0..100).map(small).collect();
    all.push(front("10.0.2.2"));
    let after = dataplane(&all);
    let at = way_of(Family::Ipv4, &before, &after, 40, PartContents::Small).remove(0);
    let packet = dataplane::Packet {
        origin: dataplane::Origin::Node,
        source: "192.168.0.1".parse().expect("an address"),
        destination: "10.96.0.10".parse().expect("an address"),
        protocol: dataplane::Protocol::Tcp,
        port: testkit::port(8000),
    };
    assert_eq!(at.verdict(&packet), after.verdict(&packet));
    assert_ne!(at.verdict(&packet), before.verdict(&packet));
}

/// Until its port is programmed, a connection to a later port passes unchanged. It would be refused
/// as soon as the address is a known cluster IP.
#[test]
fn a_cluster_ip_comes_after_all_of_its_ports_and_goes_before_them() {
    let all = dataplane(&[service("shop/web", "10.96.0.10", 10, &["10.0.2.1"])]);
    let none = dataplane(&[]);
    let coming = way(&none, &all, 6);
    let has: Vec<bool> = coming
        .iter()
        .map(|at| has_cluster_ip(at, "10.96.0.10"))
        .collect();
    assert_eq!(has, [false, false, false, true]);
    let going = way(&all, &none, 6);
    let has: Vec<bool> = going
        .iter()
        .map(|at| has_cluster_ip(at, "10.96.0.10"))
        .collect();
    assert_eq!(has, [false; 2]);
}

#[test]
fn an_address_moves_from_one_service_to_another_at_once() {
    let with = |name: &str, ip: &str| {
        let service = mk_service(name).cluster_ip(ip).port("", 80);
        let endpoints = mk_endpoints().tcp("").ready("10.0.2.1:80", "node-2");
        (
            service.external_ip("198.51.100.1").build(),
            endpoints.build(),
        )
    };
    let before = dataplane(&[with("a/one", "10.96.0.10")]);
    let after = dataplane(&[with("b/two", "10.96.0.11")]);
    let key = FrontendKey::Address {
        address: "198.51.100.1".parse().expect("an address"),
        protocol: dataplane::Protocol::Tcp,
        port: testkit::port(80),
    };
    for at in way(&before, &after, 1) {
        assert!(at.frontends().get(&key).is_some(), "{at}");
    }
}

/// The number of endpoints of the only frontend, in the whole cluster and on this node.
fn counts(at: &Dataplane) -> Option<(usize, usize)> {
    let (_, claims) = at.frontends().iter().next()?;
    let (_, frontend) = claims.winner();
    Some((frontend.cluster.len(), frontend.local.len()))
}

/// T97: if the backend writes endpoints individually, a frontend with many endpoints gets and loses
/// them in parts, and only changed endpoints count.
#[test]
fn t97_one_frontend_with_many_endpoints_is_divided() {
    let with = |endpoints: std::ops::Range<u16>| {
        let addresses: Vec<_> = endpoints.map(|n| format!("10.0.2.{n}")).collect();
        let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
        dataplane(&[service("shop/web", "10.96.0.10", 1, &addresses)])
    };
    let all = |before: &Dataplane, after: &Dataplane| {
        let size = PartSize::new(20).by_endpoint();
        let way = way_in(Family::Ipv4, before, after, size, PartContents::Large);
        way.iter().map(counts).collect::<Vec<_>>()
    };
    let of = |counts: &[usize]| counts.iter().map(|n| Some((*n, 0))).collect::<Vec<_>>();
    let (none, nothing) = (with(0..0), dataplane(&[]));
    assert_eq!(all(&nothing, &with(0..70)), of(&[20, 40, 60, 70]));
    assert_eq!(all(&none, &with(0..70)), of(&[20, 40, 60, 70]));
    // Removing two takes as long as adding one.
    assert_eq!(all(&with(0..100), &none), of(&[60, 20, 0]));
    assert_eq!(
        all(&with(0..100), &nothing),
        [Some((60, 0)), Some((20, 0)), None]
    );
    // 110 are removed and 60 added, the removals first.
    assert_eq!(all(&with(0..150), &with(110..210)).len(), 6);
    assert_eq!(all(&with(0..150), &with(1..150)), of(&[149]));
}

/// T97: a frontend with policy Local has endpoints on this node while it changes in parts.
#[test]
fn t97_a_divided_frontend_keeps_an_endpoint_on_this_node() {
    let with = |elsewhere: &str, here: &str| {
        let service = mk_service("shop/web").cluster_ip("10.96.0.10").port("", 80);
        let service = service.load_balancer_ip("198.51.100.1").external_local();
        let mut endpoints = mk_endpoints().tcp("");
        for number in 1..100 {
            endpoints = endpoints.ready(&format!("{elsewhere}.{number}:80"), "node-2");
        }
        for number in 200..220 {
            endpoints = endpoints.ready(&format!("{here}.{number}:80"), "node-1");
        }
        dataplane(&[(service.build(), endpoints.build())])
    };
    let (before, after) = (with("10.0.2", "10.0.1"), with("10.0.3", "10.0.1"));
    let moved = with("10.0.3", "10.0.9");
    for ends in [
        [&before, &after],
        [&before, &moved],
        [&dataplane(&[]), &after],
    ] {
        let size = PartSize::new(8).by_endpoint();
        let way = way_in(Family::Ipv4, ends[0], ends[1], size, PartContents::Large);
        assert!(way.len() > 8, "{}", way.len());
        for (_, claims) in way.iter().flat_map(|at| at.frontends().iter()) {
            let (_, frontend) = claims.winner();
            assert!(!frontend.cluster.is_empty(), "{frontend:?}");
            let is_local = frontend.policy == dataplane::TrafficPolicy::Local;
            assert_eq!(frontend.local.is_empty(), !is_local, "{frontend:?}");
        }
    }
}

/// The addresses of one port are divided if they alone are too many.
#[test]
fn one_port_with_many_addresses_is_divided() {
    let mut service = mk_service("shop/web").cluster_ip("10.96.0.10").port("", 80);
    for number in 0..100 {
        service = service.external_ip(&format!("198.51.100.{number}"));
    }
    let endpoints = mk_endpoints().tcp("").ready("10.0.2.1:80", "node-2");
    let after = dataplane(&[(service.build(), endpoints.build())]);
    let way = way(&dataplane(&[]), &after, 20);
    assert_eq!(way.len(), 11);
    assert!(way.iter().all(|at| at.frontends().len() <= 101));
    assert_eq!(way[0].frontends().len(), 10);
}

/// Failure story T174: an address closes to node ports, and a frontend at it replaces one. The part
/// that closes the address has that frontend, however small parts are.
#[test]
fn t174_an_address_that_closes_to_node_ports_has_its_own_frontend_in_the_same_part() {
    let web = || mk_service("shop/web").cluster_ip("10.96.0.10");
    let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:8080", "node-1");
    let endpoints = endpoints.build();
    let others = (1..20).map(|n| service(&format!("shop/{n}"), &format!("10.96.1.{n}"), 1, &[]));
    let state = |web: Service, others: Vec<(Service, Endpoints)>, addresses: &[&str]| {
        let config = mk_config().node_ports_at(addresses).build();
        let services = [others, vec![(web, endpoints.clone())]].concat();
        dataplane_of(&mk_node(1).build(), &config, &services)
    };
    let old = web().port("", 80).node_port(30_080).build();
    let before = state(old, Vec::new(), &["192.168.0.1", "172.20.0.1"]);
    let new = web().load_balancer_ip("172.20.0.1").port("", 30_080);
    let after = state(new.build(), others.collect(), &["192.168.0.1"]);
    let packet = Packet {
        origin: Origin::Outside {
            interface: "eth0".into(),
        },
        source: "192.0.2.7".parse().expect("an address"),
        destination: "172.20.0.1".parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: port(30_080),
    };
    assert!(matches!(after.verdict(&packet), Verdict::Deliver(_)));
    for at in way(&before, &after, 1) {
        assert_eq!(at.verdict(&packet), after.verdict(&packet));
    }
}

fn changes() -> impl Strategy<Value = (Dataplane, Dataplane)> {
    histories(3).prop_map(|history| {
        let (before, mut after) = (history[0].clone(), history[history.len() - 1].clone());
        // All parts have one configuration.
        after.set_node(Arc::clone(before.node()), Arc::clone(before.config()));
        (before, after)
    })
}

fn any_contents() -> impl Strategy<Value = PartContents> {
    proptest::sample::select(vec![PartContents::Small, PartContents::Large])
}

fn sizes() -> impl Strategy<Value = PartSize> {
    (1_usize..100, any::<bool>()).prop_map(|(count, is_fine)| match is_fine {
        true => PartSize::new(count).by_endpoint(),
        false => PartSize::new(count),
    })
}

fn families() -> impl Strategy<Value = Family> {
    proptest::sample::select(Family::ALL.to_vec())
}

fn address_of(key: &FrontendKey) -> Option<IpAddr> {
    match key {
        FrontendKey::Address { address, .. } => Some(*address),
        FrontendKey::NodePort { .. } => None,
    }
}

/// Whether several Services, before and after, claim this address. Which one has it in between
/// depends on the order of changes.
fn is_disputed(address: IpAddr, [before, after]: [&Dataplane; 2]) -> bool {
    let rules = [before, after]
        .into_iter()
        .flat_map(|at| at.services().iter());
    let claimants: BTreeSet<&ServiceKey> = rules
        .filter(|(_, rules)| {
            let is_at = |(key, _): &(FrontendKey, _)| address_of(key) == Some(address);
            rules.cluster_ips.contains(&address) || rules.frontends.iter().any(is_at)
        })
        .map(|(service, _)| service)
        .collect();
    claimants.len() > 1
}

proptest! {
    #[test]
    fn every_frontend_is_as_before_or_as_after(
        (before, after) in changes(),
        size in 1_usize..24,
        family in families(),
        contents in any_contents(),
    ) {
        for at in way_of(family, &before, &after, size, contents) {
            let keys = [&before, &after, &at].map(|dataplane| dataplane.frontends());
            for (key, _) in keys.iter().flat_map(|frontends| frontends.iter()) {
                if key.family() != family {
                    continue;
                }
                let [old, new, now] = keys.map(|frontends| {
                    let claims = frontends.get(key);
                    claims.map(|claims| Arc::clone(claims.winner().1))
                });
                prop_assert!(now == old || now == new, "{}: {:?}", key, now);
            }
        }
    }

    #[test]
    fn every_packet_goes_where_it_went_before_or_goes_after(
        (before, after) in changes(),
        size in 1_usize..24,
        family in families(),
        contents in any_contents(),
        packets in clusters().prop_flat_map(|cluster| {
            proptest::collection::vec(packets(&cluster), 1..20)
        }),
    ) {
        for at in way_of(family, &before, &after, size, contents) {
            for packet in &packets {
                let address = packet.destination;
                // An external IP that is also the node's hides a node port only while it exists.
                // A packet from a cluster IP is masqueraded once the address is known as one.
                let is_cluster_ip = |at: &Dataplane| at.cluster_ips().get(&packet.source).is_some();
                if Family::of(address) != family
                    || before.has_node_ports_at(address)
                    || is_cluster_ip(&after)
                {
                    continue;
                }
                let verdict = at.verdict(packet);
                let (old, new) = (before.verdict(packet), after.verdict(packet));
                // An address that is first an external IP of one Service and then a cluster IP of
                // another may belong to neither for a moment.
                let is_served = [&old, &new].iter().all(|at| matches!(at, Verdict::Deliver(_)));
                let may_be_untouched = !is_served && is_disputed(address, [&before, &after]);
                prop_assert!(
                    verdict == old
                        || verdict == new
                        || may_be_untouched && verdict == Verdict::Untouched,
                    "{packet:?}: {verdict:?}, not {old:?} or {new:?}"
                );
            }
        }
    }
    /// T97: a start in parts refuses no client that it is going to serve, and a change of
    /// configuration none that is served before and after.
    #[test]
    fn t97_no_part_of_a_start_or_a_change_of_configuration_misleads(
        (cluster, packets) in clusters().prop_flat_map(|cluster| {
            let packets = proptest::collection::vec(packets(&cluster), 1..20);
            (Just(cluster), packets)
        }),
        history in histories(3),
        size in sizes(),
        contents in any_contents(),
    ) {
        let mut states = vec![Dataplane::default()];
        states.extend(history);
        let same_node = |state: &Dataplane| state.node() == &cluster.node;
        states.retain(|state| state.services().is_empty() || same_node(state));
        states.push(cluster.compile());
        for ends in states.windows(2) {
            let [before, after] = ends else { continue };
            for family in Family::ALL {
                for at in way_in(family, before, after, size, contents) {
                    for packet in packets.iter().filter(|p| Family::of(p.destination) == family) {
                        if !is_disputed(packet.destination, [before, after]) {
                            laws::never_misleads([before, after], packet, &at.verdict(packet));
                        }
                    }
                }
            }
        }
    }
}
