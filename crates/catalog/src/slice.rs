//! What is kept of an EndpointSlice, and how slices of one Service become one list.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use dataplane::{Endpoint, EndpointPort, Endpoints, Hints, Port, Readiness, ServiceKey};
use smallvec::SmallVec;

#[cfg(test)]
mod tests;

/// Holds what is kept of one EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slice {
    /// The Service it belongs to.
    pub(crate) service: ServiceKey,
    /// When the change happened that this content answers.
    pub(crate) trigger: Option<SystemTime>,
    /// Its ports, in order and each once; shared with all that say the same.
    pub(crate) ports: Arc<[SlicePort]>,
    /// Its endpoints, in order, so that a slice which was only shuffled is equal.
    pub(crate) endpoints: Box<[SliceEndpoint]>,
}

/// Holds one port of a slice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlicePort {
    pub(crate) name: EndpointPort,
    pub(crate) port: Port,
}

/// Holds one endpoint of a slice; it serves every port of the slice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SliceEndpoint {
    pub(crate) address: IpAddr,
    pub(crate) readiness: Readiness,
    /// Shared with all that say the same; `None` where nothing is said.
    pub(crate) placement: Option<Arc<Placement>>,
}

/// Where an endpoint is, and for whom it is meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Placement {
    pub(crate) node: Option<Arc<str>>,
    pub(crate) hints: Hints,
}

/// The names of slices of one Service, sorted: one is all that most have.
pub(crate) type SliceNames = SmallVec<[Arc<str>; 1]>;

/// Which endpoints to merge.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Extent<'a> {
    /// All.
    Everything,
    /// Those with one of these addresses.
    Addresses(&'a BTreeSet<IpAddr>),
}

/// The endpoints of all `slices` together.
///
/// An address and port that is there more than once (in several slices while a controller moves
/// it, for two pods while an IP address is reused) is taken in its best version: not terminating
/// before terminating (kubernetes#135593), then ready, then serving. What still is equal is
/// decided by content, so that neither the order in which slices arrived nor how endpoints are
/// spread over them can be seen in the result.
pub(crate) fn merge<'a>(
    slices: impl IntoIterator<Item = &'a Slice>,
    extent: Extent<'_>,
) -> Endpoints {
    let mut best: BTreeMap<&EndpointPort, BTreeMap<(IpAddr, Port), &SliceEndpoint>> =
        BTreeMap::new();
    for slice in slices {
        let endpoints: Vec<&SliceEndpoint> = match extent {
            Extent::Everything => slice.endpoints.iter().collect(),
            Extent::Addresses(addresses) => slice.at(addresses).collect(),
        };
        if endpoints.is_empty() {
            continue;
        }
        for SlicePort { name, port } in &*slice.ports {
            let list = best.entry(name).or_default();
            for endpoint in &endpoints {
                list.entry((endpoint.address, *port))
                    .and_modify(|known| *known = (*known).better(endpoint))
                    .or_insert(endpoint);
            }
        }
    }
    let by_port = best
        .into_iter()
        .map(|(name, list)| {
            let list = list
                .into_iter()
                .map(|((_, port), endpoint)| endpoint.at_port(port))
                .collect();
            (name.clone(), list)
        })
        .collect();
    Endpoints { by_port }
}

/// The addresses at which two versions of a slice can differ for their Service.
pub(crate) fn differing(before: Option<&Slice>, after: Option<&Slice>) -> BTreeSet<IpAddr> {
    let same_frame = match (before, after) {
        (Some(before), Some(after)) => {
            before.service == after.service && before.ports == after.ports
        }
        _ => false,
    };
    let (before, after) = (endpoints_of(before), endpoints_of(after));
    if same_frame {
        before
            .symmetric_difference(&after)
            .map(|endpoint| endpoint.address)
            .collect()
    } else {
        before
            .union(&after)
            .map(|endpoint| endpoint.address)
            .collect()
    }
}

fn endpoints_of(slice: Option<&Slice>) -> BTreeSet<&SliceEndpoint> {
    slice
        .into_iter()
        .flat_map(|slice| &slice.endpoints)
        .collect()
}

// === impl Slice ===

impl Slice {
    pub(crate) fn at(&self, addresses: &BTreeSet<IpAddr>) -> impl Iterator<Item = &SliceEndpoint> {
        addresses.iter().flat_map(|address| {
            let start = self.endpoints.partition_point(|e| e.address < *address);
            self.endpoints
                .get(start..)
                .unwrap_or_default()
                .iter()
                .take_while(move |endpoint| endpoint.address == *address)
        })
    }
}

// === impl SliceEndpoint ===

impl SliceEndpoint {
    fn better<'a>(&'a self, other: &'a SliceEndpoint) -> &'a SliceEndpoint {
        let rank = |endpoint: &'a SliceEndpoint| {
            let Readiness {
                ready,
                serving,
                terminating,
            } = endpoint.readiness;
            (!terminating, ready, serving, endpoint)
        };
        if rank(other) > rank(self) {
            other
        } else {
            self
        }
    }

    fn at_port(&self, port: Port) -> Endpoint {
        let Placement { node, hints } = self.placement.as_deref().cloned().unwrap_or_default();
        Endpoint {
            address: self.address,
            port,
            readiness: self.readiness,
            node,
            hints,
        }
    }
}
