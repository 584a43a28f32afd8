//! Endpoints as EndpointSlices describe them, merged over all slices of one Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::{Port, Protocol};

/// The endpoints of one Service, by the Service port they serve. Each list is free of duplicate
/// addresses and sorted by address and port, so that equal content is equal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Endpoints {
    /// Lists by port.
    pub by_port: BTreeMap<EndpointPort, Vec<Endpoint>>,
    /// What exceeds the limits of a Service.
    pub left_out: Omitted,
}

/// What is missing in the endpoints of a Service because it exceeds the limits of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Omitted {
    /// The number of slices left out, the last ones by name.
    pub slices: usize,
    /// The ports of slices all of whose endpoints are left out.
    pub ports: BTreeSet<EndpointPort>,
}

/// The port name and protocol that match a Service's port with a slice's port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointPort {
    /// The port's name; empty if it has none.
    pub name: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
}

/// An endpoint of a Service port, with its attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `addresses[0]`.
    pub address: IpAddr,
    /// The port of the slice.
    pub port: Port,
    /// Its conditions.
    pub readiness: Readiness,
    /// `nodeName`, if set.
    pub node: Option<Arc<str>>,
    /// `hints`.
    pub hints: Hints,
}

/// The three conditions of an endpoint with their defaults: `ready` and `serving` are true if
/// absent, `terminating` is false.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Readiness {
    /// It may get new connections.
    pub ready: bool,
    /// It still answers, terminating or not.
    pub serving: bool,
    /// Its pod is being deleted.
    pub terminating: bool,
}

/// The zones and nodes that an endpoint is meant for. Obeyed regardless of which controller set
/// them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Hints {
    /// `hints.forZones[].name`.
    pub zones: BTreeSet<Arc<str>>,
    /// `hints.forNodes[].name`.
    pub nodes: BTreeSet<Arc<str>>,
}

// === impl Endpoints ===

impl Endpoints {
    /// The endpoints of the port with this name and protocol; empty if no slice has it.
    pub fn of(&self, name: &Arc<str>, protocol: Protocol) -> &[Endpoint] {
        self.by_port
            .get(&EndpointPort {
                name: Arc::clone(name),
                protocol,
            })
            .map_or(&[], Vec::as_slice)
    }
}

// === impl Readiness ===

impl Readiness {
    /// An endpoint that accepts new connections.
    pub const READY: Readiness = Readiness {
        ready: true,
        serving: true,
        terminating: false,
    };

    /// Whether it is used if no endpoint is ready: still serving while its pod terminates.
    pub fn draining(self) -> bool {
        self.serving && self.terminating
    }
}
