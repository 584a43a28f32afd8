//! Packets to external IPs, load-balancer IPs and node ports.
//!
//! The node is node 1 of the address plan: 192.168.0.1 (and 172.20.0.1), its pods 10.0.1.0/24.
//! Outside clients are 203.0.113.0/24.

use dataplane::Endpoints;
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use crate::dataplane_of;
use crate::packet_line::assert_packets;
use crate::web::{elsewhere, exposed_web, here_and_there, on, one, web};

#[test]
fn an_external_policy_cluster_masquerades_all_clients() {
    let config = mk_config().detect_nothing().build();
    for destination in ["198.51.100.1:80", "192.0.2.1:80", "192.168.0.1:30080"] {
        for sender in [
            "pod 10.0.1.9",
            "remote-pod 10.0.2.9",
            "node 192.168.0.1",
            "outside 203.0.113.2",
        ] {
            assert_packets(
                &one(exposed_web(), here_and_there(), &config),
                &format!(
                    "{sender} -> {destination}/tcp = 10.0.1.5:8080, 10.0.2.7:8080 masqueraded"
                ),
            );
        }
    }
}

#[test]
fn an_external_policy_local_keeps_clients_here_and_lets_pods_and_the_node_go_anywhere() {
    let service = || exposed_web().external_local();
    for destination in ["198.51.100.1:80", "192.0.2.1:80", "192.168.0.1:30080"] {
        assert_packets(
            &one(service(), here_and_there(), &mk_config().build()),
            &format!(
                "pod 10.0.1.9 -> {destination}/tcp = 10.0.1.5:8080, 10.0.2.7:8080
                 node 192.168.0.1 -> {destination}/tcp = 10.0.1.5:8080, 10.0.2.7:8080 masqueraded
                 node 172.20.0.1 -> {destination}/tcp = 10.0.1.5:8080, 10.0.2.7:8080 masqueraded
                 loopback 127.0.0.1 -> {destination}/tcp = 10.0.1.5:8080, 10.0.2.7:8080 masqueraded
                 # Both a pod's address and the node's: taken for a pod's.
                 node 10.0.1.1 -> {destination}/tcp = 10.0.1.5:8080, 10.0.2.7:8080
                 remote-pod 10.0.2.9 -> {destination}/tcp = 10.0.1.5:8080
                 outside 203.0.113.2 -> {destination}/tcp = 10.0.1.5:8080"
            ),
        );
        assert_packets(
            &one(service(), elsewhere(), &mk_config().build()),
            &format!(
                "pod 10.0.1.9 -> {destination}/tcp = 10.0.2.7:8080, 10.0.3.8:8080
                 outside 203.0.113.2 -> {destination}/tcp = drop"
            ),
        );
        // No packet is recognised as a pod's; the node's own addresses are still known.
        assert_packets(
            &one(
                service(),
                here_and_there(),
                &mk_config().detect_nothing().build(),
            ),
            &format!(
                "pod 10.0.1.9 -> {destination}/tcp = 10.0.1.5:8080
                 node 10.0.1.1 -> {destination}/tcp = 10.0.1.5:8080, 10.0.2.7:8080 masqueraded"
            ),
        );
        // With the range of the whole cluster, pods of other nodes count, too.
        let cluster_cidr = mk_config().detect_by_source(&["10.0.0.0/16"]).build();
        assert_packets(
            &one(service(), here_and_there(), &cluster_cidr),
            &format!("remote-pod 10.0.2.9 -> {destination}/tcp = 10.0.1.5:8080, 10.0.2.7:8080"),
        );
    }
}

#[test]
fn node_ports_are_accepted_on_the_configured_addresses_and_never_on_loopback() {
    let primary = mk_config().build();
    assert_packets(
        &one(exposed_web(), elsewhere(), &primary),
        "outside 203.0.113.2 -> 192.168.0.1:30080/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded
         outside 203.0.113.2 -> 172.20.0.1:30080/tcp = untouched
         outside 203.0.113.2 -> 192.168.0.1:30080/udp = untouched
         outside 203.0.113.2 -> 192.168.0.1:30081/tcp = untouched
         loopback 127.0.0.1 -> 127.0.0.1:30080/tcp = untouched
         # A Service without an IPv6 cluster IP has no IPv6 node port.
         outside 2001:db8:113::2 -> [fd00:192:168::1]:30080/tcp = untouched",
    );
    let anywhere = mk_config().node_ports_anywhere().build();
    assert_packets(
        &one(exposed_web(), elsewhere(), &anywhere),
        "outside 203.0.113.2 -> 172.20.0.1:30080/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded
         pod 10.0.1.9 -> 10.0.1.1:30080/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded
         loopback 127.0.0.1 -> 127.0.0.1:30080/tcp = untouched
         pod 10.0.1.9 -> 192.168.0.2:30080/tcp = untouched",
    );
}

/// The kernel determines whether an address is local; of IPv6 link-local addresses, the node lists
/// only those selected by ranges.
#[test]
fn node_ports_on_every_address_are_on_link_local_ones_too() {
    let node = mk_node(1).local_address("169.254.20.1").build();
    let service = || {
        mk_service("shop/web")
            .cluster_ip("10.96.0.10")
            .cluster_ip("fd00:10:96::10")
            .port("http", 80)
            .node_port(30080)
    };
    let endpoints = || {
        mk_endpoints()
            .tcp("http")
            .ready("10.0.2.7:8080", "node-2")
            .ready("[fd00:10:0:2::7]:8080", "node-2")
            .build()
    };
    let anywhere = mk_config().node_ports_anywhere().build();
    assert_packets(
        &on(&node, service(), endpoints(), &anywhere),
        "outside 203.0.113.2 -> 169.254.20.1:30080/tcp = 10.0.2.7:8080 masqueraded
         outside 203.0.113.2 -> 169.254.20.2:30080/tcp = untouched
         outside 2001:db8:113::2 -> [fe80::1]:30080/tcp = [fd00:10:0:2::7]:8080 masqueraded
         outside 2001:db8:113::2 -> [fe80::1]:30081/tcp = untouched
         outside 2001:db8:113::2 -> [fd00:192:168::2]:30080/tcp = untouched",
    );
    let chosen = mk_config()
        .node_ports_at(&["169.254.20.1", "fe80::1"])
        .build();
    assert_packets(
        &on(&node, service(), endpoints(), &chosen),
        "outside 203.0.113.2 -> 169.254.20.1:30080/tcp = 10.0.2.7:8080 masqueraded
         outside 203.0.113.2 -> 192.168.0.1:30080/tcp = untouched
         outside 2001:db8:113::2 -> [fe80::1]:30080/tcp = [fd00:10:0:2::7]:8080 masqueraded
         outside 2001:db8:113::2 -> [fe80::2]:30080/tcp = untouched",
    );
}

#[test]
fn source_ranges_close_load_balancer_ips_and_nothing_else() {
    let service = || exposed_web().source_range("203.0.113.0/25");
    let config = mk_config().build();
    let open_ways =
        "outside 203.0.113.200 -> 198.51.100.1:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded
         outside 203.0.113.200 -> 192.168.0.1:30080/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded
         outside 203.0.113.200 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded";
    assert_packets(&one(service(), elsewhere(), &config), open_ways);
    assert_packets(
        &one(service(), elsewhere(), &config),
        "outside 203.0.113.2 -> 192.0.2.1:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded
         outside 203.0.113.200 -> 192.0.2.1:80/tcp = drop
         pod 10.0.1.9 -> 192.0.2.1:80/tcp = drop
         node 192.168.0.1 -> 192.0.2.1:80/tcp = drop",
    );
    // A client that is not allowed cannot detect that there are no endpoints.
    assert_packets(
        &one(service(), Endpoints::default(), &config),
        "outside 203.0.113.2 -> 192.0.2.1:80/tcp = reject
         outside 203.0.113.200 -> 192.0.2.1:80/tcp = drop",
    );
    // A range of all sources, or one of the other family alone, restricts nothing.
    for open in ["0.0.0.0/0", "2001:db8::/32"] {
        let service = match open {
            "0.0.0.0/0" => service().source_range(open),
            _ => exposed_web().source_range(open),
        };
        assert_packets(
            &one(service, elsewhere(), &config),
            "outside 203.0.113.200 -> 192.0.2.1:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded",
        );
    }
}

/// A load-balancer IP that is also bound to the node is the source of packets that the node sends
/// to it.
#[test]
fn a_source_range_with_the_node_in_it_has_the_services_own_address_in_it_too() {
    let node = mk_node(1).local_address("192.0.2.1").build();
    let config = mk_config().build();
    let own = "node 192.0.2.1 -> 192.0.2.1:80/tcp";
    let includes = exposed_web().source_range("192.168.0.0/24");
    assert_packets(
        &on(&node, includes, elsewhere(), &config),
        &format!("{own} = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded"),
    );
    let excludes = exposed_web().source_range("203.0.113.0/24");
    assert_packets(
        &on(&node, excludes, elsewhere(), &config),
        &format!("{own} = drop"),
    );
}

#[test]
fn external_ips_are_left_alone_where_they_are_ignored() {
    let config = mk_config().ignore_external_ips().build();
    assert_packets(
        &one(exposed_web(), elsewhere(), &config),
        "outside 203.0.113.2 -> 198.51.100.1:80/tcp = untouched
         outside 203.0.113.2 -> 192.0.2.1:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded",
    );
}

#[test]
fn a_load_balancer_ip_that_is_the_nodes_own_address_is_served() {
    let service = web().load_balancer_ip("192.168.0.1");
    assert_packets(
        &one(service, elsewhere(), &mk_config().build()),
        "outside 203.0.113.2 -> 192.168.0.1:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded
         outside 203.0.113.2 -> 192.168.0.1:22/tcp = untouched",
    );
}

#[test]
fn an_address_comes_before_a_node_port() {
    let config = mk_config().build();
    let addressed = mk_service("shop/addressed")
        .cluster_ip("10.96.0.20")
        .load_balancer_ip("192.168.0.1")
        .port("http", 30080)
        .build();
    let endpoints = mk_endpoints()
        .tcp("http")
        .ready("10.0.3.3:80", "node-3")
        .build();
    let services = [
        (exposed_web().build(), here_and_there()),
        (addressed, endpoints),
    ];
    assert_packets(
        &dataplane_of(&mk_node(1).build(), &config, &services),
        "outside 203.0.113.2 -> 192.168.0.1:30080/tcp = 10.0.3.3:80 masqueraded",
    );
}
