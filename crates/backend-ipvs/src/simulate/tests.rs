use std::sync::Arc;
use std::time::Duration;

use backend::{Backend, Rendered};
use dataplane::{Dataplane, Family, FrontendKey, Origin, Packet, Protocol, compile};
use netlink::nf_tables::SetWriter;
use nftables_model::{AffinityTimeout, Memory};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service, port};

use super::simulate_next;
use crate::chains::affinity::AffinityGroup;
use crate::full_affinity_maps::find;
use crate::kernel::Ipvs;
use crate::layout::SetName;

/// A public Service receives connections from so many addresses that they fill the affinity map of
/// its namespace and the shared one. Clients with affinity to a Service of another namespace keep
/// their endpoints, and new clients of that Service get affinity.
#[test]
fn t77_a_service_that_is_flooded_takes_affinity_from_no_other() {
    let timeout = AffinityTimeout::covering(Duration::from_secs(10_800));
    let [shop, game] = ["shop", "game"].map(|namespace| AffinityGroup::of(namespace, timeout));
    assert_ne!(shop.clients(), game.clients());
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for (name, address) in [("shop/cart", "10.96.0.10"), ("game/lobby", "10.96.0.11")] {
        let service = mk_service(name)
            .cluster_ip(address)
            .port("http", 80)
            .client_ip_affinity(Duration::from_secs(10_800));
        let endpoints = mk_endpoints()
            .tcp("http")
            .ready("10.0.1.5:8080", "node-1")
            .ready("10.0.2.7:8080", "node-2");
        dataplane.set(compile(&service.build(), &endpoints.build(), &node, &config).into());
    }
    let mut rules = Ipvs::detached(Family::Ipv4).render(&dataplane, &Rendered::default());
    // Small enough for a test to fill.
    for set in rules.table.sets.values_mut() {
        let mut small = (*set.set).clone();
        if let SetWriter::Packets { capacity } = &mut small.writer {
            *capacity = 10;
        }
        set.set = Arc::new(small);
    }
    let mut memory = Memory::default();
    let mut go = |source: String, address: &str, number| {
        let packet = Packet {
            origin: Origin::Outside {
                interface: "eth0".into(),
            },
            source: source.parse().expect("an address"),
            destination: address.parse().expect("an address"),
            protocol: Protocol::Tcp,
            port: port(80),
        };
        simulate_next(&rules, &node, &packet, &mut memory, number).to_string()
    };
    let cart = "10.96.0.10";
    let before = go("203.0.113.2".into(), cart, 0);
    for client in 0..100 {
        go(format!("198.18.0.{client}"), "10.96.0.11", 0);
    }
    assert_eq!(go("203.0.113.2".into(), cart, 1), before);
    let new = go("203.0.113.3".into(), cart, 1);
    assert_eq!(go("203.0.113.3".into(), cart, 0), new);
    assert_ne!(new, before, "another number chose its endpoint");
    let [first, second] = [0, 1].map(|number| go("198.18.0.99".into(), "10.96.0.11", number));
    assert_ne!(first, second, "there was no room for the last client");

    // The kernel names the Service.
    let marks: Vec<_> = memory.keys(SetName::FullAffinityMaps.as_str()).collect();
    let owners = rules.table.sets[SetName::Owners.as_str()].elements.iter();
    let owners = owners.filter(|(mark, _)| marks.contains(mark));
    let owners = owners.map(|(mark, hash)| (mark.clone(), hash.clone()));
    let lobby = FrontendKey::Address {
        address: "10.96.0.11".parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: port(80),
    };
    assert_eq!(find(Family::Ipv4, &dataplane, owners), [lobby]);
}
