//! What is kept of an EndpointSlice, and how the slices of one Service are merged.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use dataplane::{
    Endpoint, EndpointPort, Endpoints, Hints, MOST_ELEMENTS, Omitted, Port, Readiness, ServiceKey,
    ServicePort,
};
use smallvec::SmallVec;

#[cfg(test)]
mod tests;

/// What is kept of one EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slice {
    /// The Service it belongs to.
    pub(crate) service: ServiceKey,
    /// The time of the change that led to this content.
    pub(crate) trigger: Option<SystemTime>,
    /// Its ports, sorted and without duplicates; shared by all slices with the same ports.
    pub(crate) ports: Arc<[SlicePort]>,
    /// Its endpoints, sorted, so that a slice which was only reordered is equal.
    pub(crate) endpoints: Box<[SliceEndpoint]>,
}

/// One port of a slice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlicePort {
    pub(crate) name: EndpointPort,
    pub(crate) port: Port,
}

/// One endpoint of a slice; it serves every port of the slice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SliceEndpoint {
    pub(crate) address: IpAddr,
    pub(crate) readiness: Readiness,
    /// Shared by all endpoints with the same placement; `None` if the placement is empty.
    pub(crate) placement: Option<Arc<Placement>>,
}

/// The location of an endpoint, and its hints.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Placement {
    pub(crate) node: Option<Arc<str>>,
    pub(crate) hints: Hints,
}

/// The names of the slices of one Service, sorted. Most Services have one slice.
pub(crate) type SliceNames = SmallVec<[Arc<str>; 1]>;

/// The part of one slice that is merged.
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

/// The maximum number of slices of one Service that are merged, the first by name. The
/// EndpointSlice controller puts a hundred endpoints into one, so these hold more than
/// [`MOST_ENDPOINTS`] of a port.
pub(crate) const MOST_SLICES: usize = 4_096;
/// The maximum number of ports of those slices together. Each event of a slice looks at the ports of
/// all slices of its Service, and a slice may have 20,000.
pub(crate) const MOST_SLICE_PORTS: usize = 1 << 17;
/// The maximum number of addresses for which an event of a slice looks into other slices of its Service,
/// times their number: about 5 ms. A slice of 1,000 endpoints that is replaced beside 4,095 others
/// would take a second.
pub(crate) const MOST_LOOKUPS: usize = 1 << 16;
/// The maximum number of endpoints of one Service, counted once for each port: more would not fit
/// into [`MOST_ELEMENTS`] of either family.
const MOST_ENDPOINTS: usize = 2 * MOST_ELEMENTS;

/// Merges the endpoints of all `slices`, those for the `ports` of their Service first, up to
/// [`MOST_ENDPOINTS`].
///
/// If an address and port occurs more than once (in several slices while a controller moves it, or
/// for two pods while an IP address is reused), the best version is used: not terminating before
/// terminating (kubernetes#135593), then ready, then serving. Remaining ties are decided by
/// content, so that the result depends neither on the order in which slices arrived nor on how
/// endpoints are spread over them.
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
    let mut all: BTreeMap<&EndpointPort, Vec<(Port, &SliceEndpoint)>> = BTreeMap::new();
    for Part { slice, endpoints } in &parts {
        for SlicePort { name, port } in &*slice.ports {
            if !left_out.contains(name) {
                let of_port = endpoints.iter().map(|endpoint| (*port, *endpoint));
                all.entry(name).or_default().extend(of_port);
            }
        }
    }
    let by_port = all
        .into_iter()
        .map(|(name, list)| (name.clone(), best(list)))
        .collect();
    Endpoints {
        by_port,
        left_out: Omitted {
            ports: left_out,
            ..Omitted::default()
        },
    }
}

/// The best version of each endpoint, in order of address and port.
fn best(mut all: Vec<(Port, &SliceEndpoint)>) -> Vec<Endpoint> {
    let place = |(port, endpoint): &(Port, &SliceEndpoint)| (endpoint.address, *port);
    // Each slice is sorted, and sorting keeps runs.
    all.sort_by_key(place);
    all.dedup_by(|other, kept| {
        let same = place(other) == place(kept);
        if same {
            kept.1 = kept.1.better(other.1);
        }
        same
    });
    let best = all.into_iter();
    best.map(|(port, endpoint)| endpoint.at_port(port))
        .collect()
}

/// The ports with too many endpoints, after the ports before them have been counted: first `ports`,
/// in their order, then the ports that the Service does not have.
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

/// Whether two versions of a slice with the same ports differ at these addresses, once merged. If they
/// do, then at each port alike: to merge 20,000 of them would take longer than to compile them.
pub(crate) fn differ_at_a_port(
    before: &Slice,
    after: &Slice,
    addresses: &BTreeSet<IpAddr>,
) -> bool {
    let Some(SlicePort { port, .. }) = before.ports.first() else {
        return false;
    };
    let merged = |slice: &Slice| {
        let endpoints = slice.at(addresses);
        best(endpoints.map(|endpoint| (*port, endpoint)).collect())
    };
    merged(before) != merged(after)
}

fn endpoints_of(slice: Option<&Slice>) -> BTreeSet<&SliceEndpoint> {
    slice
        .into_iter()
        .flat_map(|slice| &slice.endpoints)
        .collect()
}

// === impl Slice ===

impl Slice {
    /// Whether some of its ports may be left out as too many.
    pub(crate) fn may_be_too_large(&self) -> bool {
        self.ports.len() * self.endpoints.len() > MOST_ENDPOINTS
    }

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
