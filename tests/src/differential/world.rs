//! One of the two networks. They are identical except for the proxy on node 1.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use dataplane::{Family, Protocol};

use super::case::{Case, Origin};
use super::population::{Affinity, PLACES, Place, TARGETS};
use super::sight::{Seen, Sight};
use crate::network::{
    Namespace, Outcome, Plan, PlannedNode, Probe, Server, Topology, probe, start_server,
};

/// The outside clients. A client with session affinity connects in one question only, so every
/// question takes new clients.
pub(super) const CLIENTS: std::ops::RangeInclusive<u8> = 2..=240;

/// A network with servers in all possible places of endpoints.
#[derive(Debug)]
pub(super) struct World {
    topology: Topology,
}

/// The effort of an observation.
#[derive(Debug, Clone)]
pub(super) struct Effort {
    /// How long to wait before no answer counts as silence.
    pub(super) patience: Duration,
    /// The number of connections for each possible endpoint.
    pub(super) each: u32,
    /// The clients of cases with session affinity, with two connections each.
    pub(super) crowd: Vec<u8>,
}

// === impl World ===

impl World {
    pub(super) fn build() -> Result<World> {
        let node = |number: u8| PlannedNode {
            number,
            pods: PLACES
                .iter()
                .filter_map(|place| match place {
                    Place::Pod(node, pod) if *node == number => Some(*pod),
                    Place::Pod(..) | Place::Host(_) => None,
                })
                .chain([9])
                .collect(),
        };
        let topology = Topology::build(&Plan {
            nodes: [1, 2].map(node).into(),
            clients: CLIENTS.collect(),
            others: Vec::new(),
        })?;
        // Packets that no rule redirects loop between node and world until the world answers with
        // ICMP.
        topology.world().set_sysctls(&[
            ("net/ipv4/icmp_ratelimit", "0"),
            ("net/ipv6/icmp/ratelimit", "0"),
        ])?;
        Ok(World { topology })
    }

    /// Starts a server in all possible places of endpoints.
    pub(super) fn start_servers(&self) -> Result<Vec<Server>> {
        let servers = PLACES.iter().map(|place| {
            let inside = match place {
                Place::Pod(node, pod) => self.topology.pod(*node, *pod)?,
                Place::Host(node) => self.topology.node(*node)?,
            };
            let listen = Family::ALL
                .map(|family| TARGETS.map(|port| SocketAddr::new(place.address(family), port)));
            let name = format!("{place:?}").replace(' ', "");
            start_server(inside, &name, listen.as_flattened())
        });
        servers.collect()
    }

    /// Returns the node of the proxy.
    pub(super) fn node(&self) -> Result<&Namespace> {
        self.topology.node(1)
    }

    /// Observes `case`.
    pub(super) fn observe(&self, case: &Case, effort: &Effort) -> Result<Sight> {
        let inside = match (case.origin, case.origin.pod()) {
            (_, Some((node, pod))) => self.topology.pod(node, pod)?,
            (Origin::Outside(_), None) => self.topology.outside()?,
            (_, None) => self.node()?,
        };
        match (case.affinity, case.origin) {
            (Affinity::None, _) => {
                let count = effort.each * case.endpoints;
                let outcomes = ask(inside, case, effort, count)?;
                Ok(Sight::of(&outcomes, case.source()))
            }
            (Affinity::ClientIp, Origin::Outside(_)) => {
                let mut all = BTreeSet::new();
                for client in &effort.crowd {
                    let origin = Origin::Outside(*client);
                    let case = Case {
                        origin,
                        ..case.clone()
                    };
                    let mut outcomes = ask(inside, &case, effort, 2)?;
                    if let Some(destination) = case.then {
                        let case = Case {
                            destination,
                            ..case.clone()
                        };
                        outcomes.extend(ask(inside, &case, effort, 2)?);
                    }
                    let sight = Sight::of(&outcomes, case.source());
                    let answered = sight.has_answer();
                    if answered && !sight.is_steady() {
                        all.insert(Seen::Unsteady);
                    }
                    all.extend(sight.0);
                    // If the first client gets no answer, the others do not either.
                    if !answered {
                        break;
                    }
                }
                Ok(Sight(all))
            }
            (Affinity::ClientIp, _) => {
                let outcomes = ask(inside, case, effort, effort.each)?;
                let sight = Sight::of(&outcomes, case.source());
                Ok(match sight.is_steady() {
                    true => Sight([Seen::Steady].into()),
                    false => sight,
                })
            }
        }
    }

    /// Whether a pod of the node reaches `place` through `destination`.
    pub(super) fn is_sent_to(&self, destination: SocketAddr, place: Place) -> Result<bool> {
        let outcomes = probe(
            self.topology.pod(1, 9)?,
            &Probe {
                protocol: Protocol::Tcp,
                source: None,
                destination,
                deadline: Duration::from_millis(500),
            },
            1,
        )?;
        let expected = SocketAddr::new(place.address(Family::of(destination.ip())), TARGETS[0]);
        let sent =
            |outcome: &Outcome| matches!(outcome, Outcome::Answered { at, .. } if *at == expected);
        Ok(outcomes.iter().any(sent))
    }
}

/// Connects `count` times, at least twice; only twice if the first connection is not answered.
fn ask(inside: &Namespace, case: &Case, effort: &Effort, count: u32) -> Result<Vec<Outcome>> {
    let connection = Probe {
        protocol: case.protocol,
        source: case.source(),
        destination: case.destination,
        deadline: effort.patience,
    };
    let mut outcomes = probe(inside, &connection, 1)?;
    let answered = matches!(outcomes[..], [Outcome::Answered { .. }]);
    let more = if answered { count.max(2) - 1 } else { 1 };
    outcomes.extend(probe(inside, &connection, more)?);
    Ok(outcomes)
}
