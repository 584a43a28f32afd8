//! Properties of every cluster and every packet.

use std::collections::BTreeSet;
use std::sync::Arc;

use dataplane::{
    Dataplane, Endpoints, Family, FrontendKind, ServiceRules, Target, TrafficPolicy, Verdict,
    compile,
};
use proptest::prelude::*;
use proptest::sample::Index;
use testkit::{Cluster, clusters, clusters_with_tenants, laws, packets};

use crate::dataplane_of;
use crate::packet_line::parse_packet;

/// A cluster and packets within it.
fn clusters_with_packets() -> impl Strategy<Value = (Cluster, Vec<dataplane::Packet>)> {
    clusters().prop_flat_map(|cluster| {
        let packets = proptest::collection::vec(packets(&cluster), 1..20);
        (Just(cluster), packets)
    })
}

fn rules_of(cluster: &Cluster) -> Vec<ServiceRules> {
    let services = cluster.services.iter();
    services
        .map(|(service, endpoints)| compile(service, endpoints, &cluster.node, &cluster.config))
        .collect()
}

fn known_targets(cluster: &Cluster) -> BTreeSet<Target> {
    let lists = cluster
        .services
        .iter()
        .flat_map(|(_, endpoints)| endpoints.by_port.values());
    lists
        .flatten()
        .map(|endpoint| Target {
            address: endpoint.address,
            port: endpoint.port,
        })
        .collect()
}

fn assert_same(one: &Dataplane, other: &Dataplane) {
    assert_eq!(one.services(), other.services());
    assert_eq!(one.frontends(), other.frontends());
    assert_eq!(one.cluster_ips(), other.cluster_ips());
    assert_eq!(one.hairpins(), other.hairpins());
    assert_eq!(one.disputes(), other.disputes());
    assert_eq!(one.to_string(), other.to_string());
}

proptest! {
    #[test]
    fn rules_do_not_depend_on_the_order_or_repetition_of_endpoints(
        cluster in clusters(),
        places in proptest::collection::vec(any::<Index>(), 1..12),
    ) {
        for (service, endpoints) in &cluster.services {
            let mut disordered: Endpoints = endpoints.clone();
            for list in disordered.by_port.values_mut().filter(|list| !list.is_empty()) {
                list.push(list[0].clone());
                for pair in places.windows(2) {
                    let (a, b) = (pair[0].index(list.len()), pair[1].index(list.len()));
                    list.swap(a, b);
                }
            }
            let rules = compile(service, endpoints, &cluster.node, &cluster.config);
            let others = compile(service, &disordered, &cluster.node, &cluster.config);
            prop_assert_eq!(rules, others);
        }
    }

    #[test]
    fn rules_are_sorted_and_of_one_family_each(cluster in clusters()) {
        for rules in rules_of(&cluster) {
            prop_assert!(rules.frontends.is_sorted_by(|(a, _), (b, _)| a < b));
            prop_assert!(rules.cluster_ips.is_sorted_by(|a, b| a < b));
            prop_assert!(rules.hairpins.is_sorted_by(|a, b| a < b));
            for (key, frontend) in &rules.frontends {
                for list in [&frontend.cluster, &frontend.local] {
                    prop_assert!(list.is_sorted_by(|a, b| a < b));
                    prop_assert!(list.iter().all(|target| Family::of(target.address) == key.family()));
                    prop_assert!(frontend.has_endpoints || list.is_empty());
                }
                for range in frontend.source_ranges.iter() {
                    prop_assert_eq!(frontend.kind, FrontendKind::LoadBalancerIp);
                    prop_assert_eq!(Family::of(range.addr()), key.family());
                }
                match frontend.policy {
                    TrafficPolicy::Cluster => prop_assert!(frontend.local.is_empty()),
                    TrafficPolicy::Local if frontend.is_external() => {}
                    TrafficPolicy::Local => prop_assert!(frontend.cluster.is_empty()),
                }
            }
        }
    }

    #[test]
    fn every_packet_has_a_verdict_and_goes_to_an_endpoint_if_anywhere(
        (cluster, packets) in clusters_with_packets(),
    ) {
        let dataplane = cluster.compile();
        let known = known_targets(&cluster);
        for packet in packets {
            let Verdict::Deliver(choices) = dataplane.verdict(&packet) else { continue };
            prop_assert!(!choices.is_empty());
            prop_assert!(choices.is_sorted_by(|a, b| a.target < b.target));
            for choice in choices {
                prop_assert!(known.contains(&choice.target), "{}", choice);
                prop_assert_eq!(choice.weight, 1);
                prop_assert_eq!(Family::of(choice.target.address), Family::of(packet.destination));
            }
        }
    }

    #[test]
    fn a_packet_prints_as_what_it_is((_, packets) in clusters_with_packets()) {
        for packet in packets {
            prop_assert_eq!(parse_packet(&packet.to_string()), packet);
        }
    }

    #[test]
    fn setting_what_stands_changes_nothing_and_keeps_what_is_shared(cluster in clusters()) {
        let before = cluster.compile();
        let mut after = before.clone();
        for rules in rules_of(&cluster) {
            prop_assert!(!after.set(Arc::new(rules)));
        }
        for (key, rules) in before.services().iter() {
            let other = after.services().get(key).expect("it is still there");
            prop_assert!(Arc::ptr_eq(rules, other));
        }
    }

    /// Services are added in any order, some first with outdated rules, some twice, and some are
    /// removed again: only the final state counts.
    #[test]
    fn a_dataplane_does_not_depend_on_its_history(
        (cluster, shuffled) in clusters().prop_flat_map(|cluster| {
            let services = cluster.services.clone();
            (Just(cluster), Just(services).prop_shuffle())
        }),
        past in clusters(),
        node_first: bool,
    ) {
        let desired = cluster.compile();
        let mut dataplane = dataplane_of(&past.node, &past.config, &past.services);
        if node_first {
            dataplane.set_node(Arc::clone(&cluster.node), Arc::clone(&cluster.config));
        }
        for (service, endpoints) in shuffled {
            let rules = compile(&service, &endpoints, &cluster.node, &cluster.config);
            dataplane.set(Arc::new(rules));
        }
        for (service, _) in &past.services {
            if desired.services().get(&service.key).is_none() {
                prop_assert!(dataplane.remove(&service.key));
            }
        }
        dataplane.set_node(Arc::clone(&cluster.node), Arc::clone(&cluster.config));
        assert_same(&dataplane, &desired);
    }

    #[test]
    fn honest_verdicts_do_not_depend_on_tenants(
        (cluster, tenants, packets) in clusters_with_tenants().prop_flat_map(|(cluster, tenants)| {
            let packets = proptest::collection::vec(packets(&cluster), 1..40);
            (Just(cluster), Just(tenants), packets)
        }),
        seed: u64,
    ) {
        let decide_claim = |dataplane: &Dataplane, packets: &[dataplane::Packet]| -> Vec<Verdict> {
            packets.iter().map(|packet| dataplane.verdict(packet)).collect()
        };
        laws::honest_verdicts_do_not_depend_on_tenants(&cluster, &tenants, &packets, seed, decide_claim);
    }

    /// The same after a change of the node's addresses and of the ranges.
    #[test]
    fn what_tenants_claim_does_not_depend_on_history(
        (cluster, tenants) in clusters_with_tenants(), past in clusters(), seed: u64,
    ) {
        let mut services = [&cluster.services[..], &tenants].concat();
        let desired = dataplane_of(&cluster.node, &cluster.config, &services);
        testkit::Seeded::new(seed).shuffle(&mut services);
        let mut dataplane = dataplane_of(&past.node, &past.config, &[]);
        for (service, endpoints) in services {
            let rules = compile(&service, &endpoints, &cluster.node, &cluster.config);
            dataplane.set(Arc::new(rules));
        }
        dataplane.set_node(Arc::clone(&cluster.node), Arc::clone(&cluster.config));
        assert_same(&dataplane, &desired);
        prop_assert_eq!(dataplane.disputes().rejections(), desired.disputes().rejections());
        for (service, _) in &tenants {
            dataplane.remove(&service.key);
        }
        assert_same(&dataplane, &cluster.compile());
    }
}
