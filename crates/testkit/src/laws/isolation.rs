//! The law that Services of one namespace do not affect those of another.

use std::sync::Arc;

use dataplane::{
    Dataplane, Endpoints, Family, FrontendKind, Packet, Service, ServiceRules, Verdict, compile,
};

use crate::{Cluster, Seeded};

/// Verdicts on packets to an honest Service do not depend on objects of other namespaces, in
/// whatever order `tenants` are added and removed, and whether before or after the Services they
/// attack. `judge` returns the verdicts on packets.
///
/// There are two exceptions. External IPs are not assigned by any authority: if two Services have
/// the same one, and no better claim, their names decide. And packets of an endpoint to itself are
/// masqueraded if any Service has that endpoint on this node.
pub fn honest_verdicts_do_not_depend_on_tenants(
    cluster: &Cluster,
    tenants: &[(Service, Endpoints)],
    packets: &[Packet],
    seed: u64,
    judge: impl Fn(&Dataplane, &[Packet]) -> Vec<Verdict>,
) {
    let honest = cluster.compile();
    let packets: Vec<Packet> = packets
        .iter()
        .filter(|packet| is_protected(packet, cluster, &honest, tenants))
        .cloned()
        .collect();
    let expected = normalised(&packets, judge(&honest, &packets));
    let mut seeded = Seeded::new(seed);
    let mut arrivals: Vec<Arc<ServiceRules>> = cluster
        .services
        .iter()
        .chain(tenants)
        .map(|(service, endpoints)| {
            Arc::new(compile(service, endpoints, &cluster.node, &cluster.config))
        })
        .collect();
    seeded.shuffle(&mut arrivals);
    let mut dataplane = Dataplane::new(Arc::clone(&cluster.node), Arc::clone(&cluster.config));
    for rules in arrivals {
        dataplane.set(rules);
    }
    let mut leaving: Vec<&Service> = tenants.iter().map(|(service, _)| service).collect();
    seeded.shuffle(&mut leaving);
    let mut leaving = leaving.into_iter();
    loop {
        let seen = normalised(&packets, judge(&dataplane, &packets));
        for ((packet, seen), expected) in packets.iter().zip(&seen).zip(&expected) {
            assert_eq!(
                seen, expected,
                "{packet}: left is what happens beside tenants, right what should\n{dataplane}"
            );
        }
        let Some(service) = leaving.next() else { break };
        dataplane.remove(&service.key);
    }
}

/// Whether the packet is to an honest Service, at an address that no tenant has an equally good
/// claim to.
fn is_protected(
    packet: &Packet,
    cluster: &Cluster,
    honest: &Dataplane,
    tenants: &[(Service, Endpoints)],
) -> bool {
    let address = packet.destination;
    let pods = cluster.config.local_detection.source(Family::of(address));
    let is_given = honest.cluster_ips().get(&address).is_some()
        || cluster.node.local_addresses.contains(&address)
        || pods.is_some_and(|range| range.contains(&address));
    match honest.frontend_at(address, packet.protocol, packet.port) {
        _ if is_given => true,
        None => false,
        Some(frontend) => {
            frontend.kind != FrontendKind::ExternalIp
                || !tenants.iter().any(|(service, _)| {
                    service.external_ips.contains(&address)
                        || service.load_balancer_ips.contains(&address)
                })
        }
    }
}

fn normalised(packets: &[Packet], mut verdicts: Vec<Verdict>) -> Vec<Verdict> {
    for (packet, verdict) in packets.iter().zip(&mut verdicts) {
        let Verdict::Deliver(choices) = verdict else {
            continue;
        };
        for choice in choices {
            choice.masquerade |= choice.target.address == packet.source;
        }
    }
    verdicts
}
