//! Which virtual servers a backend creates, and how they change.

use std::sync::Arc;

use backend::{Backend, Change as _, Rendered};
use backend_ipvs::{Ipvs, Rules, Step};
use dataplane::{Dataplane, Family, FrontendKey, Protocol, Scheduler, Service, compile};
use netlink::ipvs::Operation;
use testkit::{EndpointsBuilder, mk_config, mk_endpoints, mk_node, mk_service, port};

const CLUSTER_IP: &str = "10.96.0.10";

fn backend() -> Ipvs {
    Ipvs::detached(Family::Ipv4)
}

fn dataplane(services: &[(Service, EndpointsBuilder)]) -> Dataplane {
    let (node, config) = (
        mk_node(1).build(),
        mk_config().node_ports_anywhere().build(),
    );
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for (service, endpoints) in services {
        let endpoints = endpoints.clone().build();
        dataplane.set(compile(service, &endpoints, &node, &config).into());
    }
    dataplane
}

fn web() -> Service {
    mk_service("shop/web")
        .cluster_ip(CLUSTER_IP)
        .port("http", 80)
        .build()
}

fn two_pods() -> EndpointsBuilder {
    one_pod().ready("10.0.2.7:8080", "node-2")
}

fn one_pod() -> EndpointsBuilder {
    mk_endpoints().tcp("http").ready("10.0.1.5:8080", "node-1")
}

fn at(address: &str) -> FrontendKey {
    FrontendKey::Address {
        address: address.parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: port(80),
    }
}

/// What a kernel that holds `desired` returns when it is read.
fn read_back(desired: &Rules) -> Rendered<Rules> {
    let mut rules = Rules::default();
    for step in backend().diff(&rules, desired).steps() {
        rules.replay(step).expect("every step can be taken");
    }
    Rendered {
        dataplane: Dataplane::default(),
        rules,
    }
}

fn advance(desired: &Dataplane, from: &Rendered<Rules>) -> Rendered<Rules> {
    Rendered {
        rules: backend().render(desired, from),
        dataplane: desired.clone(),
    }
}

#[test]
fn all_addresses_of_a_port_share_one_virtual_server() {
    let service = mk_service("shop/web")
        .cluster_ip(CLUSTER_IP)
        .external_ip("198.51.100.7");
    let service = service.port("http", 80).node_port(30_080).build();
    let rules = advance(&dataplane(&[(service, two_pods())]), &Rendered::default()).rules;
    let node_port = FrontendKey::NodePort {
        family: Family::Ipv4,
        protocol: Protocol::Tcp,
        port: port(30_080),
    };
    let marks = rules.marks(&at(CLUSTER_IP));
    assert_eq!(marks.len(), 1);
    assert_eq!(rules.marks(&at("198.51.100.7")), marks);
    assert_eq!(rules.marks(&node_port), marks);
    assert_eq!(rules.to_string().matches("virtual server").count(), 1);
}

#[test]
fn a_restart_and_other_services_leave_a_mark_where_it_is() {
    let other = || {
        mk_service("shop/cart")
            .cluster_ip("10.96.0.9")
            .port("http", 80)
            .build()
    };
    let both = dataplane(&[(other(), one_pod()), (web(), two_pods())]);
    let before = advance(&both, &Rendered::default());
    let mark = before.rules.marks(&at(CLUSTER_IP));
    let freed = before.rules.marks(&at("10.96.0.9"));
    let alone = dataplane(&[(web(), two_pods())]);
    for from in [before.clone(), read_back(&before.rules)] {
        let after = advance(&alone, &from);
        assert_eq!(after.rules.marks(&at(CLUSTER_IP)), mark);
        let third = mk_service("shop/pay")
            .cluster_ip("10.96.0.11")
            .port("http", 80);
        let later = dataplane(&[(web(), two_pods()), (third.build(), one_pod())]);
        let later = advance(&later, &after).rules;
        assert_ne!(
            later.marks(&at("10.96.0.11")),
            freed,
            "it was given out again at once"
        );
    }
}

/// kubernetes#92019, kubernetes#108319: a weight that a proxy had set to 0 stayed, because the next
/// process took it for the desired weight.
#[test]
fn an_endpoint_that_is_ready_again_after_a_restart_gets_its_weight_back() {
    let ready = dataplane(&[(web(), two_pods())]);
    let leaving = one_pod().draining("10.0.2.7:8080", "node-2");
    let leaving = dataplane(&[(web(), leaving)]);
    let before = advance(&ready, &Rendered::default());
    let drained = advance(&leaving, &before).rules;
    assert!(
        drained.to_string().contains("10.0.2.7:8080 -m -w 0"),
        "{drained}"
    );
    let again = advance(&ready, &read_back(&drained)).rules;
    assert!(
        again.to_string().contains("10.0.2.7:8080 -m -w 1"),
        "{again}"
    );
}

#[test]
fn an_endpoint_goes_when_it_answers_no_more() {
    let ready = advance(&dataplane(&[(web(), two_pods())]), &Rendered::default());
    let leaving = one_pod().draining("10.0.2.7:8080", "node-2");
    let drained = advance(&dataplane(&[(web(), leaving)]), &ready);
    let gone = advance(&dataplane(&[(web(), one_pod())]), &drained);
    let change = backend().diff(&drained.rules, &gone.rules);
    assert!(matches!(change.steps(), [Step::Departures(_)]), "{change}");
    assert!(
        change
            .to_string()
            .contains("10.0.2.7:8080, once it has no connections"),
        "{change}"
    );
    let suspects = backend().suspects(&change, &gone.dataplane);
    assert_eq!(
        suspects.len(),
        1,
        "a change of endpoints alone is about its Service"
    );
}

/// A pod that is not ready for a second keeps its connections, as in every other mode.
#[test]
fn connections_outlive_the_endpoint_and_the_service() {
    let both = advance(&dataplane(&[(web(), two_pods())]), &Rendered::default());
    let steps = |desired: &Dataplane, from: &Rendered<Rules>| {
        let change = backend().diff(&from.rules, &advance(desired, from).rules);
        (change.to_string(), change.steps().to_vec())
    };
    let (one, nothing) = (dataplane(&[(web(), one_pod())]), dataplane(&[]));
    let (printed, of_endpoint) = steps(&one, &both);
    assert!(
        matches!(of_endpoint[..], [Step::Departures(_)]),
        "{printed}"
    );
    let (printed, of_service) = steps(&nothing, &both);
    let expected = matches!(
        of_service[..],
        [Step::Table(_), Step::Departures(_)]
            | [Step::Table(_), Step::Departures(_), Step::Delivery(_)]
    );
    assert!(expected, "{printed}");
    // An agent that starts meanwhile does not know the Service of a virtual server, but that of
    // one which stays.
    let (printed, of_endpoint) = steps(&one, &read_back(&both.rules));
    assert!(
        matches!(of_endpoint[..], [Step::Departures(_)]),
        "{printed}"
    );
}

/// The next datagram of a flow must find another endpoint.
#[test]
fn flows_of_udp_do_not_outlive_the_endpoint() {
    let dns = || {
        mk_service("shop/dns")
            .cluster_ip("10.96.0.12")
            .udp("dns", 53)
            .build()
    };
    let one = || mk_endpoints().udp("dns").ready("10.0.1.5:8080", "node-1");
    let two = one().ready("10.0.2.7:8080", "node-2");
    let both = advance(&dataplane(&[(dns(), two)]), &Rendered::default());
    let alone = advance(&dataplane(&[(dns(), one())]), &both);
    let change = backend().diff(&both.rules, &alone.rules);
    let [Step::Servers(operations)] = change.steps() else {
        panic!("{change}");
    };
    assert!(
        matches!(operations[..], [Operation::RemoveDestination { .. }]),
        "{change}"
    );
}

/// IPVS fills a hash table in the order of additions. Nodes whose agents have seen different
/// changes must place a client alike, so a virtual server is made anew, in one order.
#[test]
fn a_hash_does_not_depend_on_what_a_node_has_seen() {
    let hashed = || {
        mk_service("shop/web")
            .cluster_ip(CLUSTER_IP)
            .port("http", 80)
            .scheduler(Scheduler::Maglev)
            .build()
    };
    let of = |endpoints| dataplane(&[(hashed(), endpoints)]);
    let order = |change: &backend_ipvs::Change| {
        let printed = change.to_string();
        let added = printed
            .lines()
            .filter(|line| line.starts_with("-a ") && line.contains("-r"));
        let address = |line: &str| line.split(" -r ").nth(1).map(str::to_owned);
        added.filter_map(address).collect::<Vec<_>>()
    };
    let all = of(two_pods().ready("10.0.1.2:8080", "node-1"));
    let fresh = advance(&all, &Rendered::default());
    let expected = order(&backend().diff(&Rules::default(), &fresh.rules));
    assert_eq!(expected.len(), 3);
    let first = advance(&of(two_pods()), &Rendered::default());
    for from in [first.clone(), read_back(&first.rules)] {
        let grown = advance(&all, &from);
        let change = backend().diff(&from.rules, &grown.rules);
        assert_eq!(order(&change), expected, "{change}");
        assert_ne!(
            grown.rules.marks(&at(CLUSTER_IP)),
            first.rules.marks(&at(CLUSTER_IP))
        );
        // Nothing changes without a change of endpoints, nor with a restart.
        let again = advance(&all, &read_back(&grown.rules));
        assert_eq!(again.rules, grown.rules);
        let change = backend().diff(&from.rules, &grown.rules);
        let is_departure = |step: &Step| matches!(step, Step::Departures(_));
        assert!(change.steps().last().is_some_and(is_departure), "{change}");
    }
}

/// New targets are added before packets are sent to them, and old ones removed after that stops.
#[test]
fn what_packets_are_led_to_comes_before_the_table_and_goes_behind_it() {
    let rules = advance(&dataplane(&[(web(), two_pods())]), &Rendered::default()).rules;
    let nothing = Rules::default();
    let (come, go) = (
        backend().diff(&nothing, &rules),
        backend().diff(&rules, &nothing),
    );
    assert!(
        matches!(
            come.steps(),
            [Step::Delivery(_), Step::Servers(_), Step::Table(_)]
        ),
        "{come}"
    );
    assert!(
        matches!(
            go.steps(),
            [
                Step::Table(_),
                Step::Table(_),
                Step::Departures(_),
                Step::Delivery(_)
            ]
        ),
        "{go}"
    );
    assert!(!come.size().is_empty());
}

/// The size of the change, and its text without what differs by name, when one endpoint of one of
/// `count` Services is replaced.
fn replaced_endpoint_among(count: u16, scheduler: Scheduler) -> (backend::Size, usize) {
    let service = |number: u16| {
        let [high, low] = number.to_be_bytes();
        mk_service(&format!("shop/web-{number}"))
            .cluster_ip(&format!("10.96.{high}.{low}"))
            .port("http", 80)
            .node_port(30_000 + number)
            .scheduler(scheduler)
            .build()
    };
    let endpoints = |last: u8| {
        let endpoints = one_pod().ready("10.0.2.7:8080", "node-2");
        endpoints.ready(&format!("10.0.2.{last}:8080"), "node-2")
    };
    let all: Vec<_> = (0..count).map(|n| (service(n), endpoints(8))).collect();
    let before = dataplane(&all);
    let backend = backend();
    let held = Rendered {
        rules: backend.render(&before, &Rendered::default()),
        dataplane: before.clone(),
    };
    let (node, config) = (before.node().clone(), before.config().clone());
    let mut after = before;
    let changed = compile(&service(count / 2), &endpoints(9).build(), &node, &config);
    after.set(changed.into());
    let change = backend.diff(&held.rules, &backend.render(&after, &held));
    let operations = change.steps().iter().map(|step| match step {
        Step::Servers(operations) => operations.len(),
        Step::Departures(departures) => departures.len(),
        Step::Table(transaction) => transaction.elements(),
        Step::Delivery(_) | Step::Timeouts(_) => 1,
    });
    (change.size(), operations.sum())
}

/// What a change writes follows from the change, not from how many Services there are. A hash is
/// replaced as a whole: one virtual server, and the elements that lead to it.
#[test]
fn one_replaced_endpoint_writes_the_same_among_100_and_2000_services() {
    for (scheduler, most) in [(Scheduler::RoundRobin, 2), (Scheduler::SourceHash, 16)] {
        let few = replaced_endpoint_among(100, scheduler);
        let many = replaced_endpoint_among(2_000, scheduler);
        assert_eq!(few, many, "{scheduler}");
        assert!((1..=most).contains(&few.1), "{scheduler}: {few:?}");
    }
}
