//! A Service and a Node as input of the compiler: parsed and filtered, nothing else.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::{Endpoint, Family, Port, Protocol, Scheduler};

/// The namespace and name of the API server's Service.
const API_SERVER: (&str, &str) = ("default", "kubernetes");

/// The name of a Service object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

/// One port of a Service: the key of endpoints, affinity and metrics.
///
/// Printed as `namespace/name:port`, without `:port` if the port has no name. The protocol is part
/// of the identity but not of the text (kube-proxy, pkg/proxy/types.go).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortName {
    /// The Service.
    pub service: ServiceKey,
    /// The port's name; empty if it has none.
    pub port: Arc<str>,
    /// The port's protocol.
    pub protocol: Protocol,
}

/// A Service to program: never headless, never an ExternalName.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The name of the object.
    pub key: ServiceKey,
    /// `spec.type`, as far as it has an effect.
    pub kind: ServiceKind,
    /// The cluster IP of the IPv4 family, if the Service has one.
    pub cluster_ipv4: Option<Ipv4Addr>,
    /// The cluster IP of the IPv6 family, if the Service has one.
    pub cluster_ipv6: Option<Ipv6Addr>,
    /// `spec.externalIPs`, those that parse, both families.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` with ipMode VIP (or unset), those that parse.
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`, those that parse, both families.
    pub source_ranges: Vec<IpNet>,
    /// `spec.sessionAffinity`.
    pub affinity: Affinity,
    /// The annotation [`Service::SCHEDULER`]. `None`: the node's configuration decides.
    pub scheduler: Option<Scheduler>,
    /// `spec.internalTrafficPolicy`.
    pub internal_policy: TrafficPolicy,
    /// `spec.externalTrafficPolicy`.
    pub external_policy: TrafficPolicy,
    /// `spec.healthCheckNodePort`.
    pub health_check_node_port: Option<Port>,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// When it is programmed, relative to others.
    pub precedence: Precedence,
}

/// The order of programming when much is new at once: on a node that has just started, or lost its
/// rules. In this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Precedence {
    /// Before all others: the API server's own Service and DNS, without which nothing else on the
    /// node starts (kubernetes#133773).
    First,
    /// After those.
    Ordinary,
}

/// `spec.type` of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceKind {
    /// `ClusterIP`.
    ClusterIp,
    /// `NodePort`.
    NodePort,
    /// `LoadBalancer`.
    LoadBalancer,
}

/// One entry of `spec.ports`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePort {
    /// The port's name; empty if it has none. Matches endpoints.
    pub name: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port on cluster IPs, external IPs and load-balancer IPs.
    pub port: Port,
    /// The port on node addresses. Programmed whenever it is set, for any type of Service.
    pub node_port: Option<Port>,
}

/// `spec.internalTrafficPolicy` or `spec.externalTrafficPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficPolicy {
    /// Every endpoint of the cluster may be chosen.
    Cluster,
    /// Only endpoints on this node may be chosen.
    Local,
}

/// Whether a client returns to its previous endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Affinity {
    /// Every connection is placed independently.
    None,
    /// By source address and Service port, for this long after the last new connection.
    ClientIp {
        /// `sessionAffinityConfig.clientIP.timeoutSeconds`.
        timeout: Duration,
    },
}

/// The node this process runs on, as described by its Node object and its kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// The name of the Node, with which `nodeName` of endpoints and hints for nodes are compared.
    pub name: Arc<str>,
    /// The label `topology.kubernetes.io/zone`; an empty label counts as none.
    pub zone: Option<Arc<str>>,
    /// The IPv4 address by which other nodes reach this one (InternalIP before ExternalIP).
    pub ipv4: Option<Ipv4Addr>,
    /// Like `ipv4`, for IPv6.
    pub ipv6: Option<Ipv6Addr>,
    /// Every address that is local to this node's kernel, including loopback; of IPv6 link-local
    /// addresses only those selected for node ports.
    pub local_addresses: BTreeSet<IpAddr>,
    /// Those of `local_addresses` that only the device of another service proxy has: such a proxy
    /// gives it the addresses of Services.
    pub proxy_addresses: BTreeSet<IpAddr>,
    /// The interfaces on which packets of established connections may bypass all rules; `None` if none
    /// ever may. Only mode nftables reads it.
    pub flowtable_interfaces: Option<BTreeSet<Arc<str>>>,
}

// === impl Node ===

impl Node {
    /// Whether the node has an address in `family`. Without one, no client reaches anything through
    /// that family.
    pub fn has_address(&self, family: Family) -> bool {
        match family {
            Family::Ipv4 => self.ipv4.is_some(),
            Family::Ipv6 => self.ipv6.is_some(),
        }
    }

    /// The local addresses, without those of another service proxy's device.
    pub(crate) fn own_addresses(&self) -> BTreeSet<IpAddr> {
        let own = self.local_addresses.difference(&self.proxy_addresses);
        own.copied().collect()
    }

    /// Whether `address` is one of [`Node::own_addresses`].
    pub(crate) fn has_itself(&self, address: IpAddr) -> bool {
        self.local_addresses.contains(&address) && !self.proxy_addresses.contains(&address)
    }
}

// === impl ServiceKey ===

impl ServiceKey {
    /// The Service through which pods reach the API server. Its name is fixed.
    pub fn api_server() -> ServiceKey {
        let (namespace, name) = API_SERVER;
        ServiceKey {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// Whether this is [`ServiceKey::api_server`].
    pub fn is_api_server(&self) -> bool {
        (&*self.namespace, &*self.name) == API_SERVER
    }
}

impl ServiceKey {
    /// The key of the Service `namespace/name`.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> ServiceKey {
        ServiceKey {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

// === impl ServicePortName ===

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.port {
            "" => self.service.fmt(f),
            port => write!(f, "{}:{port}", self.service),
        }
    }
}

// === impl Service ===

impl Service {
    /// The annotation with the name of a [`Scheduler`].
    pub const SCHEDULER: &str = "signpost.dev/scheduler";

    /// The cluster IP of `family`. A Service without one does not exist in that family: none of its
    /// other addresses and node ports are served there.
    pub fn cluster_ip(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::Ipv4 => self.cluster_ipv4.map(IpAddr::V4),
            Family::Ipv6 => self.cluster_ipv6.map(IpAddr::V6),
        }
    }

    /// Whether clients outside the cluster can address `port`: it has a node port, or the Service
    /// has an external or load-balancer address of any family.
    pub fn externally_accessible(&self, port: &ServicePort) -> bool {
        port.node_port.is_some()
            || !self.load_balancer_ips.is_empty()
            || !self.external_ips.is_empty()
    }

    /// The policy for traffic from outside the cluster: [`Service::external_policy`] where the API
    /// gives that field a meaning, Cluster otherwise. The field may be left from an earlier type of
    /// the Service.
    pub fn effective_external_policy(&self) -> TrafficPolicy {
        match self.kind {
            ServiceKind::NodePort | ServiceKind::LoadBalancer => self.external_policy,
            ServiceKind::ClusterIp if !self.external_ips.is_empty() => self.external_policy,
            ServiceKind::ClusterIp => TrafficPolicy::Cluster,
        }
    }
}

// === impl Node ===

impl Node {
    /// The address of `family` by which other nodes reach this one.
    pub fn address(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::Ipv4 => self.ipv4.map(IpAddr::V4),
            Family::Ipv6 => self.ipv6.map(IpAddr::V6),
        }
    }

    /// Whether `endpoint` runs on this node.
    pub fn hosts(&self, endpoint: &Endpoint) -> bool {
        endpoint.node.as_ref() == Some(&self.name)
    }
}
