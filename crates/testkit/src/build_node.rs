//! Builders of the node under test and its configuration.

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::{
    Config, ExternalIps, Family, InterfaceMatch, LocalDetection, Masquerade, Mode, Node,
    NodePortAddresses, Scheduler,
};
use ipnet::IpNet;

use crate::{address_plan as plan, parse};

/// A node under construction.
#[derive(Debug, Clone)]
pub struct NodeBuilder(Node);

/// A configuration under construction.
#[derive(Debug, Clone)]
pub struct ConfigBuilder(Config);

/// Starts the node `node-N` of the address plan with both families. Loopback, its address, its
/// second address and its address on the pod bridge are local to it.
pub fn mk_node(n: u8) -> NodeBuilder {
    let mut node = Node {
        name: plan::node_name(n),
        ..Node::default()
    };
    for family in Family::ALL {
        match plan::node_address(n, family) {
            IpAddr::V4(address) => node.ipv4 = Some(address),
            IpAddr::V6(address) => node.ipv6 = Some(address),
        }
        node.local_addresses.extend([
            plan::loopback(family),
            plan::node_address(n, family),
            plan::second_address(n, family),
            plan::bridge_address(n, family),
        ]);
    }
    NodeBuilder(node)
}

/// Starts the default configuration of node 1: node ports on the node's own address, local traffic
/// detected by its pod CIDR, Service CIDRs known.
pub fn mk_config() -> ConfigBuilder {
    let primary = |family| Some([plan::node_address(1, family)].into());
    ConfigBuilder(Config {
        node_ports: NodePortAddresses {
            ipv4: primary(Family::Ipv4),
            ipv6: primary(Family::Ipv6),
        },
        local_detection: source_detection(&Family::ALL.map(|family| plan::pod_cidr(1, family))),
        service_cidrs: Family::ALL.map(plan::service_cidr).into(),
        ..Config::default()
    })
}

impl NodeBuilder {
    /// Sets the node's zone.
    #[must_use]
    pub fn zone(mut self, zone: &str) -> NodeBuilder {
        self.0.zone = Some(zone.into());
        self
    }

    /// Adds a local address.
    #[track_caller]
    #[must_use]
    pub fn local_address(mut self, address: &str) -> NodeBuilder {
        self.0.local_addresses.insert(parse(address, "an address"));
        self
    }

    /// Adds a local address that only the device of another service proxy has.
    #[track_caller]
    #[must_use]
    pub fn proxy_address(mut self, address: &str) -> NodeBuilder {
        self.0.proxy_addresses.insert(parse(address, "an address"));
        self.local_address(address)
    }

    /// Returns the node.
    pub fn build(self) -> Arc<Node> {
        Arc::new(self.0)
    }
}

impl ConfigBuilder {
    /// Accepts node ports on every address except loopback.
    #[must_use]
    pub fn node_ports_anywhere(mut self) -> ConfigBuilder {
        self.0.node_ports = NodePortAddresses::ANY;
        self
    }

    /// Accepts node ports on these addresses only.
    #[track_caller]
    #[must_use]
    pub fn node_ports_at(mut self, addresses: &[&str]) -> ConfigBuilder {
        let addresses = addresses.iter().map(|address| parse(address, "an address"));
        let (ipv4, ipv6) = addresses.partition(|address: &IpAddr| address.is_ipv4());
        self.0.node_ports = NodePortAddresses {
            ipv4: Some(ipv4),
            ipv6: Some(ipv6),
        };
        self
    }

    /// Detects local traffic by these source ranges.
    #[track_caller]
    #[must_use]
    pub fn detect_by_source(mut self, ranges: &[&str]) -> ConfigBuilder {
        let ranges: Vec<IpNet> = ranges.iter().map(|range| parse(range, "a CIDR")).collect();
        self.0.local_detection = source_detection(&ranges);
        self
    }

    /// Detects local traffic by this interface.
    #[must_use]
    pub fn detect_by_bridge(mut self, name: &str) -> ConfigBuilder {
        self.0.local_detection = LocalDetection::Interface(InterfaceMatch::Named(name.into()));
        self
    }

    /// Detects local traffic by interfaces whose names have this prefix.
    #[must_use]
    pub fn detect_by_prefix(mut self, prefix: &str) -> ConfigBuilder {
        self.0.local_detection = LocalDetection::Interface(InterfaceMatch::Prefix(prefix.into()));
        self
    }

    /// Detects no local traffic.
    #[must_use]
    pub fn detect_nothing(mut self) -> ConfigBuilder {
        self.0.local_detection = LocalDetection::None;
        self
    }

    /// Masquerades all traffic to cluster IPs.
    #[must_use]
    pub fn masquerade_all(mut self) -> ConfigBuilder {
        self.0.masquerade = Masquerade::All;
        self
    }

    /// Sets the Service CIDRs to unknown.
    #[must_use]
    pub fn without_service_cidrs(mut self) -> ConfigBuilder {
        self.0.service_cidrs.clear();
        self
    }

    /// Ignores external IPs.
    #[must_use]
    pub fn ignore_external_ips(mut self) -> ConfigBuilder {
        self.0.external_ips = ExternalIps::Ignored;
        self
    }

    /// Sets the scheduler.
    #[must_use]
    pub fn scheduler(mut self, scheduler: Scheduler) -> ConfigBuilder {
        self.0.scheduler = scheduler;
        self
    }

    /// Sets the kernel mechanism.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> ConfigBuilder {
        self.0.mode = mode;
        self
    }

    /// Returns the configuration.
    pub fn build(self) -> Arc<Config> {
        Arc::new(self.0)
    }
}

/// Detection by the first range of each family.
pub(crate) fn source_detection(ranges: &[IpNet]) -> LocalDetection {
    let (mut ipv4, mut ipv6) = (None, None);
    for range in ranges {
        match range {
            IpNet::V4(range) => ipv4 = ipv4.or(Some(*range)),
            IpNet::V6(range) => ipv6 = ipv6.or(Some(*range)),
        }
    }
    LocalDetection::Source { ipv4, ipv6 }
}
