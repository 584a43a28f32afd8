//! Connections that a mode counts.

use std::net::SocketAddr;

use dataplane::ServicePortName;

/// The connections of one family through a mode that counts them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Connections {
    /// Established connections.
    pub active: u64,
    /// Connections that are closing, and those of protocols without a state.
    pub inactive: u64,
    /// The endpoints with the most connections, at most [`Connections::BUSIEST`], busiest first.
    pub busiest: Vec<EndpointConnections>,
}

/// The connections of one endpoint of a Service port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointConnections {
    /// The Service port.
    pub service_port: ServicePortName,
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// Established connections.
    pub active: u64,
    /// Connections that are closing, and those of protocols without a state.
    pub inactive: u64,
}

// === impl Connections ===

impl Connections {
    /// How many endpoints are listed: with all of 5,000 nodes they would be too many series for one
    /// Prometheus.
    pub const BUSIEST: usize = 20;

    /// The sums over `all`, and the busiest of them.
    pub fn of(all: Vec<EndpointConnections>) -> Connections {
        let mut busiest = all;
        let (active, inactive) = busiest.iter().fold((0, 0), |(active, inactive), endpoint| {
            (active + endpoint.active, inactive + endpoint.inactive)
        });
        busiest.sort_by(|a, b| {
            let total = |one: &EndpointConnections| one.active + one.inactive;
            let place = |one: &EndpointConnections| one.endpoint;
            total(b)
                .cmp(&total(a))
                .then_with(|| a.service_port.cmp(&b.service_port))
                .then_with(|| place(a).cmp(&place(b)))
        });
        busiest.truncate(Connections::BUSIEST);
        Connections {
            active,
            inactive,
            busiest,
        }
    }
}

#[cfg(test)]
mod tests {
    use dataplane::{Protocol, ServiceKey};

    use super::*;

    #[test]
    fn all_are_summed_and_the_busiest_listed() {
        let all = (0..100_u8).map(|number| EndpointConnections {
            service_port: ServicePortName {
                service: ServiceKey::new("shop", "web"),
                port: "".into(),
                protocol: Protocol::Tcp,
            },
            endpoint: ([10, 0, 1, number], 8080).into(),
            active: u64::from(number),
            inactive: 1,
        });
        let counted = Connections::of(all.collect());
        assert_eq!((counted.active, counted.inactive), (4_950, 100));
        assert_eq!(counted.busiest.len(), Connections::BUSIEST);
        let least = counted.busiest.last().map(|endpoint| endpoint.active);
        assert_eq!((counted.busiest[0].active, least), (99, Some(80)));
    }
}
