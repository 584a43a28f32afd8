//! What is kept of an EndpointSlice, and how slices of one Service become one list.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use dataplane::{
    Endpoint, EndpointPort, Endpoints, Hints, LeftOut, MOST_ELEMENTS, Port, Readiness, ServiceKey,
    ServicePort,
};
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
    /// Shared with all endpoints of the same placement; `None` where it is empty.
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

/// Holds what is merged of one slice.
struct Part<'a> {
    slice: &'a Slice,
    endpoints: Vec<&'a SliceEndpoint>,
}

/// Which endpoints to merge.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Extent<'a> {
    /// All.
    Everything,
    /// Those with one of these addresses.
    Addresses(&'a BTreeSet<IpAddr>),
}

/// The most slices of one Service that are merged, the first by name. The EndpointSlice controller
/// puts a hundred endpoints into one: these are more than [`MOST_ENDPOINTS`] of a port.
pub(crate) const MOST_SLICES: usize = 4_096;
/// The most endpoints of one Service, counted once for each port: more would not fit into
/// [`MOST_ELEMENTS`] of either family.
const MOST_ENDPOINTS: usize = 2 * MOST_ELEMENTS;

/// The endpoints of all `slices` together, for the `ports` of their Service first, as far as
/// [`MOST_ENDPOINTS`] go.
///
/// An address and port that is there more than once (in several slices while a controller moves
/// it, for two pods while an IP address is reused) is taken in its best version: not terminating
/// before terminating (kubernetes#135593), then ready, then serving. What still is equal is
/// decided by content, so that neither the order in which slices arrived nor how endpoints are
/// spread over them can be seen in the result.
pub(crate) fn merge<'a>(
    slices: impl IntoIterator<Item = &'a Slice>,
    extent: Extent<'_>,
    ports: &[ServicePort],
) -> Endpoints {
    let within = |slice: &'a Slice| -> Part<'a> {
        let endpoints = match extent {
            Extent::Everything => slice.endpoints.iter().collect(),
            Extent::Addresses(addresses) => slice.at(addresses).collect(),
        };
        Part { slice, endpoints }
    };
    let parts: Vec<Part<'_>> = slices
        .into_iter()
        .map(within)
        .filter(|part| !part.endpoints.is_empty())
        .collect();
    let left_out = too_many(&parts, ports);
    let mut best: BTreeMap<&EndpointPort, BTreeMap<(IpAddr, Port), &SliceEndpoint>> =
        BTreeMap::new();
    for Part { slice, endpoints } in &parts {
        for SlicePort { name, port } in &*slice.ports {
            if left_out.contains(name) {
                continue;
            }
            let list = best.entry(name).or_default();
            for endpoint in endpoints {
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
    Endpoints {
        by_port,
        left_out: LeftOut {
            ports: left_out,
            ..LeftOut::default()
        },
    }
}

/// The ports whose endpoints are too many, once those of the ports before them are taken: first
/// `ports`, in their order, then those that the Service does not have.
fn too_many(parts: &[Part<'_>], ports: &[ServicePort]) -> BTreeSet<EndpointPort> {
    let pairs = parts
        .iter()
        .map(|part| part.slice.ports.len() * part.endpoints.len());
    if pairs.sum::<usize>() <= MOST_ENDPOINTS {
        return BTreeSet::new();
    }
    let mut counts: BTreeMap<&EndpointPort, usize> = BTreeMap::new();
    for part in parts {
        for port in &*part.slice.ports {
            *counts.entry(&port.name).or_default() += part.endpoints.len();
        }
    }
    let mut left_out = BTreeSet::new();
    let mut room = MOST_ENDPOINTS;
    let mut take = |port: EndpointPort, count: usize| match room.checked_sub(count) {
        Some(rest) => room = rest,
        None => drop(left_out.insert(port)),
    };
    for port in ports {
        let port = EndpointPort {
            name: Arc::clone(&port.name),
            protocol: port.protocol,
        };
        if let Some(count) = counts.remove(&port) {
            take(port, count);
        }
    }
    for (port, count) in counts {
        take(port.clone(), count);
    }
    left_out
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
