use super::*;

use std::sync::Arc;

use dataplane::{Config, Endpoints, Service, ServiceKey, compile};
use netlink::conntrack::{Status, Tuple};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

/// Parses `udp 10.0.1.9:4000 -> 10.96.0.53:53 = 10.0.1.5:5353`, followed by its properties:
/// `redirected`, `answered`, `zone`.
fn flow(text: &str) -> Flow {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [
        protocol,
        source,
        "->",
        destination,
        "=",
        answerer,
        ref rest @ ..,
    ] = words[..]
    else {
        panic!("{text:?} is not a flow");
    };
    let end = |text: &str| -> SocketAddr { text.parse().expect("an address with a port") };
    let bits = rest.iter().filter_map(|word| match *word {
        "redirected" => Some(Status::DST_NAT),
        "answered" => Some(Status::SEEN_REPLY),
        _ => None,
    });
    Flow {
        protocol: match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            other => panic!("{other:?} is not a protocol"),
        },
        original: Tuple {
            source: end(source),
            destination: end(destination),
        },
        reply: Tuple {
            source: end(answerer),
            destination: end(source),
        },
        status: Status::of(&bits.collect::<Vec<_>>()),
        zone: u16::from(rest.contains(&"zone")),
        id: 1,
    }
}

fn dns() -> Service {
    mk_service("kube-system/dns")
        .cluster_ip("10.96.0.53")
        .load_balancer_ip("192.0.2.1")
        .udp("dns", 53)
        .node_port(30053)
        .port("metrics", 9153)
        .build()
}

fn endpoints(udp: &[&str], tcp: &[&str]) -> Endpoints {
    let udp = udp.iter().fold(mk_endpoints().udp("dns"), |list, at| {
        list.ready(at, "node-1")
    });
    let both = tcp
        .iter()
        .fold(udp.tcp("metrics"), |list, at| list.ready(at, "node-1"));
    both.build()
}

fn plane(config: &Config, services: &[(Service, Endpoints)]) -> Dataplane {
    let (node, config) = (mk_node(1).build(), Arc::new(config.clone()));
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for (service, endpoints) in services {
        dataplane.set(Arc::new(compile(service, endpoints, &node, &config)));
    }
    dataplane
}

fn dns_at(udp: &[&str], tcp: &[&str]) -> Dataplane {
    let config = mk_config().build();
    plane(&config, &[(dns(), endpoints(udp, tcp))])
}

fn between(cleaned: &Dataplane, programmed: &Dataplane) -> StaleFlows {
    let mut stale_candidates = StaleCandidates::none(Family::Ipv4);
    stale_candidates.add_step(cleaned, programmed);
    StaleFlows::compile(&stale_candidates, programmed)
}

fn at_start(programmed: &Dataplane) -> StaleFlows {
    StaleFlows::compile(&StaleCandidates::everything(Family::Ipv4), programmed)
}

#[track_caller]
fn assert_stale(stale_flows: &StaleFlows, stale: &[&str], kept: &[&str]) {
    for text in stale {
        assert!(stale_flows.is_stale(&flow(text)), "kept: {text}");
    }
    for text in kept {
        assert!(!stale_flows.is_stale(&flow(text)), "deleted: {text}");
    }
}

#[test]
fn a_udp_flow_is_stale_once_its_endpoint_is_gone_at_every_address_of_the_service() {
    let gone = at_start(&dns_at(&["10.0.1.6:5353"], &[]));
    assert_stale(
        &gone,
        &[
            "udp 10.0.1.9:4000 -> 10.96.0.53:53 = 10.0.1.5:5353 redirected answered",
            "udp 203.0.113.2:4000 -> 192.0.2.1:53 = 10.0.1.5:5353 redirected",
            "udp 203.0.113.2:4000 -> 192.168.0.1:30053 = 10.0.1.5:5353 redirected answered",
            // The same address with another port is a different endpoint.
            "udp 10.0.1.9:4000 -> 10.96.0.53:53 = 10.0.1.6:53 redirected answered",
        ],
        &[
            "udp 10.0.1.9:4000 -> 10.96.0.53:53 = 10.0.1.6:5353 redirected answered",
            "udp 203.0.113.2:4000 -> 192.168.0.1:30053 = 10.0.1.6:5353 redirected",
        ],
    );
}

/// kube-proxy deletes every flow to a port with a node port's number, at any address: among them
/// flows of a QUIC server outside the cluster.
#[test]
fn a_node_port_is_one_on_this_nodes_addresses_alone() {
    let programmed = dns_at(&["10.0.1.6:5353"], &[]);
    assert_stale(
        &at_start(&programmed),
        &["udp 10.0.1.9:4000 -> 192.168.0.1:30053 = 192.168.0.1:30053 answered"],
        &[
            "udp 10.0.1.9:4000 -> 203.0.113.7:30053 = 203.0.113.7:30053 answered",
            "udp 10.0.1.9:4000 -> 192.168.0.2:30053 = 10.0.1.5:5353 redirected answered",
            "udp 127.0.0.1:4000 -> 127.0.0.1:30053 = 127.0.0.1:30053 answered",
            // The destination of a reply is not the flow's original destination.
            "udp 192.168.0.1:30053 -> 203.0.113.7:53 = 203.0.113.7:53 answered",
        ],
    );
}

/// Failure story T40: kubernetes#48370. Without endpoints, packets bypassed Signpost's rules.
#[test]
fn t40_a_flow_that_went_past_a_frontend_is_stale() {
    let empty = dns_at(&[], &[]);
    let served = dns_at(&["10.0.1.5:5353"], &[]);
    let came = between(&empty, &served);
    assert!(
        came.filters().count() > 0,
        "endpoints came where there were none"
    );
    let past = "udp 10.0.1.9:4000 -> 10.96.0.53:53 = 10.96.0.53:53";
    assert_stale(&came, &[past], &[]);
    // And flows of removed endpoints: without endpoints, all of them are stale.
    let last = "udp 10.0.1.9:4000 -> 10.96.0.53:53 = 10.0.1.5:5353 redirected answered";
    assert_stale(&between(&served, &empty), &[last, past], &[]);
}

/// Failure story T44: kubernetes#101607, kubernetes#102631. An established connection belongs to
/// its two ends: its endpoint may be draining.
#[test]
fn t44_tcp_is_stale_only_when_it_was_never_answered() {
    let stale_flows = at_start(&dns_at(&[], &["10.0.1.6:9153"]));
    assert_stale(
        &stale_flows,
        &[
            "tcp 10.0.1.9:4000 -> 10.96.0.53:9153 = 10.0.1.5:9153 redirected",
            "tcp 10.0.1.9:4000 -> 10.96.0.53:9153 = 10.96.0.53:9153",
        ],
        &[
            "tcp 10.0.1.9:4000 -> 10.96.0.53:9153 = 10.0.1.5:9153 redirected answered",
            "tcp 10.0.1.9:4000 -> 10.96.0.53:9153 = 10.0.1.6:9153 redirected",
            // The node port is a UDP port, not a TCP port.
            "tcp 10.0.1.9:4000 -> 192.168.0.1:30053 = 192.168.0.1:30053",
        ],
    );
    let tcp: Vec<_> = stale_flows
        .filters()
        .filter(|filter| filter.protocol == Protocol::Tcp)
        .collect();
    assert_eq!(tcp[0].answers, Answers::None, "the others are not listed");
}

#[test]
fn an_endpoint_that_drains_keeps_its_flows() {
    let draining = mk_endpoints()
        .udp("dns")
        .draining("10.0.1.5:5353", "node-1")
        .ready("10.0.1.6:5353", "node-1")
        .build();
    let ready = dns_at(&["10.0.1.5:5353", "10.0.1.6:5353"], &[]);
    let programmed = plane(&ready.config().as_ref().clone(), &[(dns(), draining)]);
    assert_eq!(between(&ready, &programmed).filters().count(), 0);
    assert_stale(
        &at_start(&programmed),
        &[],
        &["udp 10.0.1.9:4000 -> 10.96.0.53:53 = 10.0.1.5:5353 redirected answered"],
    );
}

#[test]
fn flows_of_a_frontend_that_is_gone_are_stale_if_they_were_redirected() {
    let before = dns_at(&["10.0.1.5:5353"], &[]);
    let mut after = before.clone();
    assert!(after.remove(&ServiceKey::new("kube-system", "dns")));
    assert_stale(
        &between(&before, &after),
        &[
            "udp 10.0.1.9:4000 -> 10.96.0.53:53 = 10.0.1.5:5353 redirected answered",
            "udp 203.0.113.2:4000 -> 192.0.2.1:53 = 10.0.1.5:5353 redirected answered",
            "udp 203.0.113.2:4000 -> 192.168.0.1:30053 = 10.0.1.5:5353 redirected answered",
        ],
        &[
            // Addressed to the current owner of the address.
            "udp 203.0.113.2:4000 -> 192.0.2.1:53 = 192.0.2.1:53 answered",
            // Never one of its ports.
            "udp 203.0.113.2:4000 -> 192.168.0.1:30054 = 10.0.1.5:5353 redirected answered",
            "tcp 10.0.1.9:4000 -> 10.96.0.53:9153 = 10.0.1.5:9153 redirected answered",
        ],
    );
}

/// After a start, only the Service CIDRs show which flows a proxy redirected before.
#[test]
fn after_a_start_what_was_redirected_from_a_services_address_is_stale_and_nothing_else() {
    let other = mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .udp("quic", 443)
        .build();
    let config = mk_config().build();
    let programmed = plane(&config, &[(other, Endpoints::default())]);
    assert_stale(
        &at_start(&programmed),
        &[
            "udp 10.0.1.9:4000 -> 10.96.0.53:53 = 10.0.1.5:5353 redirected answered",
            // Another port of a Service that exists.
            "udp 10.0.1.9:4000 -> 10.96.0.10:80 = 10.0.1.5:5353 redirected answered",
        ],
        &[
            "udp 10.0.1.9:4000 -> 10.96.0.53:53 = 10.96.0.53:53 answered",
            // A hostPort, or another program's load balancer.
            "udp 203.0.113.2:4000 -> 192.168.0.1:30053 = 10.0.1.5:5353 redirected answered",
            "udp 203.0.113.2:4000 -> 192.0.2.1:53 = 10.0.1.5:5353 redirected answered",
        ],
    );
}

#[test]
fn in_another_programs_zone_only_what_was_redirected_is_stale() {
    let stale_flows = at_start(&dns_at(&["10.0.1.6:5353"], &[]));
    assert_stale(
        &stale_flows,
        &["udp 10.0.1.9:4000 -> 10.96.0.53:53 = 10.0.1.5:5353 redirected zone"],
        &["udp 10.0.1.9:4000 -> 10.96.0.53:53 = 10.96.0.53:53 answered zone"],
    );
}

/// Failure story T41: a dump of a million flows is made only for changes that can matter, and only
/// for their protocol.
#[test]
fn t41_nothing_is_listed_for_changes_that_leave_every_flow_where_it_is() {
    let two = ["10.0.1.5:5353", "10.0.1.6:5353"];
    let protocols = |before: &Dataplane, after: &Dataplane| -> Vec<String> {
        let stale_flows = between(before, after);
        let filters = stale_flows.filters();
        filters.map(|filter| filter.protocol.to_string()).collect()
    };
    let (one, both, none) = (
        dns_at(&two[..1], &[]),
        dns_at(&two, &[]),
        dns_at(&[], &["10.0.1.7:9153"]),
    );
    assert_eq!(protocols(&one, &one), [""; 0]);
    assert_eq!(protocols(&one, &both), [""; 0], "one more");
    assert_eq!(protocols(&both, &one), ["udp"], "one less");
    assert_eq!(protocols(&one, &none), ["tcp", "udp"]);
    let mut ipv6 = StaleCandidates::none(Family::Ipv6);
    ipv6.add_step(&both, &one);
    assert!(ipv6.is_empty(), "the other family has no part in it");
}

#[test]
fn node_ports_that_open_and_close_with_addresses_are_looked_at() {
    let at = |address: &str| {
        let node_ports = dataplane::NodePortAddresses {
            ipv4: Some([address.parse().expect("an address")].into()),
            ipv6: None,
        };
        let config = Config {
            node_ports,
            ..mk_config().build().as_ref().clone()
        };
        plane(&config, &[(dns(), endpoints(&["10.0.1.5:5353"], &[]))])
    };
    let moved = between(&at("192.168.0.1"), &at("172.20.0.1"));
    let filters: Vec<_> = moved.filters().map(|filter| filter.protocol).collect();
    assert_eq!(filters, [Protocol::Udp]);
    assert_stale(
        &moved,
        &[
            "udp 203.0.113.2:4000 -> 192.168.0.1:30053 = 10.0.1.5:5353 redirected answered",
            "udp 203.0.113.2:4000 -> 172.20.0.1:30053 = 172.20.0.1:30053",
        ],
        &["udp 203.0.113.2:4000 -> 192.168.0.1:30053 = 192.168.0.1:30053 answered"],
    );
}

/// The node does not list its IPv6 link-local addresses when node ports are open on all of them.
#[test]
fn flows_to_node_ports_at_link_local_addresses_are_looked_at() {
    let service = || {
        let service = mk_service("kube-system/dns").cluster_ip("fd00:10:96::53");
        service.udp("dns", 53).node_port(30053).build()
    };
    let anywhere = mk_config().node_ports_anywhere().build();
    let with = |at: &[&str]| plane(&anywhere, &[(service(), endpoints(at, &[]))]);
    let (none, first, second) = (
        plane(&anywhere, &[]),
        with(&["[fd00:10:0:1::5]:5353"]),
        with(&["[fd00:10:0:1::6]:5353"]),
    );
    let between = |before: &Dataplane, after: &Dataplane| {
        let mut stale_candidates = StaleCandidates::none(Family::Ipv6);
        stale_candidates.add_step(before, after);
        StaleFlows::compile(&stale_candidates, after)
    };
    let redirected =
        "udp [2001:db8:113::2]:4000 -> [fe80::1]:30053 = [fd00:10:0:1::5]:5353 redirected answered";
    assert_stale(&between(&first, &second), &[redirected], &[]);
    assert_stale(&between(&first, &none), &[redirected], &[]);
    let primary = plane(
        &mk_config().build(),
        &[(service(), endpoints(&["[fd00:10:0:1::5]:5353"], &[]))],
    );
    assert_stale(&between(&first, &primary), &[redirected], &[]);
    assert_stale(&between(&second, &first), &[], &[redirected]);
}

/// Failure story T39, kubernetes#125467, in another form: a Service was created and removed between
/// two passes.
#[test]
fn t39_flows_of_a_frontend_that_came_and_went_between_two_looks_are_stale() {
    let without = plane(&mk_config().build(), &[]);
    let with = dns_at(&["10.0.1.5:5353"], &[]);
    let mut stale_candidates = StaleCandidates::none(Family::Ipv4);
    stale_candidates.add_step(&without, &with);
    stale_candidates.add_step(&with, &without);
    let flows = [
        "udp 10.0.1.9:4000 -> 10.96.0.53:53 = 10.0.1.5:5353 redirected answered",
        "udp 203.0.113.2:4000 -> 192.0.2.1:53 = 10.0.1.5:5353 redirected answered",
        "udp 203.0.113.2:4000 -> 192.168.0.1:30053 = 10.0.1.5:5353 redirected answered",
    ];
    assert_stale(
        &StaleFlows::compile(&stale_candidates, &without),
        &flows,
        &[],
    );
    // The recorded frontends stay recorded when it is unknown what is programmed meanwhile.
    stale_candidates.add_everything();
    assert_stale(
        &StaleFlows::compile(&stale_candidates, &without),
        &flows,
        &[],
    );
}

/// DNS beside a Service that claims its addresses, or did, and flows that may be stale.
fn dns_beside(thief: Service, with: &[&str]) -> Dataplane {
    let config = mk_config().build();
    let thief = (thief, endpoints(with, &[]));
    plane(
        &config,
        &[(dns(), endpoints(&["10.0.1.5:5353"], &[])), thief],
    )
}

fn thief() -> testkit::ServiceBuilder {
    let thief = mk_service("aaa/thief").cluster_ip("10.96.0.66");
    thief.udp("dns", 53)
}

const OF_DNS: [&str; 3] = [
    "udp 10.0.1.9:4000 -> 10.96.0.53:53 = 10.0.1.5:5353 redirected answered",
    "udp 203.0.113.2:4000 -> 192.0.2.1:53 = 10.0.1.5:5353 redirected answered",
    "udp 203.0.113.2:4000 -> 192.168.0.1:30053 = 10.0.1.5:5353 redirected answered",
];

#[test]
fn t76_a_claim_on_an_address_ends_no_flow_of_the_service_that_has_it() {
    let alone = dns_at(&["10.0.1.5:5353"], &[]);
    let named = thief().external_ip("10.96.0.53").external_ip("192.0.2.1");
    let given = thief().load_balancer_ip("10.96.0.53");
    for thief in [named.external_ip("192.168.0.1").build(), given.build()] {
        for endpoints in [&[][..], &["10.0.1.66:5353"]] {
            let beside = dns_beside(thief.clone(), endpoints);
            for (before, after) in [(&alone, &beside), (&beside, &alone)] {
                assert_stale(&between(before, after), &[], &OF_DNS);
                assert_stale(&at_start(after), &[], &OF_DNS);
            }
        }
    }
}

#[test]
fn an_equal_claim_that_comes_first_takes_no_flow_that_is_answered() {
    // By name alone, and at the node's address, which a load balancer was given.
    let alone = dns_at(&["10.0.1.5:5353"], &[]);
    let at_node = mk_service("aaa/thief").cluster_ip("10.96.0.66");
    let at_node = at_node.udp("dns", 30053).load_balancer_ip("192.168.0.1");
    let by_name = thief().load_balancer_ip("192.0.2.1");
    for thief in [by_name.build(), at_node.build()] {
        for endpoints in [&[][..], &["10.0.1.66:5353"]] {
            let beside = dns_beside(thief.clone(), endpoints);
            for (before, after) in [(&alone, &beside), (&beside, &alone)] {
                assert_stale(&between(before, after), &[], &OF_DNS);
                assert_stale(&at_start(after), &[], &OF_DNS);
            }
        }
    }
}

#[test]
fn flows_of_an_equal_claim_end_with_its_endpoint() {
    let config = mk_config().build();
    let by_name = thief().load_balancer_ip("192.0.2.1").build();
    let beside = |udp: &[&str]| {
        let thief = (by_name.clone(), endpoints(&["10.0.1.66:5353"], &[]));
        plane(&config, &[(dns(), endpoints(udp, &[])), thief])
    };
    let gone = between(&beside(&["10.0.1.5:5353"]), &beside(&["10.0.1.6:5353"]));
    assert_stale(&gone, &OF_DNS, &[]);
}

/// A Service that took an address before its owner existed does not keep the clients that it got
/// there.
#[test]
fn flows_of_a_claim_that_is_refused_now_end() {
    let config = mk_config().build();
    let given = thief().load_balancer_ip("10.96.0.53").build();
    let given = || (given.clone(), endpoints(&["10.0.1.66:5353"], &[]));
    let before = plane(&config, &[given()]);
    let after = plane(
        &config,
        &[given(), (dns(), endpoints(&["10.0.1.5:5353"], &[]))],
    );
    let taken = "udp 10.0.1.9:4000 -> 10.96.0.53:53 = 10.0.1.66:5353 redirected answered";
    assert_stale(&between(&before, &after), &[taken], &OF_DNS);
}
