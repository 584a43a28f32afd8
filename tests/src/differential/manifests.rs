//! A population as API objects.

use std::net::{IpAddr, SocketAddr};

use dataplane::{Family, Protocol};
use serde_json::{Map, Value, json};
use testkit::address_plan as addresses;

use super::population::{
    Affinity, Condition, Endpoint, ExternalIps, Hints, Ingress, Kind, Place, Policy, Port, Proxy,
    Service, Slices, TARGETS,
};

/// The namespace of all Services.
pub(super) const NAMESPACE: &str = "differential";
/// The host number of the canary's addresses, below those of all other Services.
const CANARY_NUMBER: u8 = 11;
/// The port of the canary in round 0.
const CANARY_PORT: u16 = 1000;
/// The numbers of the EndpointSlices of one Service and family.
const PARTS: [usize; 2] = [0, 1];

/// The Service written last in each round, with another port and another endpoint than in the
/// previous round. A proxy that forwards to them has processed everything before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Canary {
    /// The number of the round.
    pub(super) round: u16,
}

// === impl Canary ===

impl Canary {
    /// Returns its address in this round.
    pub(super) fn address(self, family: Family) -> SocketAddr {
        let number = CANARY_PORT + self.round;
        SocketAddr::new(addresses::cluster_ip(CANARY_NUMBER, family), number)
    }

    /// Returns its endpoint in this round.
    pub(super) fn place(self) -> Place {
        Place::Pod(1, if self.round.is_multiple_of(2) { 5 } else { 6 })
    }

    pub(super) fn objects(self) -> Vec<Value> {
        let ips = Family::ALL.map(|family| addresses::cluster_ip(CANARY_NUMBER, family));
        let number = CANARY_PORT + self.round;
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"namespace": NAMESPACE, "name": "canary"},
            "spec": {
                "clusterIP": ips[0],
                "clusterIPs": ips,
                "ipFamilies": Family::ALL.map(family_name),
                "ipFamilyPolicy": "RequireDualStack",
                "ports": [{"protocol": "TCP", "port": number, "targetPort": TARGETS[0]}],
            },
        });
        let slices = Family::ALL.map(|family| {
            let name = format!("canary-{}", family_name(family).to_lowercase());
            let port = json!({"name": "", "protocol": "TCP", "port": TARGETS[0]});
            let endpoint = json!({"addresses": [self.place().address(family)]});
            slice_object("canary", &name, family, &[port], vec![endpoint])
        });
        let [ipv4, ipv6] = slices;
        vec![service, ipv4, ipv6]
    }
}

// === impl Place ===

impl Place {
    /// Returns the address of the server in this place.
    pub fn address(self, family: Family) -> IpAddr {
        match self {
            Place::Pod(node, pod) => addresses::pod_address(node, pod, family),
            Place::Host(node) => addresses::node_address(node, family),
        }
    }

    /// Returns the number of its node.
    pub fn node(self) -> u8 {
        match self {
            Place::Pod(node, _) | Place::Host(node) => node,
        }
    }
}

pub(super) fn service_object(service: &Service) -> Value {
    let ips: Vec<IpAddr> = service
        .families
        .iter()
        .map(|family| addresses::cluster_ip(service.number, *family))
        .collect();
    let mut spec = Map::new();
    let mut set = |field: &str, value: Value| spec.insert(field.to_owned(), value);
    set("type", json!(kind_name(service.kind)));
    set("clusterIP", json!(ips[0]));
    set("clusterIPs", json!(ips));
    let families: Vec<&str> = service.families.iter().map(|f| family_name(*f)).collect();
    set("ipFamilies", json!(families));
    let policy = match families.len() {
        1 => "SingleStack",
        _ => "RequireDualStack",
    };
    set("ipFamilyPolicy", json!(policy));
    let ports = service.ports.iter().map(|port| {
        let mut object = json!({
            "name": port.name,
            "protocol": protocol_name(port.protocol),
            "port": port.number,
            "targetPort": port.target,
        });
        if let Some(node_port) = port.node_port {
            object["nodePort"] = json!(node_port);
        }
        object
    });
    set("ports", ports.collect());
    if service.kind == Kind::LoadBalancer {
        let allocate = service.ports.iter().any(|port| port.node_port.is_some());
        set("allocateLoadBalancerNodePorts", json!(allocate));
    }
    set(
        "internalTrafficPolicy",
        json!(policy_name(service.internal)),
    );
    if service.may_be_external() {
        set(
            "externalTrafficPolicy",
            json!(policy_name(service.external)),
        );
    }
    if let Some(port) = service.health_check_port() {
        set("healthCheckNodePort", json!(port));
    }
    match service.affinity {
        Affinity::None => set("sessionAffinity", json!("None")),
        Affinity::ClientIp => set("sessionAffinity", json!("ClientIP")),
    };
    if !service.source_ranges.is_empty() {
        set("loadBalancerSourceRanges", json!(service.source_ranges));
    }
    if service.external_ips == ExternalIps::OfBothFamilies {
        let own = Family::ALL.map(|family| addresses::external_ip(service.number, family));
        set("externalIPs", json!(own));
    }
    let labels = match service.proxy {
        Proxy::Any => json!({}),
        Proxy::Another => json!({"service.kubernetes.io/service-proxy-name": "another"}),
    };
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": NAMESPACE, "name": service.name(), "labels": labels},
        "spec": spec,
    })
}

pub(super) fn status_object(service: &Service) -> Value {
    let mode = match service.ingress {
        Ingress::Absent | Ingress::Plain => None,
        Ingress::Vip => Some("VIP"),
        Ingress::Proxy => Some("Proxy"),
    };
    let entry = |family| {
        let mut entry = json!({"ip": addresses::load_balancer_ip(service.number, family)});
        if let Some(mode) = mode {
            entry["ipMode"] = json!(mode);
        }
        entry
    };
    let ingress = match service.ingress {
        Ingress::Absent => json!([]),
        Ingress::Plain | Ingress::Vip | Ingress::Proxy => json!(Family::ALL.map(entry)),
    };
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": NAMESPACE, "name": service.name()},
        "status": {"loadBalancer": {"ingress": ingress}},
    })
}

pub(super) fn names_of_slices(service: &Service) -> Vec<String> {
    let of_family = |family: &Family| PARTS.map(|part| slice_name(service, *family, part));
    service.families.iter().flat_map(of_family).collect()
}

fn slice_name(service: &Service, family: Family, part: usize) -> String {
    let family = family_name(family).to_lowercase();
    format!("{}-{family}-{part}", service.name())
}

/// Returns the slices of a Service. Endpoints alternate between two slices, which exist even if
/// empty.
pub(super) fn slice_objects(service: &Service) -> Vec<Value> {
    let port = |port: &Port| {
        json!({
            "name": port.name,
            "protocol": protocol_name(port.protocol),
            "port": port.target,
        })
    };
    let ports: Vec<Value> = service.ports.iter().map(port).collect();
    let of_part = |family: Family, part: usize| {
        let all = service.endpoints.iter().enumerate();
        let own = all.filter(|(index, _)| index % PARTS.len() == part);
        let endpoints = own.map(|(index, endpoint)| {
            let hints = match (service.hints, index) {
                (Hints::AllButOne, 0) => Hints::Absent,
                (hints, _) => hints,
            };
            endpoint_object(endpoint, family, hints)
        });
        let name = slice_name(service, family, part);
        let ports = match (service.slices, part) {
            (Slices::Uneven, 1..) => &ports[..ports.len() - 1],
            (Slices::Even, _) | (Slices::Uneven, 0) => &ports[..],
        };
        slice_object(&service.name(), &name, family, ports, endpoints.collect())
    };
    let of_family = |family: &Family| PARTS.map(|part| of_part(*family, part));
    service.families.iter().flat_map(of_family).collect()
}

fn slice_object(
    service: &str,
    name: &str,
    family: Family,
    ports: &[Value],
    endpoints: Vec<Value>,
) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": NAMESPACE,
            "name": name,
            "labels": {
                "kubernetes.io/service-name": service,
                // The EndpointSlice controller would delete slices that it considers its own.
                "endpointslice.kubernetes.io/managed-by": "differential",
            },
        },
        "addressType": family_name(family),
        "ports": ports,
        "endpoints": endpoints,
    })
}

fn endpoint_object(endpoint: &Endpoint, family: Family, hints: Hints) -> Value {
    let conditions = |ready: bool, serving: bool, terminating: bool| json!({"ready": ready, "serving": serving, "terminating": terminating});
    let conditions = match endpoint.condition {
        Condition::Unsaid => json!({}),
        Condition::Ready => conditions(true, true, false),
        Condition::Unready => conditions(false, false, false),
        Condition::Draining => conditions(false, true, true),
        Condition::Ending => conditions(false, false, true),
        Condition::Published => conditions(true, true, true),
    };
    let mut object = json!({
        "addresses": [endpoint.place.address(family)],
        "conditions": conditions,
        "nodeName": *addresses::node_name(endpoint.place.node()),
    });
    let zones = json!([{"name": zone_of(endpoint.hinted)}]);
    match hints {
        Hints::Absent => {}
        Hints::Zones | Hints::AllButOne => object["hints"] = json!({"forZones": zones}),
        Hints::Nodes => {
            let nodes = json!([{"name": *addresses::node_name(endpoint.hinted)}]);
            object["hints"] = json!({"forZones": zones, "forNodes": nodes});
        }
    }
    object
}

/// Returns the zone of a node.
pub(super) fn zone_of(node: u8) -> &'static str {
    if node == 1 { "a" } else { "b" }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::ClusterIp => "ClusterIP",
        Kind::NodePort => "NodePort",
        Kind::LoadBalancer => "LoadBalancer",
    }
}

fn policy_name(policy: Policy) -> &'static str {
    match policy {
        Policy::Cluster => "Cluster",
        Policy::Local => "Local",
    }
}

fn family_name(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "IPv4",
        Family::Ipv6 => "IPv6",
    }
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}
