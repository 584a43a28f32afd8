//! A builder of Services.

use std::net::IpAddr;
use std::time::Duration;

use dataplane::{
    Affinity, Precedence, Protocol, Scheduler, Service, ServiceKey, ServiceKind, ServicePort,
    TrafficPolicy,
};

use crate::{parse, port};

/// A Service under construction.
#[derive(Debug, Clone)]
pub struct ServiceBuilder(Service);

/// Starts the Service `namespace/name`: type ClusterIP, without addresses and ports, all policies
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
    /// Sets the cluster IP of the address's family.
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

    /// Adds a load-balancer IP and sets the type to LoadBalancer.
    #[track_caller]
    #[must_use]
    pub fn load_balancer_ip(mut self, address: &str) -> ServiceBuilder {
        self.0.load_balancer_ips.push(parse(address, "an address"));
        self.kind(ServiceKind::LoadBalancer)
    }

    /// Adds a source range for load-balancer IPs.
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

    /// Sets a node port for the last port. Changes type ClusterIP to NodePort.
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

    /// Sets the precedence to first.
    #[must_use]
    pub fn first(mut self) -> ServiceBuilder {
        self.0.precedence = Precedence::First;
        self
    }

    /// Enables session affinity by client address.
    #[must_use]
    pub fn client_ip_affinity(mut self, timeout: Duration) -> ServiceBuilder {
        self.0.affinity = Affinity::ClientIp { timeout };
        self
    }

    /// Sets the scheduler.
    #[must_use]
    pub fn scheduler(mut self, scheduler: Scheduler) -> ServiceBuilder {
        self.0.scheduler = Some(scheduler);
        self
    }

    /// Sets `internalTrafficPolicy: Local`.
    #[must_use]
    pub fn internal_local(mut self) -> ServiceBuilder {
        self.0.internal_policy = TrafficPolicy::Local;
        self
    }

    /// Sets `externalTrafficPolicy: Local`.
    #[must_use]
    pub fn external_local(mut self) -> ServiceBuilder {
        self.0.external_policy = TrafficPolicy::Local;
        self
    }

    /// Sets `healthCheckNodePort`.
    #[track_caller]
    #[must_use]
    pub fn health_check_node_port(mut self, number: u16) -> ServiceBuilder {
        self.0.health_check_node_port = Some(port(number));
        self
    }

    /// Returns the Service.
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
