//! Packets to cluster IPs, and to addresses without a Service.
//!
//! The node is node 1 of the address plan: 192.168.0.1 (and 172.20.0.1), its pods 10.0.1.0/24.
//! Outside clients are 203.0.113.0/24.

use dataplane::Endpoints;
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use crate::packet_line::assert_packets;
use crate::web::{elsewhere, exposed_web, here_and_there, on, one, web};

#[test]
fn a_cluster_ip_spreads_over_all_endpoints_and_masquerades_who_is_not_a_pod_of_this_node() {
    let dataplane = one(web(), here_and_there(), &mk_config().build());
    assert_packets(
        &dataplane,
        "pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080
         remote-pod 10.0.2.9 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080 masqueraded
         node 192.168.0.1 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080 masqueraded
         loopback 127.0.0.1 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080 masqueraded
         outside 203.0.113.2 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080 masqueraded
         # The bridge's own address is inside the pods' range, and a rule sees no more than that.
         node 10.0.1.1 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080",
    );
}

#[test]
fn each_family_and_protocol_has_its_own_endpoints() {
    let service = mk_service("kube-system/dns")
        .cluster_ip("10.96.0.10")
        .cluster_ip("fd00:10:96::10")
        .udp("dns", 53)
        .port("dns-tcp", 53)
        .sctp("signal", 53);
    let endpoints = mk_endpoints()
        .udp("dns")
        .ready("10.0.1.5:5353", "node-1")
        .ready("[fd00:10:0:1::5]:5353", "node-1")
        .tcp("dns-tcp")
        .ready("10.0.2.7:5353", "node-2")
        .sctp("signal")
        .ready("[fd00:10:0:2::7]:5353", "node-2")
        .build();
    assert_packets(
        &one(service, endpoints, &mk_config().build()),
        "pod 10.0.1.9 -> 10.96.0.10:53/udp = 10.0.1.5:5353
         pod 10.0.1.9 -> 10.96.0.10:53/tcp = 10.0.2.7:5353
         pod 10.0.1.9 -> 10.96.0.10:53/sctp = reject
         pod fd00:10:0:1::9 -> [fd00:10:96::10]:53/udp = [fd00:10:0:1::5]:5353
         pod fd00:10:0:1::9 -> [fd00:10:96::10]:53/tcp = reject
         pod fd00:10:0:1::9 -> [fd00:10:96::10]:53/sctp = [fd00:10:0:2::7]:5353
         node fd00:192:168::1 -> [fd00:10:96::10]:53/sctp = [fd00:10:0:2::7]:5353 masqueraded",
    );
}

#[test]
fn without_local_detection_cluster_ips_masquerade_no_client() {
    let nothing = mk_config().detect_nothing().build();
    assert_packets(
        &one(web(), elsewhere(), &nothing),
        "pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080
         outside 203.0.113.2 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080
         node 192.168.0.1 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080",
    );
    // A range of the other family alone recognises nothing in this one.
    let other_family = mk_config().detect_by_source(&["fd00:10::/48"]).build();
    assert_packets(
        &one(web(), elsewhere(), &other_family),
        "outside 203.0.113.2 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080",
    );
}

#[test]
fn masquerade_all_includes_pods_of_this_node() {
    let config = mk_config().masquerade_all().detect_nothing().build();
    assert_packets(
        &one(web(), elsewhere(), &config),
        "pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded",
    );
}

#[test]
fn detection_by_interface_looks_at_the_interface_and_at_nothing_else() {
    let bridge = mk_config().detect_by_bridge("cni0").build();
    assert_packets(
        &one(web(), elsewhere(), &bridge),
        "pod 10.0.1.9 via cni0 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080
         pod 10.0.1.9 via cni01 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded
         outside 203.0.113.2 via cni0 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080
         # What the node sends has come in through no interface, whatever its source.
         node 10.0.1.1 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded",
    );
    let prefix = mk_config().detect_by_prefix("veth").build();
    assert_packets(
        &one(web(), elsewhere(), &prefix),
        "pod 10.0.1.9 via veth12 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080
         pod 10.0.1.9 via cni0 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded",
    );
}

#[test]
fn what_no_service_asked_for_is_refused_on_cluster_ips_and_lost_in_the_service_range() {
    let dataplane = one(web(), here_and_there(), &mk_config().build());
    assert_packets(
        &dataplane,
        "pod 10.0.1.9 -> 10.96.0.10:81/tcp = reject
         node 192.168.0.1 -> 10.96.0.10:80/udp = reject
         outside 203.0.113.2 -> 10.96.0.10:80/sctp = reject
         pod 10.0.1.9 -> 10.96.0.11:80/tcp = drop
         pod fd00:10:0:1::9 -> [fd00:10:96::10]:80/tcp = drop
         # An endpoint itself, another node, the world.
         pod 10.0.1.9 -> 10.0.1.5:8080/tcp = untouched
         node 192.168.0.1 -> 192.168.0.2:30080/tcp = untouched
         pod 10.0.1.9 -> 203.0.113.9:443/tcp = untouched",
    );
    let unknown = mk_config().without_service_cidrs().build();
    assert_packets(
        &one(web(), here_and_there(), &unknown),
        "pod 10.0.1.9 -> 10.96.0.10:81/tcp = reject
         pod 10.0.1.9 -> 10.96.0.11:80/tcp = untouched",
    );
}

/// IPVS binds cluster IPs to a device of the node, where they remain just after a switch.
#[test]
fn a_cluster_ip_that_the_node_itself_has_is_the_services_and_another_address_is_the_nodes() {
    let node = mk_node(1)
        .local_address("10.96.0.10")
        .local_address("10.96.0.11")
        .build();
    assert_packets(
        &on(&node, web(), here_and_there(), &mk_config().build()),
        "pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080
         pod 10.0.1.9 -> 10.96.0.10:81/tcp = reject
         outside 203.0.113.2 -> 10.96.0.11:80/tcp = untouched
         # What the node sends is judged as it leaves, before it turns out to stay.
         node 192.168.0.1 -> 10.96.0.10:81/tcp = reject
         node 192.168.0.1 -> 10.96.0.11:80/tcp = drop",
    );
}

#[test]
fn without_a_usable_endpoint_anywhere_packets_are_refused() {
    for endpoints in [
        Endpoints::default(),
        mk_endpoints()
            .tcp("http")
            .unready("10.0.1.5:8080", "node-1")
            .build(),
        mk_endpoints()
            .tcp("other")
            .ready("10.0.1.5:8080", "node-1")
            .build(),
    ] {
        assert_packets(
            &one(exposed_web(), endpoints.clone(), &mk_config().build()),
            "pod 10.0.1.9 -> 10.96.0.10:80/tcp = reject
             outside 203.0.113.2 -> 198.51.100.1:80/tcp = reject
             outside 203.0.113.2 -> 192.0.2.1:80/tcp = reject
             outside 203.0.113.2 -> 192.168.0.1:30080/tcp = reject
             node 192.168.0.1 -> 192.168.0.1:30080/tcp = reject",
        );
        assert_packets(
            &one(
                exposed_web().external_local(),
                endpoints,
                &mk_config().build(),
            ),
            "pod 10.0.1.9 -> 192.0.2.1:80/tcp = reject
             outside 203.0.113.2 -> 192.168.0.1:30080/tcp = reject",
        );
    }
}

#[test]
fn an_internal_policy_local_drops_when_all_endpoints_are_elsewhere() {
    let config = mk_config().build();
    assert_packets(
        &one(web().internal_local(), here_and_there(), &config),
        "pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.1.5:8080
         node 192.168.0.1 -> 10.96.0.10:80/tcp = 10.0.1.5:8080 masqueraded",
    );
    assert_packets(
        &one(exposed_web().internal_local(), elsewhere(), &config),
        "pod 10.0.1.9 -> 10.96.0.10:80/tcp = drop
         node 192.168.0.1 -> 10.96.0.10:80/tcp = drop
         outside 203.0.113.2 -> 192.0.2.1:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded",
    );
}

#[test]
fn an_endpoint_that_reaches_itself_is_masqueraded_and_only_on_the_way_to_itself() {
    assert_packets(
        &one(web(), here_and_there(), &mk_config().build()),
        "pod 10.0.1.5 -> 10.96.0.10:80/tcp = 10.0.2.7:8080; 10.0.1.5:8080 masqueraded
         pod 10.0.1.6 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080",
    );
    // Packets from an endpoint on another node to itself do not return through this node.
    let cluster_cidr = mk_config().detect_by_source(&["10.0.0.0/16"]).build();
    assert_packets(
        &one(web(), here_and_there(), &cluster_cidr),
        "remote-pod 10.0.2.7 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080",
    );
}

#[test]
fn endpoints_that_go_away_serve_while_there_are_no_others() {
    let config = mk_config().build();
    let endpoints = mk_endpoints()
        .tcp("http")
        .draining("10.0.1.5:8080", "node-1")
        .draining("10.0.2.7:8080", "node-2");
    assert_packets(
        &one(web(), endpoints.clone().build(), &config),
        "pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080",
    );
    assert_packets(
        &one(
            web(),
            endpoints.ready("10.0.3.8:8080", "node-3").build(),
            &config,
        ),
        "pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.3.8:8080",
    );
}

/// A cluster whose Service range overlaps the network of its nodes assigns an address of a node.
#[test]
fn a_node_whose_own_address_a_service_was_given_stays_reachable() {
    let service = mk_service("shop/web")
        .cluster_ip("192.168.0.1")
        .port("http", 80);
    let dataplane = one(service, here_and_there(), &mk_config().build());
    assert_packets(
        &dataplane,
        "pod 10.0.1.9 -> 192.168.0.1:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080
         pod 10.0.1.9 -> 192.168.0.1:22/tcp = untouched
         outside 203.0.113.2 -> 192.168.0.1:6443/tcp = untouched",
    );
}

#[test]
fn a_client_whose_source_is_an_address_of_services_is_masqueraded() {
    let nothing = mk_config().detect_nothing();
    assert_packets(
        &one(web(), elsewhere(), &nothing.clone().build()),
        "node 10.96.0.10 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded
         node 10.96.0.11 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded
         node 192.168.0.1 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080",
    );
    assert_packets(
        &one(web(), elsewhere(), &nothing.without_service_cidrs().build()),
        "node 10.96.0.10 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080 masqueraded
         node 10.96.0.11 -> 10.96.0.10:80/tcp = 10.0.2.7:8080, 10.0.3.8:8080",
    );
}
