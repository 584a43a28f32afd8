//! Services in one expression.

use std::net::IpAddr;
use std::time::Duration;

use dataplane::{
    Affinity, Precedence, Protocol, Scheduler, Service, ServiceKey, ServiceKind, ServicePort,
    TrafficPolicy,
};

use crate::{parse, port};

/// A Service on its way.
#[derive(Debug, Clone)]
pub struct ServiceBuilder(Service);

/// Starts the Service `namespace/name`: type ClusterIP, without addresses and ports, every policy
/// Cluster, no affinity.
#[track_caller]
pub fn mk_service(name: &str) -> ServiceBuilder {
    let Some((namespace, name)) = name.split_once('/') else {
        panic!("{name:?} is not namespace/name");
    };
    ServiceBuilder(Service {
        key: ServiceKey::new(namespace, name),
        kind: ServiceKind::ClusterIp,
        cluster_ipv4: None,
        cluster_ipv6: None,
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        source_ranges: Vec::new(),
        affinity: Affinity::None,
        scheduler: None,
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        health_check_node_port: None,
        ports: Vec::new(),
        precedence: Precedence::Ordinary,
    })
}

impl ServiceBuilder {
    /// Gives it this cluster IP, of either family.
    #[track_caller]
    #[must_use]
    pub fn cluster_ip(mut self, address: &str) -> ServiceBuilder {
        match parse(address, "an address") {
            IpAddr::V4(address) => self.0.cluster_ipv4 = Some(address),
            IpAddr::V6(address) => self.0.cluster_ipv6 = Some(address),
        }
        self
    }

    /// Adds an external IP.
    #[track_caller]
    #[must_use]
    pub fn external_ip(mut self, address: &str) -> ServiceBuilder {
        self.0.external_ips.push(parse(address, "an address"));
        self
    }

    /// Adds a load-balancer IP; the type becomes LoadBalancer.
    #[track_caller]
    #[must_use]
    pub fn load_balancer_ip(mut self, address: &str) -> ServiceBuilder {
        self.0.load_balancer_ips.push(parse(address, "an address"));
        self.kind(ServiceKind::LoadBalancer)
    }

    /// Adds a range that may connect to load-balancer IPs.
    #[track_caller]
    #[must_use]
    pub fn source_range(mut self, range: &str) -> ServiceBuilder {
        self.0.source_ranges.push(parse(range, "a CIDR"));
        self
    }

    /// Adds a TCP port.
    #[track_caller]
    #[must_use]
    pub fn port(self, name: &str, number: u16) -> ServiceBuilder {
        self.with_port(name, Protocol::Tcp, number)
    }

    /// Adds a UDP port.
    #[track_caller]
    #[must_use]
    pub fn udp(self, name: &str, number: u16) -> ServiceBuilder {
        self.with_port(name, Protocol::Udp, number)
    }

    /// Adds an SCTP port.
    #[track_caller]
    #[must_use]
    pub fn sctp(self, name: &str, number: u16) -> ServiceBuilder {
        self.with_port(name, Protocol::Sctp, number)
    }

    /// Gives the port added last a node port; type ClusterIP becomes NodePort.
    #[track_caller]
    #[must_use]
    pub fn node_port(mut self, number: u16) -> ServiceBuilder {
        let last = self.0.ports.last_mut();
        last.expect("a node port belongs to a port").node_port = Some(port(number));
        if self.0.kind == ServiceKind::ClusterIp {
            self.0.kind = ServiceKind::NodePort;
        }
        self
    }

    /// Sets the type.
    #[must_use]
    pub fn kind(mut self, kind: ServiceKind) -> ServiceBuilder {
        self.0.kind = kind;
        self
    }

    /// Has it programmed before others.
    #[must_use]
    pub fn first(mut self) -> ServiceBuilder {
        self.0.precedence = Precedence::First;
        self
    }

    /// Session affinity by client address.
    #[must_use]
    pub fn client_ip_affinity(mut self, timeout: Duration) -> ServiceBuilder {
        self.0.affinity = Affinity::ClientIp { timeout };
        self
    }

    /// Asks for a scheduler.
    #[must_use]
    pub fn scheduler(mut self, scheduler: Scheduler) -> ServiceBuilder {
        self.0.scheduler = Some(scheduler);
        self
    }

    /// `internalTrafficPolicy: Local`.
    #[must_use]
    pub fn internal_local(mut self) -> ServiceBuilder {
        self.0.internal_policy = TrafficPolicy::Local;
        self
    }

    /// `externalTrafficPolicy: Local`.
    #[must_use]
    pub fn external_local(mut self) -> ServiceBuilder {
        self.0.external_policy = TrafficPolicy::Local;
        self
    }

    /// `healthCheckNodePort`.
    #[track_caller]
    #[must_use]
    pub fn health_check_node_port(mut self, number: u16) -> ServiceBuilder {
        self.0.health_check_node_port = Some(port(number));
        self
    }

    /// The Service.
    pub fn build(self) -> Service {
        self.0
    }

    #[track_caller]
    fn with_port(mut self, name: &str, protocol: Protocol, number: u16) -> ServiceBuilder {
        self.0.ports.push(ServicePort {
            name: name.into(),
            protocol,
            port: port(number),
            node_port: None,
        });
        self
    }
}
