//! The configuration of both proxies, each in its own format.

use std::net::IpAddr;
use std::path::Path;

use anyhow::Result;
use dataplane::Family;
use serde_json::{Value, json};
use testkit::address_plan as addresses;

use super::mode::Mode;
use crate::stamped;

/// The settings that vary. Everything else has each proxy's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Configuration {
    /// The mode of both.
    pub mode: Mode,
    /// How local traffic is detected.
    pub detection: Detection,
    /// Which traffic to cluster IPs is masqueraded.
    pub masquerade: Masquerade,
    /// Which node addresses accept node ports.
    pub node_ports: NodePorts,
}

/// How traffic from pods of the node is recognized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detection {
    /// By the node's pod CIDRs.
    NodeCidr,
    /// By the cluster's pod CIDRs.
    ClusterCidr,
    /// By the prefix of the interface name.
    InterfaceNamePrefix,
}

/// Which traffic to cluster IPs is masqueraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Masquerade {
    /// Traffic that is not local.
    NonLocal,
    /// All traffic.
    All,
}

/// Which node addresses accept node ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodePorts {
    /// The node's primary address of each family.
    Primary,
    /// All addresses; loopback for IPv4 only.
    Anywhere,
    /// The second IPv4 address; all IPv6 addresses, which are not restricted.
    Second,
}

// === impl Configuration ===

impl Configuration {
    /// Returns the configuration for a seed, the default for 0. Consecutive seeds differ in every
    /// setting where possible.
    pub fn of_seed(mode: Mode, seed: u64) -> Configuration {
        Configuration {
            mode,
            detection: match seed % 3 {
                0 => Detection::NodeCidr,
                1 => Detection::InterfaceNamePrefix,
                _ => Detection::ClusterCidr,
            },
            masquerade: match seed % 4 {
                0 | 1 | 3 => Masquerade::NonLocal,
                _ => Masquerade::All,
            },
            node_ports: match (seed + seed / 3) % 3 {
                0 => NodePorts::Primary,
                1 => NodePorts::Anywhere,
                _ => NodePorts::Second,
            },
        }
    }

    /// Returns kube-proxy's configuration file. It leaves the conntrack sysctls alone, which are
    /// not compared.
    pub(super) fn of_kube_proxy(self, kubeconfig: &Path) -> Value {
        let mut file = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": self.mode.word(),
            "hostnameOverride": addresses::NODE,
            "clientConnection": {"kubeconfig": kubeconfig},
            "detectLocalMode": self.detection_mode(),
            "clusterCIDR": cluster_cidrs().join(","),
            "detectLocal": {"interfaceNamePrefix": addresses::POD_INTERFACE_PREFIX},
            "nodePortAddresses": self.node_port_addresses(),
            "oomScoreAdj": 0,
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        });
        // Each mode has its own section, but mode ipvs takes this one from that of iptables
        // (`pkg/proxy/apis/config/v1alpha1/conversion.go`).
        let masquerade_section = match self.mode {
            Mode::Nftables => "nftables",
            Mode::Iptables(_) | Mode::Ipvs => "iptables",
        };
        file[masquerade_section]["masqueradeAll"] = json!(self.masquerade == Masquerade::All);
        file[self.mode.word()]["minSyncPeriod"] = json!("1s");
        file
    }

    /// Returns the NodeProxy for Signpost's agent, as the operator would write it.
    pub(super) fn of_signpost(self) -> Result<Value> {
        let profile = json!({
            "mode": self.mode.word(),
            "detectLocal": self.detect_local(),
            "masquerade": {"all": self.masquerade == Masquerade::All},
            "nodePorts": {"addresses": self.node_port_addresses()},
        });
        stamped::node_proxy("differential", profile)
    }

    fn detection_mode(self) -> &'static str {
        match self.detection {
            Detection::NodeCidr => "NodeCIDR",
            Detection::ClusterCidr => "ClusterCIDR",
            Detection::InterfaceNamePrefix => "InterfaceNamePrefix",
        }
    }

    fn detect_local(self) -> Value {
        let mode = self.detection_mode();
        match self.detection {
            Detection::NodeCidr => json!({"mode": mode}),
            Detection::ClusterCidr => json!({"mode": mode, "clusterCIDRs": cluster_cidrs()}),
            Detection::InterfaceNamePrefix => {
                json!({"mode": mode, "interfaceNamePrefix": addresses::POD_INTERFACE_PREFIX})
            }
        }
    }

    fn node_port_addresses(self) -> Value {
        match self.node_ports {
            NodePorts::Primary => json!(["primary"]),
            NodePorts::Anywhere => json!(["0.0.0.0/0", "::/0"]),
            NodePorts::Second => {
                json!([format!("{}/32", addresses::second_address(1, Family::Ipv4))])
            }
        }
    }
}

// === impl NodePorts ===

impl NodePorts {
    /// Whether `ip`, an address of node 1, accepts node ports.
    pub(super) fn take(self, ip: IpAddr) -> bool {
        let family = Family::of(ip);
        match (self, family) {
            _ if ip.is_loopback() => self == NodePorts::Anywhere && family == Family::Ipv4,
            (NodePorts::Primary, _) => ip == addresses::node_address(1, family),
            (NodePorts::Second, Family::Ipv4) => ip == addresses::second_address(1, family),
            (NodePorts::Second, Family::Ipv6) | (NodePorts::Anywhere, _) => true,
        }
    }
}

fn cluster_cidrs() -> [String; 2] {
    Family::ALL.map(|family| addresses::cluster_cidr(family).to_string())
}
