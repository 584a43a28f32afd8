//! Generates successive desired states of one node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dataplane::{Config, Dataplane, Endpoints, Packet, Service, ServiceKey, compile};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::{Cluster, clusters, packets};

/// A change of the desired state.
#[derive(Debug, Clone)]
struct Step {
    /// The cluster that changed Services are taken from.
    cluster: Cluster,
    /// Which Services change, by position: each gets its state from that cluster, or is removed.
    changed: [bool; 6],
    /// The new configuration, if it changes.
    config: Option<Arc<Config>>,
}

/// Generates between two and `most` successive states. Each is derived from the previous one as by
/// events of a source: a few Services are added, removed or changed, and sometimes the
/// configuration is; the rest is shared.
///
/// # Panics
///
/// If `most` is less than 2.
pub fn histories(most: usize) -> impl Strategy<Value = Vec<Dataplane>> {
    (clusters(), vec(steps(), 1..most)).prop_map(|(cluster, steps)| {
        let node = Arc::clone(&cluster.node);
        let mut config = Arc::clone(&cluster.config);
        let mut services: BTreeMap<ServiceKey, (Service, Endpoints)> = by_key(&cluster);
        let mut dataplane = cluster.compile();
        let mut history = vec![dataplane.clone()];
        for step in steps {
            let theirs = by_key(&step.cluster);
            let names: Vec<ServiceKey> = services.keys().chain(theirs.keys()).cloned().collect();
            for (service, changed) in names.iter().zip(step.changed.iter().cycle()) {
                match theirs.get(service) {
                    _ if !changed => {}
                    Some(other) => drop(services.insert(service.clone(), other.clone())),
                    None => drop(services.remove(service)),
                }
            }
            if let Some(other) = step.config {
                config = other;
                dataplane.set_node(Arc::clone(&node), Arc::clone(&config));
            }
            for service in &names {
                match services.get(service) {
                    Some((service, endpoints)) => {
                        dataplane.set(Arc::new(compile(service, endpoints, &node, &config)))
                    }
                    None => dataplane.remove(service),
                };
            }
            history.push(dataplane.clone());
        }
        history
    })
}

/// Generates two states of one node with one configuration, and up to `count` packets that matter in
/// each. About half of the Services stay; the others are changed or removed, or come.
pub fn changes(count: usize) -> impl Strategy<Value = (Cluster, Cluster, Vec<Packet>)> {
    let both = (clusters(), steps()).prop_map(|(before, step)| {
        let (mut services, theirs) = (by_key(&before), by_key(&step.cluster));
        let names: BTreeSet<ServiceKey> = services.keys().chain(theirs.keys()).cloned().collect();
        for (service, _) in names
            .iter()
            .zip(step.changed)
            .filter(|(_, changed)| *changed)
        {
            match theirs.get(service) {
                Some(other) => drop(services.insert(service.clone(), other.clone())),
                None => drop(services.remove(service)),
            }
        }
        let after = Cluster {
            services: services.into_values().collect(),
            ..before.clone()
        };
        (before, after)
    });
    both.prop_flat_map(move |(before, after)| {
        let of = |cluster| vec(packets(cluster), 1..=count);
        let packets = (of(&before), of(&after)).prop_map(|(some, others)| [some, others].concat());
        (Just(before), Just(after), packets)
    })
}

fn steps() -> impl Strategy<Value = Step> {
    let new_config = proptest::bool::weighted(0.15);
    (clusters(), any::<[bool; 6]>(), new_config).prop_map(|(cluster, changed, new_config)| Step {
        config: new_config.then(|| Arc::clone(&cluster.config)),
        cluster,
        changed,
    })
}

fn by_key(cluster: &Cluster) -> BTreeMap<ServiceKey, (Service, Endpoints)> {
    let services = cluster.services.iter().cloned();
    services
        .map(|(service, endpoints)| (service.key.clone(), (service, endpoints)))
        .collect()
}
