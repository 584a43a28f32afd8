//! What one Service compiles to.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::{
    Affinity, Family, Hairpin, Port, Precedence, Protocol, Rejection, Scheduler, ServiceKey,
    ServicePortName, TrafficPolicy,
};

/// What a packet is addressed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKey {
    /// A cluster IP, external IP or load-balancer IP.
    Address {
        /// The destination address.
        address: IpAddr,
        /// The protocol.
        protocol: Protocol,
        /// The destination port.
        port: Port,
    },
    /// A port on those of the node's addresses that accept node ports.
    NodePort {
        /// The family; each has its own endpoints.
        family: Family,
        /// The protocol.
        protocol: Protocol,
        /// The destination port.
        port: Port,
    },
}

/// Where packets addressed to one [`FrontendKey`] may go, and under which policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontend {
    /// The Service port it belongs to.
    pub service_port: ServicePortName,
    /// What sort of address it is.
    pub kind: FrontendKind,
    /// The policy for this sort of address: internal for cluster IPs, external for the others.
    pub policy: TrafficPolicy,
    /// The endpoints of the whole cluster, sorted. Left empty where no packet can be sent to one of
    /// them: for a cluster IP with policy Local.
    pub cluster: Arc<[Target]>,
    /// The endpoints of this node, sorted. Empty with policy Cluster.
    pub local: Arc<[Target]>,
    /// The endpoints at which a connection that was made before may still be answered, sorted: those
    /// that serve and those that are given new connections, of the whole cluster, whatever policy
    /// and hints say. No packet is sent by it.
    pub serving: Arc<[Target]>,
    /// Whether the Service has any usable endpoint anywhere: without one packets are rejected;
    /// with one, but none that the policy allows, they are dropped.
    pub has_endpoints: bool,
    /// Session affinity.
    pub affinity: Affinity,
    /// How an endpoint is chosen where affinity does not: one that the mechanism has.
    pub scheduler: Scheduler,
    /// Who may connect. Empty: everyone. Only for load-balancer IPs, one family. If it includes
    /// this node's address, the Service's own load-balancer IPs are in it too.
    pub source_ranges: Arc<[IpNet]>,
    /// That of its Service.
    pub precedence: Precedence,
}

/// The sort of address of a frontend. Of Services that claim one address and port the one gets it
/// whose sort comes first here: the API server gives out cluster IPs, each once; those who run the
/// cluster write load-balancer IPs; anyone who may write a Service writes external IPs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKind {
    /// One of `clusterIPs`.
    ClusterIp,
    /// One of `status.loadBalancer.ingress`.
    LoadBalancerIp,
    /// One of `externalIPs`.
    ExternalIp,
    /// A node port.
    NodePort,
}

/// An endpoint once it is chosen: the address a packet is sent on to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The destination address.
    pub address: IpAddr,
    /// The destination port.
    pub port: Port,
}

/// All that one Service asks of this node. Equal Services with equal endpoints compile to equal
/// rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRules {
    /// Which Service.
    pub service: ServiceKey,
    /// Its frontends, sorted by key, each key once.
    pub frontends: Vec<(FrontendKey, Arc<Frontend>)>,
    /// Its cluster IPs, sorted.
    pub cluster_ips: Vec<IpAddr>,
    /// Endpoints of this node that could be sent their own packets, sorted, each once.
    pub hairpins: Vec<Hairpin>,
    /// The health-check node port, where the Service has one that counts.
    pub health_check: Option<HealthCheck>,
    /// What of it could not be honoured.
    pub rejections: Vec<Rejection>,
}

/// A port on which a load balancer asks whether this node has endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthCheck {
    /// `spec.healthCheckNodePort`.
    pub port: Port,
    /// Ready endpoints on this node.
    pub local_endpoints: LocalEndpoints,
}

/// Distinct addresses of ready endpoints on this node, over all ports of a Service. A Pod with two
/// addresses is one endpoint of each family, and a load balancer of one family weighs by those.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LocalEndpoints {
    /// IPv4 addresses.
    pub ipv4: usize,
    /// IPv6 addresses.
    pub ipv6: usize,
}

// === impl LocalEndpoints ===

impl LocalEndpoints {
    /// Those of `family`.
    pub fn of(self, family: Family) -> usize {
        match family {
            Family::Ipv4 => self.ipv4,
            Family::Ipv6 => self.ipv6,
        }
    }

    /// Those of both families.
    pub fn total(self) -> usize {
        self.ipv4 + self.ipv6
    }
}

// === impl FrontendKey ===

impl FrontendKey {
    /// The family of packets addressed to it.
    pub fn family(&self) -> Family {
        match self {
            FrontendKey::Address { address, .. } => Family::of(*address),
            FrontendKey::NodePort { family, .. } => *family,
        }
    }

    /// The protocol.
    pub fn protocol(&self) -> Protocol {
        match self {
            FrontendKey::Address { protocol, .. } | FrontendKey::NodePort { protocol, .. } => {
                *protocol
            }
        }
    }

    /// The destination port.
    pub fn port(&self) -> Port {
        match self {
            FrontendKey::Address { port, .. } | FrontendKey::NodePort { port, .. } => *port,
        }
    }
}

impl fmt::Display for FrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrontendKey::Address {
                address,
                protocol,
                port,
            } => match address {
                IpAddr::V4(address) => write!(f, "{address}:{port}/{protocol}"),
                IpAddr::V6(address) => write!(f, "[{address}]:{port}/{protocol}"),
            },
            FrontendKey::NodePort {
                family,
                protocol,
                port,
            } => write!(f, "node {family}:{port}/{protocol}"),
        }
    }
}

// === impl Frontend ===

impl Frontend {
    /// Whether it is reached from outside the cluster: anything but a cluster IP.
    pub fn is_external(&self) -> bool {
        self.kind != FrontendKind::ClusterIp
    }

    /// Whether packets are sent to an endpoint that `after` does not have.
    pub fn loses_endpoint(&self, after: &Frontend) -> bool {
        let lost = |before: &[Target], after: &[Target]| {
            let mut before = before.iter();
            before.any(|target| after.binary_search(target).is_err())
        };
        lost(&self.cluster, &after.cluster) || lost(&self.local, &after.local)
    }
}

// === impl FrontendKind ===

impl fmt::Display for FrontendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FrontendKind::ClusterIp => "cluster IP",
            FrontendKind::ExternalIp => "external IP",
            FrontendKind::LoadBalancerIp => "load-balancer IP",
            FrontendKind::NodePort => "node port",
        })
    }
}

// === impl FrontendKind ===

impl FrontendKind {
    /// The field of a Service that such an address is written in.
    pub fn field(self) -> &'static str {
        match self {
            FrontendKind::ClusterIp => "spec.clusterIPs",
            FrontendKind::ExternalIp => "spec.externalIPs",
            FrontendKind::LoadBalancerIp => "status.loadBalancer.ingress",
            FrontendKind::NodePort => "spec.ports[].nodePort",
        }
    }
}

// === impl Target ===

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            IpAddr::V4(address) => write!(f, "{address}:{}", self.port),
            IpAddr::V6(address) => write!(f, "[{address}]:{}", self.port),
        }
    }
}
