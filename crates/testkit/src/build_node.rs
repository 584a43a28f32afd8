//! The node under test and its configuration in one expression.

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::{
    Config, ExternalIps, Family, InterfaceMatch, LocalDetection, Masquerade, Node,
    NodePortAddresses, Scheduler,
};
use ipnet::IpNet;

use crate::{address_plan as plan, parse};

/// A node on its way.
#[derive(Debug, Clone)]
pub struct NodeBuilder(Node);

/// A configuration on its way.
#[derive(Debug, Clone)]
pub struct ConfigBuilder(Config);

/// Starts the node `node-N` of the address plan with both families: loopback, its address, its
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

/// Starts the configuration of node 1 as a profile without any wishes gives it: node ports on the
/// node's own address, local traffic by its pod CIDR, Service CIDRs known.
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
    /// Puts the node in a zone.
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

    /// The node.
    pub fn build(self) -> Arc<Node> {
        Arc::new(self.0)
    }
}

impl ConfigBuilder {
    /// Node ports on every address that is not loopback.
    #[must_use]
    pub fn node_ports_anywhere(mut self) -> ConfigBuilder {
        self.0.node_ports = NodePortAddresses::ANY;
        self
    }

    /// Node ports are accepted on just these addresses.
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

    /// Local traffic is what comes from these ranges.
    #[track_caller]
    #[must_use]
    pub fn detect_by_source(mut self, ranges: &[&str]) -> ConfigBuilder {
        let ranges: Vec<IpNet> = ranges.iter().map(|range| parse(range, "a CIDR")).collect();
        self.0.local_detection = source_detection(&ranges);
        self
    }

    /// Local traffic is what comes in on this interface.
    #[must_use]
    pub fn detect_by_bridge(mut self, name: &str) -> ConfigBuilder {
        self.0.local_detection = LocalDetection::Interface(InterfaceMatch::Named(name.into()));
        self
    }

    /// Local traffic is what comes in on interfaces whose names start like this.
    #[must_use]
    pub fn detect_by_prefix(mut self, prefix: &str) -> ConfigBuilder {
        self.0.local_detection = LocalDetection::Interface(InterfaceMatch::Prefix(prefix.into()));
        self
    }

    /// No traffic counts as local.
    #[must_use]
    pub fn detect_nothing(mut self) -> ConfigBuilder {
        self.0.local_detection = LocalDetection::None;
        self
    }

    /// All traffic to cluster IPs is masqueraded.
    #[must_use]
    pub fn masquerade_all(mut self) -> ConfigBuilder {
        self.0.masquerade = Masquerade::All;
        self
    }

    /// Service CIDRs are not known.
    #[must_use]
    pub fn without_service_cidrs(mut self) -> ConfigBuilder {
        self.0.service_cidrs.clear();
        self
    }

    /// External IPs are left alone.
    #[must_use]
    pub fn ignore_external_ips(mut self) -> ConfigBuilder {
        self.0.external_ips = ExternalIps::Ignored;
        self
    }

    /// How endpoints are chosen.
    #[must_use]
    pub fn scheduler(mut self, scheduler: Scheduler) -> ConfigBuilder {
        self.0.scheduler = scheduler;
        self
    }

    /// The configuration.
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
