//! Random Services and their changes.

mod generation;
mod mutation;

use std::fmt;

use dataplane::{Family, Protocol};

/// The Services of a comparison at one moment.
#[derive(Debug, Clone)]
pub struct Population {
    /// The existing Services.
    pub services: Vec<Service>,
    /// The deleted Services: packets to their addresses are compared too.
    pub deleted: Vec<Service>,
    /// The number of the next Service. Numbers are not reused.
    next: u8,
}

/// A Service and its manually written EndpointSlices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its number, which is also the host number of each of its addresses.
    pub number: u8,
    /// Its type.
    pub kind: Kind,
    /// Its families, the primary one first.
    pub families: Vec<Family>,
    /// Its ports, at least one.
    pub ports: Vec<Port>,
    /// `externalTrafficPolicy`.
    pub external: Policy,
    /// `internalTrafficPolicy`.
    pub internal: Policy,
    /// `sessionAffinity`.
    pub affinity: Affinity,
    /// `loadBalancerSourceRanges`.
    pub source_ranges: Vec<&'static str>,
    /// The load balancer status.
    pub ingress: Ingress,
    /// `externalIPs`.
    pub external_ips: ExternalIps,
    /// The hints of the endpoints.
    pub hints: Hints,
    /// The ports of its EndpointSlices.
    pub slices: Slices,
    /// The proxy responsible for the Service.
    pub proxy: Proxy,
    /// The endpoints in each family of the Service, alternating between two slices.
    pub endpoints: Vec<Endpoint>,
}

/// The type of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `ClusterIP`.
    ClusterIp,
    /// `NodePort`.
    NodePort,
    /// `LoadBalancer`.
    LoadBalancer,
}

/// One port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its name; empty for the only port of a Service.
    pub name: &'static str,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The port at the Service's addresses.
    pub number: u16,
    /// The node port.
    pub node_port: Option<u16>,
    /// The port at the endpoints, one of two.
    pub target: u16,
}

/// The traffic policy of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// All endpoints are used.
    Cluster,
    /// Only endpoints on the same node are used.
    Local,
}

/// The session affinity of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Affinity {
    /// `None`.
    None,
    /// `ClientIP`, with a timeout longer than a comparison.
    ClientIp,
}

/// The load balancer status of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ingress {
    /// It has no address yet.
    Absent,
    /// Addresses of both families, without `ipMode`.
    Plain,
    /// The same addresses with `ipMode: VIP`.
    Vip,
    /// The same addresses with `ipMode: Proxy`.
    Proxy,
}

/// Whether a Service has external IPs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExternalIps {
    /// None.
    Absent,
    /// One of each family, independent of the families of the Service.
    OfBothFamilies,
}

/// The hints of a Service's endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hints {
    /// None.
    Absent,
    /// A zone for each endpoint.
    Zones,
    /// A node and a zone for each endpoint.
    Nodes,
    /// Like [`Hints::Zones`], but the first endpoint has no hint.
    AllButOne,
}

/// The ports of a Service's EndpointSlices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slices {
    /// Every slice has every port.
    Even,
    /// Only the first slice of each family has the last port.
    Uneven,
}

/// The proxy responsible for a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proxy {
    /// Any service proxy.
    Any,
    /// Another proxy, by the label `service.kubernetes.io/service-proxy-name`.
    Another,
}

/// One endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// Its place.
    pub place: Place,
    /// Its conditions.
    pub condition: Condition,
    /// The number of the node in its hints.
    pub hinted: u8,
}

/// The place of an endpoint's server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A pod, by the numbers of its node and of the pod.
    Pod(u8, u8),
    /// A node itself.
    Host(u8),
}

/// The conditions of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// All conditions are unset, which means ready and serving.
    Unsaid,
    /// Explicitly ready and serving.
    Ready,
    /// Neither ready nor serving.
    Unready,
    /// Terminating and still serving.
    Draining,
    /// Terminating and no longer serving.
    Ending,
    /// Terminating but ready, as with `publishNotReadyAddresses`.
    Published,
}

/// The ports on which the servers in every place listen.
pub(super) const TARGETS: [u16; 2] = [8080, 8081];
/// Every place that has a server.
pub(super) const PLACES: [Place; 6] = [
    Place::Pod(1, 5),
    Place::Pod(1, 6),
    Place::Pod(2, 7),
    Place::Pod(2, 8),
    Place::Host(1),
    Place::Host(2),
];

/// The first node port: port `i` of Service `n` has `NODE_PORTS + 4n + i`.
const NODE_PORTS: u16 = 30_000;
/// Source ranges that allow one outside client, all of them, pods, or the node: for both families
/// or one.
const SOURCE_RANGES: [&[&str]; 5] = [
    &["203.0.113.2/32", "2001:db8:113::2/128"],
    &["203.0.113.0/24", "2001:db8:113::/64"],
    &["10.0.0.0/16", "fd00:10::/48"],
    &["192.168.0.1/32", "fd00:192:168::1/128"],
    &["203.0.113.3/32"],
];

// === impl Service ===

impl Service {
    /// Its name.
    pub fn name(&self) -> String {
        format!("s{}", self.number)
    }

    /// Whether the API accepts `externalTrafficPolicy`.
    pub fn may_be_external(&self) -> bool {
        self.kind != Kind::ClusterIp || self.external_ips == ExternalIps::OfBothFamilies
    }

    /// Whether an endpoint is ready and every client in the cluster can reach it.
    pub fn is_served(&self) -> bool {
        let ready = |endpoint: &Endpoint| endpoint.condition == Condition::Ready;
        self.endpoints.iter().any(ready)
            && self.internal == Policy::Cluster
            && self.slices == Slices::Even
    }

    /// Returns the health-check node port, if the API accepts one.
    pub fn health_check_port(&self) -> Option<u16> {
        let asked = self.kind == Kind::LoadBalancer && self.external == Policy::Local;
        asked.then(|| NODE_PORTS + 4 * u16::from(self.number) + 3)
    }
}

impl fmt::Display for Service {
    /// Shows everything that varies between Services, for error messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {:?} {:?} eTP={:?} iTP={:?} affinity={:?} ranges={:?} ingress={:?} externalIPs={:?} \
             hints={:?} slices={:?} proxy={:?}",
            self.name(),
            self.kind,
            self.families,
            self.external,
            self.internal,
            self.affinity,
            self.source_ranges,
            self.ingress,
            self.external_ips,
            self.hints,
            self.slices,
            self.proxy,
        )?;
        for port in &self.ports {
            write!(
                f,
                "\n    port {:?} {} {} -> {}, node port {:?}",
                port.name, port.protocol, port.number, port.target, port.node_port
            )?;
        }
        for endpoint in &self.endpoints {
            let Endpoint {
                place,
                condition,
                hinted,
            } = endpoint;
            write!(f, "\n    {place:?} {condition:?} hinted at node {hinted}")?;
        }
        Ok(())
    }
}
