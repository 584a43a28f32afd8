//! Generates the endpoints of one Service port.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dataplane::{Endpoint, Family, Hints, Readiness};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use crate::{address_plan as plan, port};

/// Which hints of a port's endpoints have been written so far.
#[derive(Debug, Clone, Copy)]
enum Hinting {
    Nothing,
    Some,
    Zones,
    ZonesAndNodes,
}

/// A list as a source delivers it: sorted, with distinct addresses and ports, both families mixed.
pub(crate) fn endpoint_list() -> impl Strategy<Value = Vec<Endpoint>> {
    let hinting = prop_oneof![
        4 => Just(Hinting::Nothing),
        1 => Just(Hinting::Some),
        1 => Just(Hinting::Zones),
        1 => Just(Hinting::ZonesAndNodes),
    ];
    (hinting, vec((endpoints(), any::<bool>()), 0..7)).prop_map(|(hinting, endpoints)| {
        let mut list = BTreeMap::new();
        for (mut endpoint, hinted) in endpoints {
            match hinting {
                Hinting::Nothing => endpoint.hints = Hints::default(),
                Hinting::Some if !hinted => endpoint.hints = Hints::default(),
                Hinting::Zones => endpoint.hints.nodes = BTreeSet::new(),
                Hinting::Some | Hinting::ZonesAndNodes => {}
            }
            list.insert((endpoint.address, endpoint.port), endpoint);
        }
        list.into_values().collect()
    })
}

/// On nodes 1 to 3, in the pod network or the node's own, with hints of both kinds.
fn endpoints() -> impl Strategy<Value = Endpoint> {
    let number = select(vec![8080, 8443]);
    (
        1..=3u8,
        prop_oneof![6 => (2..=6u8).prop_map(Some), 1 => Just(None)],
        select(Family::ALL.to_vec()),
        number,
        readiness(),
        proptest::bool::weighted(0.9),
        (names(["a", "b"]), names(["node-1", "node-2"])),
    )
        .prop_map(
            |(node, pod, family, number, readiness, placed, (zones, nodes))| Endpoint {
                address: match pod {
                    Some(host) => plan::pod_address(node, host, family),
                    None => plan::node_address(node, family),
                },
                port: port(number),
                readiness,
                node: placed.then(|| plan::node_name(node)),
                hints: Hints { zones, nodes },
            },
        )
}

fn readiness() -> impl Strategy<Value = Readiness> {
    let any =
        (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(ready, serving, terminating)| {
            Readiness {
                ready,
                serving,
                terminating,
            }
        });
    let draining = Readiness {
        ready: false,
        serving: true,
        terminating: true,
    };
    prop_oneof![4 => Just(Readiness::READY), 2 => Just(draining), 1 => any]
}

fn names(all: [&'static str; 2]) -> impl Strategy<Value = BTreeSet<Arc<str>>> {
    subsequence(all.to_vec(), 1..=2).prop_map(|names| names.into_iter().map(Arc::from).collect())
}
