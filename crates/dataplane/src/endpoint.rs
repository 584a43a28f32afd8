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
    /// What there is too much of.
    pub left_out: LeftOut,
}

/// What is not among the endpoints of a Service, because it is more than a Service may have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeftOut {
    /// How many slices, the last by name.
    pub slices: usize,
    /// The ports of slices all of whose endpoints are left out.
    pub ports: BTreeSet<EndpointPort>,
}

/// What joins a Service's port with a slice's port: name and protocol.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointPort {
    /// The port's name; empty when it has none.
    pub name: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
}

/// One place a Service port's connections can go, with what is known about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `addresses[0]`.
    pub address: IpAddr,
    /// The port of the slice.
    pub port: Port,
    /// Its conditions.
    pub readiness: Readiness,
    /// `nodeName`, if it is given.
    pub node: Option<Arc<str>>,
    /// `hints`.
    pub hints: Hints,
}

/// The three conditions of an endpoint with their defaults filled in: `ready` and `serving` count
/// as true when absent, `terminating` as false.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Readiness {
    /// May be given new connections.
    pub ready: bool,
    /// Still answers, terminating or not.
    pub serving: bool,
    /// Its pod is being deleted.
    pub terminating: bool,
}

/// Which zones and nodes an endpoint is meant for. Obeyed whatever set them.
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
    /// An endpoint that takes new connections.
    pub const READY: Readiness = Readiness {
        ready: true,
        serving: true,
        terminating: false,
    };

    /// Whether it can stand in when nothing is ready: still serving while its pod goes away.
    pub fn draining(self) -> bool {
        self.serving && self.terminating
    }
}
