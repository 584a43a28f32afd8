//! A builder of endpoints.

use std::net::SocketAddr;
use std::sync::Arc;

use dataplane::{Endpoint, EndpointPort, Endpoints, Hints, Protocol, Readiness};

use crate::port;

/// Endpoints under construction.
#[derive(Debug, Clone)]
pub struct EndpointsBuilder {
    endpoints: Endpoints,
    port: Option<EndpointPort>,
    last: Option<usize>,
}

/// Starts a list of endpoints; set a port before the first endpoint.
pub fn mk_endpoints() -> EndpointsBuilder {
    EndpointsBuilder {
        endpoints: Endpoints::default(),
        port: None,
        last: None,
    }
}

impl EndpointsBuilder {
    /// Selects this TCP port for the following endpoints.
    #[must_use]
    pub fn tcp(self, name: &str) -> EndpointsBuilder {
        self.of_port(name, Protocol::Tcp)
    }

    /// Selects this UDP port for the following endpoints.
    #[must_use]
    pub fn udp(self, name: &str) -> EndpointsBuilder {
        self.of_port(name, Protocol::Udp)
    }

    /// Selects this SCTP port for the following endpoints.
    #[must_use]
    pub fn sctp(self, name: &str) -> EndpointsBuilder {
        self.of_port(name, Protocol::Sctp)
    }

    /// Adds a ready endpoint, `10.0.1.5:8080` or `[fd00::5]:8080`, on `node`.
    #[track_caller]
    #[must_use]
    pub fn ready(self, address: &str, node: &str) -> EndpointsBuilder {
        self.with(address, node, Readiness::READY)
    }

    /// Adds an endpoint that is neither ready nor serving.
    #[track_caller]
    #[must_use]
    pub fn unready(self, address: &str, node: &str) -> EndpointsBuilder {
        let readiness = Readiness {
            ready: false,
            serving: false,
            terminating: false,
        };
        self.with(address, node, readiness)
    }

    /// Adds a terminating endpoint that still serves.
    #[track_caller]
    #[must_use]
    pub fn draining(self, address: &str, node: &str) -> EndpointsBuilder {
        let readiness = Readiness {
            ready: false,
            serving: true,
            terminating: true,
        };
        self.with(address, node, readiness)
    }

    /// Adds an endpoint with these conditions.
    #[track_caller]
    #[must_use]
    pub fn with(mut self, address: &str, node: &str, readiness: Readiness) -> EndpointsBuilder {
        let address: SocketAddr = crate::parse(address, "an address with a port");
        let list = self.list();
        let endpoint = Endpoint {
            address: address.ip(),
            port: port(address.port()),
            readiness,
            node: Some(node.into()),
            hints: Hints::default(),
        };
        let place = list.partition_point(|other| {
            (other.address, other.port) < (endpoint.address, endpoint.port)
        });
        list.insert(place, endpoint);
        self.last = Some(place);
        self
    }

    /// Sets the zone hints of the last endpoint.
    #[track_caller]
    #[must_use]
    pub fn for_zones(mut self, zones: &[&str]) -> EndpointsBuilder {
        self.last_hints().zones = zones.iter().map(|zone| Arc::from(*zone)).collect();
        self
    }

    /// Sets the node hints of the last endpoint.
    #[track_caller]
    #[must_use]
    pub fn for_nodes(mut self, nodes: &[&str]) -> EndpointsBuilder {
        self.last_hints().nodes = nodes.iter().map(|node| Arc::from(*node)).collect();
        self
    }

    /// Returns the endpoints.
    pub fn build(self) -> Endpoints {
        self.endpoints
    }

    fn of_port(mut self, name: &str, protocol: Protocol) -> EndpointsBuilder {
        let port = EndpointPort {
            name: name.into(),
            protocol,
        };
        self.endpoints.by_port.entry(port.clone()).or_default();
        self.port = Some(port);
        self.last = None;
        self
    }

    #[track_caller]
    fn list(&mut self) -> &mut Vec<Endpoint> {
        let port = self.port.clone();
        let port = port.expect("a port comes before its endpoints");
        self.endpoints.by_port.entry(port).or_default()
    }

    #[track_caller]
    fn last_hints(&mut self) -> &mut Hints {
        let last = self.last.expect("hints belong to an endpoint");
        &mut self.list()[last].hints
    }
}
