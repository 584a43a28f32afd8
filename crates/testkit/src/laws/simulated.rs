//! Laws that compare the verdicts of simulated rules with those of the dataplane.

use std::fmt::Display;

use dataplane::{Dataplane, Endpoints, Family, Node, Packet, Service, Verdict};

use super::honest_verdicts_do_not_depend_on_tenants;
use crate::Cluster;

/// How a backend's rules are rendered, and how a packet is simulated.
#[derive(Debug)]
pub struct Simulated<R> {
    /// Renders the rules of one family from nothing.
    pub render: fn(Family, &Dataplane) -> R,
    /// Returns where a packet goes, the first of its connection and of its client.
    pub simulate: fn(&R, &Node, &Packet) -> Verdict,
}

// === impl Simulated ===

impl<R: Display> Simulated<R> {
    /// The verdict on each of `packets`, in order.
    pub fn verdicts(&self, dataplane: &Dataplane, packets: &[Packet]) -> Vec<Verdict> {
        let rules = self.rules(dataplane);
        let verdict =
            |packet: &Packet| (self.simulate)(of_family(&rules, packet), dataplane.node(), packet);
        packets.iter().map(verdict).collect()
    }

    /// The rules send every packet where the dataplane says.
    pub fn every_packet_goes_where_the_dataplane_says(
        &self,
        cluster: &Cluster,
        packets: &[Packet],
    ) {
        let dataplane = cluster.compile();
        let rules = self.rules(&dataplane);
        for packet in packets {
            let rules = of_family(&rules, packet);
            let simulated = (self.simulate)(rules, &cluster.node, packet);
            let desired = dataplane.verdict(packet);
            assert_eq!(simulated, desired, "{packet}\n{dataplane}\n{rules}");
        }
    }

    /// Checks [`honest_verdicts_do_not_depend_on_tenants`] for the rules.
    pub fn honest_verdicts_do_not_depend_on_tenants(
        &self,
        cluster: &Cluster,
        tenants: &[(Service, Endpoints)],
        packets: &[Packet],
        seed: u64,
    ) {
        let judge = |dataplane: &Dataplane, packets: &[Packet]| self.verdicts(dataplane, packets);
        honest_verdicts_do_not_depend_on_tenants(cluster, tenants, packets, seed, judge);
    }

    fn rules(&self, dataplane: &Dataplane) -> [R; 2] {
        Family::ALL.map(|family| (self.render)(family, dataplane))
    }
}

fn of_family<'a, R>([ipv4, ipv6]: &'a [R; 2], packet: &Packet) -> &'a R {
    match Family::of(packet.destination) {
        Family::Ipv4 => ipv4,
        Family::Ipv6 => ipv6,
    }
}
