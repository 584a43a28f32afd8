//! The rules, simulated, send every packet where the dataplane says it may go.

use std::sync::Arc;

use backend::{Backend, Rendered};
use backend_iptables::{Iptables, Rules, simulate};
use dataplane::{Dataplane, Family, Packet, Verdict};
use proptest::prelude::*;
use testkit::{Cluster, clusters, clusters_with_tenants, laws, packets};
use xtables::Variant;

fn questions() -> impl Strategy<Value = (Cluster, Vec<Packet>)> {
    clusters().prop_flat_map(|cluster| {
        let packets = proptest::collection::vec(packets(&cluster), 1..24);
        (Just(cluster), packets)
    })
}

fn backend(family: Family) -> Iptables {
    Iptables::detached(family, Variant::NfTables)
}

fn render(family: Family, dataplane: &Dataplane) -> Rules {
    backend(family).render(dataplane, &Rendered::default())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn every_packet_goes_where_the_dataplane_says((cluster, packets) in questions()) {
        let dataplane = cluster.compile();
        let rules = Family::ALL.map(|family| render(family, &dataplane));
        for packet in packets {
            let rules = match Family::of(packet.destination) {
                Family::Ipv4 => &rules[0],
                Family::Ipv6 => &rules[1],
            };
            let simulated = simulate(rules, &cluster.node, &packet);
            prop_assert_eq!(&simulated, &dataplane.verdict(&packet), "{}\n{}\n{}", packet, dataplane, rules);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn rendering_in_steps_gives_what_rendering_at_once_gives(
        cluster in clusters(), other in clusters(), order in any::<prop::sample::Index>(),
    ) {
        let whole = cluster.compile();
        for family in Family::ALL {
            let backend = backend(family);
            let mut dataplane = Dataplane::new(Arc::clone(&cluster.node), Arc::clone(&cluster.config));
            let mut rendered = Rendered::default();
            // What was there before and goes one after the other.
            let strange = other.compile();
            for (_, rules) in strange.services().iter() {
                dataplane.set(Arc::clone(rules));
            }
            let strangers: Vec<_> = strange.services().iter().map(|(key, _)| key.clone()).collect();
            let services: Vec<_> = whole.services().iter().map(|(_, rules)| Arc::clone(rules)).collect();
            let start = if services.is_empty() { 0 } else { order.index(services.len()) };
            let mut step = |dataplane: &Dataplane| {
                let rules = backend.render(dataplane, &rendered);
                rendered = Rendered { dataplane: dataplane.clone(), rules };
            };
            step(&dataplane);
            for service in strangers.iter().filter(|key| whole.services().get(key).is_none()) {
                dataplane.remove(service);
                step(&dataplane);
            }
            for rules in services[start..].iter().chain(&services[..start]) {
                dataplane.set(Arc::clone(rules));
                step(&dataplane);
            }
            let rules = backend.render(&whole, &rendered);
            prop_assert_eq!(rules.to_string(), render(family, &whole).to_string());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn honest_verdicts_do_not_depend_on_tenants(
        (cluster, tenants, packets) in clusters_with_tenants().prop_flat_map(|(cluster, tenants)| {
            let packets = proptest::collection::vec(packets(&cluster), 1..40);
            (Just(cluster), Just(tenants), packets)
        }),
        seed: u64,
    ) {
        let judge = |dataplane: &Dataplane, packets: &[Packet]| -> Vec<Verdict> {
            let rules = Family::ALL.map(|family| render(family, dataplane));
            let verdict = |packet: &Packet| match Family::of(packet.destination) {
                Family::Ipv4 => simulate(&rules[0], &cluster.node, packet),
                Family::Ipv6 => simulate(&rules[1], &cluster.node, packet),
            };
            packets.iter().map(verdict).collect()
        };
        laws::honest_verdicts_do_not_depend_on_tenants(&cluster, &tenants, &packets, seed, judge);
    }
}
