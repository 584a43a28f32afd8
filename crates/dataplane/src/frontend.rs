//! The rules to which one Service compiles.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::{
    Affinity, Family, Hairpin, ObjectKind, ObjectName, Port, Precedence, Protocol, Rejection,
    Scheduler, ServiceKey, ServicePortName, TrafficPolicy,
};

/// The destination that a packet is addressed to.
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
    /// A port on the node's addresses that accept node ports.
    NodePort {
        /// The family; each has its own endpoints.
        family: Family,
        /// The protocol.
        protocol: Protocol,
        /// The destination port.
        port: Port,
    },
}

/// Where packets to one [`FrontendKey`] may go, and under which policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontend {
    /// The Service port it belongs to.
    pub service_port: ServicePortName,
    /// The kind of address.
    pub kind: FrontendKind,
    /// The policy for this kind of address: internal for cluster IPs, external for all others.
    pub policy: TrafficPolicy,
    /// The endpoints of the whole cluster, sorted. Empty if no packet can be sent to any of them:
    /// for a cluster IP with policy Local.
    pub cluster: Arc<[Target]>,
    /// The endpoints of this node, sorted. Empty with policy Cluster.
    pub local: Arc<[Target]>,
    /// The endpoints that may still answer existing connections, sorted: those of the whole cluster
    /// that serve or get new connections, regardless of policy and hints. Not used to send packets.
    pub serving: Arc<[Target]>,
    /// Whether the Service has a usable endpoint on any node. If not, packets are rejected. If so,
    /// but none that the policy allows, they are dropped.
    pub has_endpoints: bool,
    /// Session affinity.
    pub affinity: Affinity,
    /// How an endpoint is chosen if affinity does not choose it. A scheduler that the mode
    /// supports.
    pub scheduler: Scheduler,
    /// The sources that may connect; empty: all. Only for load-balancer IPs, of one family. If they
    /// include this node's address, they include the Service's own load-balancer IPs, too.
    pub source_ranges: Arc<[IpNet]>,
    /// The precedence of its Service.
    pub precedence: Precedence,
}

/// The kind of address of a frontend. If several Services claim one address and port, the one whose
/// kind comes first here gets it: the API server assigns each cluster IP once; cluster
/// administrators set load-balancer IPs; any user who may write a Service sets external IPs.
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

/// A chosen endpoint: the address that a packet is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The destination address.
    pub address: IpAddr,
    /// The destination port.
    pub port: Port,
}

/// Everything that one Service requires of this node. Equal Services with equal endpoints compile
/// to equal rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRules {
    /// The Service.
    pub service: ServiceKey,
    /// Its frontends, sorted by key, with distinct keys.
    pub frontends: Vec<(FrontendKey, Arc<Frontend>)>,
    /// Its cluster IPs, sorted.
    pub cluster_ips: Vec<IpAddr>,
    /// Endpoints on this node that could receive their own packets, sorted and distinct.
    pub hairpins: Vec<Hairpin>,
    /// The health-check node port, if the Service has an effective one.
    pub health_check: Option<HealthCheck>,
    /// The parts of the Service that are not supported.
    pub rejections: Vec<Rejection>,
}

/// A port on which load balancers check whether this node has endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthCheck {
    /// `spec.healthCheckNodePort`.
    pub port: Port,
    /// Ready endpoints on this node.
    pub local_endpoints: LocalEndpoints,
}

/// The number of distinct addresses of ready endpoints on this node, over all ports of a Service. A
/// Pod with two addresses is one endpoint in each family, and a load balancer of one family uses
/// that family's number as a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LocalEndpoints {
    /// IPv4 addresses.
    pub ipv4: usize,
    /// IPv6 addresses.
    pub ipv6: usize,
}

// === impl ServiceRules ===

impl ServiceRules {
    /// Returns the rules of a Service of which nothing is served. Its cluster IPs and the addresses of its
    /// load balancer remain its own: there, its first port refuses connections.
    pub fn refused(mut self, field: &str, message: String) -> ServiceRules {
        self.frontends
            .retain(|(_, frontend)| frontend.kind == FrontendKind::LoadBalancerIp);
        let address = |key: &FrontendKey| match key {
            FrontendKey::Address { address, .. } => Some(*address),
            FrontendKey::NodePort { .. } => None,
        };
        self.frontends.dedup_by_key(|(key, _)| address(key));
        for (_, frontend) in &mut self.frontends {
            *frontend = Arc::new(Frontend {
                cluster: Arc::default(),
                local: Arc::default(),
                serving: Arc::default(),
                has_endpoints: false,
                source_ranges: Arc::default(),
                ..Frontend::clone(frontend)
            });
        }
        let key = &self.service;
        self.rejections.push(Rejection {
            object: ObjectName {
                kind: ObjectKind::Service,
                namespace: Arc::clone(&key.namespace),
                name: Arc::clone(&key.name),
            },
            field: field.to_owned(),
            message,
        });
        self.rejections.sort();
        ServiceRules {
            hairpins: Vec::new(),
            health_check: None,
            ..self
        }
    }

    /// Whether nothing of the Service is served. Each Service that is has frontends at its cluster IPs,
    /// with or without endpoints.
    pub fn is_refused(&self) -> bool {
        let mut frontends = self.frontends.iter();
        frontends.all(|(_, frontend)| frontend.kind == FrontendKind::LoadBalancerIp)
    }
}

// === impl LocalEndpoints ===

impl LocalEndpoints {
    /// The number in `family`.
    pub fn of(self, family: Family) -> usize {
        match family {
            Family::Ipv4 => self.ipv4,
            Family::Ipv6 => self.ipv6,
        }
    }

    /// The sum over both families.
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
    /// Whether it is reachable from outside the cluster: all kinds except cluster IPs.
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
    /// Every kind, in order.
    pub(crate) const ALL: [FrontendKind; 4] = [
        FrontendKind::ClusterIp,
        FrontendKind::LoadBalancerIp,
        FrontendKind::ExternalIp,
        FrontendKind::NodePort,
    ];

    /// The field of a Service that contains such an address.
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
