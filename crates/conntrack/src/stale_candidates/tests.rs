use super::*;

use std::net::Ipv4Addr;

use dataplane::{Node, compile};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

/// Passes that keep failing while Services come and go must not exhaust the node's memory.
#[test]
fn what_is_remembered_is_bounded_and_beyond_it_everything_is_looked_at() {
    let first = Ipv4Addr::new(172, 20, 0, 1).to_bits();
    let addresses = (first..).take(MOST_REMEMBERED + 1);
    let node = Node {
        local_addresses: addresses.map(|a| Ipv4Addr::from_bits(a).into()).collect(),
        ..mk_node(1).build().as_ref().clone()
    };
    let (node, config) = (Arc::new(node), mk_config().node_ports_anywhere().build());
    let service = mk_service("shop/quic")
        .cluster_ip("10.96.0.10")
        .udp("quic", 443)
        .node_port(30443)
        .build();
    let without = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    let mut with = without.clone();
    let rules = compile(&service, &mk_endpoints().build(), &node, &config);
    with.set(Arc::new(rules));

    let mut stale_candidates = StaleCandidates::none(Family::Ipv4);
    stale_candidates.add_step(&with, &without);
    assert_eq!(stale_candidates.left.len(), MOST_REMEMBERED);
    assert_eq!(stale_candidates.protocols, Protocol::ALL.into());
    assert_eq!(stale_candidates.memory, Memory::Patchy);
}
