//! Flows of honest Services beside hostile tenants.

use super::*;

use std::sync::Arc;

use dataplane::{Endpoints, Packet, Service, Verdict, compile};
use netlink::conntrack::{Status, Tuple};
use proptest::prelude::*;
use testkit::{Cluster, Seeded, cases, laws, questions_beside_tenants};

/// The flows that packets to honest Services may have: to each endpoint that may answer them, or past
/// all rules where no Service has the destination.
fn flows(honest: &Dataplane, packets: &[Packet]) -> Vec<Flow> {
    let mut flows = Vec::new();
    for packet in packets {
        let destination = SocketAddr::new(packet.destination, packet.port.get());
        let source = SocketAddr::new(packet.source, 4000);
        let mut add = |answerer: SocketAddr, status: &[Status]| {
            flows.push(Flow {
                protocol: packet.protocol,
                original: Tuple {
                    source,
                    destination,
                },
                reply: Tuple {
                    source: answerer,
                    destination: source,
                },
                status: Status::of(status),
                zone: 0,
                id: 1,
            });
        };
        match honest.frontend_at(packet.destination, packet.protocol, packet.port) {
            Some(frontend) => {
                for target in frontend.serving.iter() {
                    let answerer = SocketAddr::new(target.address, target.port.get());
                    add(answerer, &[Status::DST_NAT]);
                    add(answerer, &[Status::DST_NAT, Status::SEEN_REPLY]);
                }
            }
            None if honest.verdict(packet) == Verdict::Untouched => {
                add(destination, &[Status::SEEN_REPLY]);
            }
            None => {}
        }
    }
    flows
}

/// The states while tenants' Services come, lose their endpoints and go, in any order.
fn history(cluster: &Cluster, tenants: &[(Service, Endpoints)], seed: u64) -> Vec<Dataplane> {
    let mut seeded = Seeded::new(seed);
    let mut tenants: Vec<_> = tenants.iter().collect();
    let mut dataplane = cluster.compile();
    let mut history = vec![dataplane.clone()];
    let nothing = Endpoints::default();
    for has_endpoints in [true, false] {
        seeded.shuffle(&mut tenants);
        for (service, endpoints) in &tenants {
            let endpoints = if has_endpoints { endpoints } else { &nothing };
            let rules = compile(service, endpoints, &cluster.node, &cluster.config);
            dataplane.set(Arc::new(rules));
            history.push(dataplane.clone());
        }
    }
    seeded.shuffle(&mut tenants);
    for (service, _) in tenants {
        dataplane.remove(&service.key);
        history.push(dataplane.clone());
    }
    history
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(100)))]

    /// Failure story T351: at rest, as after a start of the agent, and at each change.
    #[test]
    fn t351_no_flow_of_an_honest_service_is_stale_because_of_tenants(
        (cluster, tenants, mut packets) in questions_beside_tenants(30), seed: u64,
    ) {
        let history = history(&cluster, &tenants, seed);
        let honest = &history[0];
        packets.retain(|packet| laws::is_protected(packet, &cluster, honest, &tenants));
        let flows = flows(honest, &packets);
        for family in Family::ALL {
            let mut of_changes = StaleCandidates::none(family);
            let of_start = StaleCandidates::everything(family);
            for step in history.windows(2) {
                let [before, after] = step else { continue };
                of_changes.add_step(before, after);
                for candidates in [&of_changes, &of_start] {
                    let stale_flows = StaleFlows::compile(candidates, after);
                    let of_family = |flow: &&Flow| {
                        Family::of(flow.original.destination.ip()) == family
                    };
                    for flow in flows.iter().filter(of_family) {
                        prop_assert!(!stale_flows.is_stale(flow), "{:?} beside\n{}", flow, after);
                    }
                }
            }
        }
    }
}
