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
    let expected = all_normalised(&packets, judge(&honest, &packets));
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
        let seen = all_normalised(&packets, judge(&dataplane, &packets));
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

/// What happens to packets to honest Services, which no change of a tenant's objects may alter at any
/// of its steps. The exceptions are those of [`honest_verdicts_do_not_depend_on_tenants`].
#[derive(Debug)]
pub struct HonestVerdicts(Vec<(Packet, Verdict)>);

// === impl HonestVerdicts ===

impl HonestVerdicts {
    /// The verdicts of `judge` on those of the packets that no tenant may have, while there are no
    /// tenants.
    pub fn of(
        cluster: &Cluster,
        tenants: &[(Service, Endpoints)],
        packets: &[Packet],
        judge: impl Fn(&Packet) -> Verdict,
    ) -> HonestVerdicts {
        let honest = cluster.compile();
        let packets = packets.iter();
        let protected = packets.filter(|packet| is_protected(packet, cluster, &honest, tenants));
        HonestVerdicts(
            protected
                .map(|packet| (packet.clone(), normalised(packet, judge(packet))))
                .collect(),
        )
    }

    /// Checks that the verdicts of `judge` are still these.
    ///
    /// # Panics
    ///
    /// If one is not.
    pub fn expect(&self, judge: impl Fn(&Packet) -> Verdict) {
        for (packet, expected) in &self.0 {
            assert_eq!(
                normalised(packet, judge(packet)),
                *expected,
                "left is what happens to {packet} while tenants' objects come and go"
            );
        }
    }
}

/// Whether the packet is to an honest Service, or to none, at an address that no tenant has an
/// equally good claim to. `honest` is the `cluster` without tenants.
pub fn is_protected(
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

fn all_normalised(packets: &[Packet], verdicts: Vec<Verdict>) -> Vec<Verdict> {
    let verdicts = packets.iter().zip(verdicts);
    verdicts
        .map(|(packet, verdict)| normalised(packet, verdict))
        .collect()
}

fn normalised(packet: &Packet, mut verdict: Verdict) -> Verdict {
    if let Verdict::Deliver(choices) = &mut verdict {
        for choice in choices {
            choice.masquerade |= choice.target.address == packet.source;
        }
    }
    verdict
}
