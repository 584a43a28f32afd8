//! Services that a seed makes up, and what becomes of them.

mod generation;
mod mutation;

use std::fmt;

use dataplane::{Family, Protocol};

/// The Services of one contest at one moment.
#[derive(Debug, Clone)]
pub struct Population {
    /// Those that are there.
    pub services: Vec<Service>,
    /// Those that were there: what becomes of packets to their addresses is asked too.
    pub deleted: Vec<Service>,
    /// The number of the next Service; none is used twice.
    next: u8,
}

/// One Service and the EndpointSlices that a person wrote for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its number, and the last number of each of its addresses.
    pub number: u8,
    /// Its type.
    pub kind: Kind,
    /// Its families, the first one first.
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
    /// What the load balancer's controller writes into the status.
    pub ingress: Ingress,
    /// `externalIPs`.
    pub external_ips: ExternalIps,
    /// What the endpoints' hints name.
    pub hints: Hints,
    /// The ports that its EndpointSlices have.
    pub slices: Slices,
    /// Whose Service it is.
    pub proxy: Proxy,
    /// The endpoints, in each family of the Service, in one slice and the other by turns.
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
    /// Its number at the Service's addresses.
    pub number: u16,
    /// Its number at the node's addresses.
    pub node_port: Option<u16>,
    /// Its number at the endpoints, one of two.
    pub target: u16,
}

/// Whether endpoints elsewhere count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// All endpoints.
    Cluster,
    /// Those of this node.
    Local,
}

/// Whether a client stays with its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Affinity {
    /// `None`.
    None,
    /// `ClientIP`, for longer than a contest lasts.
    ClientIp,
}

/// What the status of a load balancer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ingress {
    /// It has no address yet.
    Absent,
    /// Addresses of both families, without `ipMode`.
    Plain,
    /// The same with `ipMode: VIP`.
    Vip,
    /// The same with `ipMode: Proxy`.
    Proxy,
}

/// Whether a Service has external IPs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExternalIps {
    /// None.
    Absent,
    /// One of each family, whatever the families of the Service.
    OfBothFamilies,
}

/// What the hints of a Service's endpoints name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hints {
    /// Nothing.
    Absent,
    /// The zone that each endpoint is for.
    Zones,
    /// The node that each endpoint is for, and its zone.
    Nodes,
    /// As [`Hints::Zones`], but for the first endpoint, which has none.
    AllButOne,
}

/// The ports that the EndpointSlices of a Service have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slices {
    /// Every slice has every port.
    Even,
    /// The last port is in the first slice of each family alone.
    Uneven,
}

/// Who is to program a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proxy {
    /// Whoever programs Services.
    Any,
    /// Somebody else, by the label `service.kubernetes.io/service-proxy-name`.
    Another,
}

/// One endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// Where it is.
    pub place: Place,
    /// What its conditions say.
    pub condition: Condition,
    /// The number of the node that its hints name.
    pub hinted: u8,
}

/// Where an endpoint's server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In a pod, by the numbers of its node and its own.
    Pod(u8, u8),
    /// On a node itself.
    Host(u8),
}

/// The conditions of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Ready and serving, which every condition left out means too.
    Unsaid,
    /// Ready and serving, in so many words.
    Ready,
    /// Neither ready nor serving.
    Unready,
    /// Serves while it terminates.
    Draining,
    /// Terminates and serves no more.
    Ending,
    /// Terminates and counts as ready, as `publishNotReadyAddresses` makes it.
    Published,
}

/// Where servers listen, in every place.
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

/// Where node ports begin: port `i` of Service `n` has `NODE_PORTS + 4n + i`.
const NODE_PORTS: u16 = 30_000;
/// Lists that let in one client outside, all of them, pods, or the node: IPv4 and IPv6, or one.
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

    /// Whether the API lets `externalTrafficPolicy` be set.
    pub fn may_be_external(&self) -> bool {
        self.kind != Kind::ClusterIp || self.external_ips == ExternalIps::OfBothFamilies
    }

    /// Whether some endpoint is ready and nothing keeps clients in the cluster from it.
    pub fn is_served(&self) -> bool {
        let ready = |endpoint: &Endpoint| endpoint.condition == Condition::Ready;
        self.endpoints.iter().any(ready)
            && self.internal == Policy::Cluster
            && self.slices == Slices::Even
    }

    /// The port at which load balancers ask for local endpoints, where the API gives it a meaning.
    pub fn health_check_port(&self) -> Option<u16> {
        let asked = self.kind == Kind::LoadBalancer && self.external == Policy::Local;
        asked.then(|| NODE_PORTS + 4 * u16::from(self.number) + 3)
    }
}

impl fmt::Display for Service {
    /// What an error shows of it: everything that differs from one Service to the next.
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
