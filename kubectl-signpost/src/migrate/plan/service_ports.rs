//! The ports of Services that may be ports of nodes. Pure.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use crate::pod_network::Protocol;

/// The ports of a Service that may be ports of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::migrate) struct ServicePorts {
    /// The namespace and the name: `shop/cart`.
    pub(super) name: String,
    pub(super) ports: Vec<(Protocol, i32)>,
    pub(super) node_ports: Vec<(Protocol, i32)>,
    /// The load-balancer IPs at which nodes take `ports`.
    pub(super) load_balancer_ips: Vec<IpAddr>,
    /// The clients of the load-balancer IPs.
    pub(super) sources: Sources,
    /// The external IPs, at which kube-proxy takes `ports`. Signpost takes none at an address of
    /// the node.
    pub(super) external_ips: Vec<IpAddr>,
}

/// Which clients reach a load-balancer IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sources {
    All,
    /// Those in `loadBalancerSourceRanges`.
    InRanges,
}

// === impl ServicePorts ===

impl ServicePorts {
    /// Returns the ports of `service`; `None` if none can be a port of a node.
    pub(in crate::migrate) fn of(service: &Service) -> Option<ServicePorts> {
        let spec = service.spec.as_ref()?;
        let ports = spec.ports.iter().flatten();
        let ports = ports.filter_map(|port| {
            let protocol = Protocol::named(port.protocol.as_deref())?;
            Some((
                (protocol, port.port),
                port.node_port.map(|port| (protocol, port)),
            ))
        });
        let (ports, node_ports): (Vec<_>, Vec<Option<_>>) = ports.unzip();
        let node_ports: Vec<(Protocol, i32)> = node_ports.into_iter().flatten().collect();
        let status = service.status.as_ref();
        let balancer = status.and_then(|status| status.load_balancer.as_ref());
        let ingress = balancer.and_then(|balancer| balancer.ingress.as_ref());
        // A proxy between clients and nodes keeps its address to itself.
        let own = ingress.into_iter().flatten();
        let own = own.filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"));
        let load_balancer_ips = own.filter_map(|ingress| ingress.ip.as_ref()?.parse().ok());
        let load_balancer_ips: Vec<IpAddr> = load_balancer_ips.collect();
        let ranges = spec.load_balancer_source_ranges.as_ref();
        let sources = match ranges.is_none_or(Vec::is_empty) {
            true => Sources::All,
            false => Sources::InRanges,
        };
        let namespace = service.namespace().unwrap_or_default();
        let external_ips = spec.external_ips.iter().flatten();
        let external_ips: Vec<IpAddr> = external_ips.filter_map(|ip| ip.parse().ok()).collect();
        let addresses = [&load_balancer_ips, &external_ips];
        let is_any = !node_ports.is_empty() || !addresses.iter().all(|ips| ips.is_empty());
        is_any.then(|| ServicePorts {
            name: format!("{namespace}/{}", service.name_any()),
            ports,
            node_ports,
            load_balancer_ips,
            sources,
            external_ips,
        })
    }
}
