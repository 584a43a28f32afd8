//! What both proxies are told, each in its own words.

use std::net::IpAddr;
use std::path::Path;

use anyhow::Result;
use dataplane::Family;
use serde_json::{Value, json};
use testkit::address_plan as addresses;

use super::mode::Mode;
use crate::stamped;

/// What differs from one contest to the next. Everything else is as both have it by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Configuration {
    /// What both program.
    pub mode: Mode,
    /// Whose traffic is local.
    pub detection: Detection,
    /// Who is masqueraded on the way to a cluster IP.
    pub masquerade: Masquerade,
    /// Which addresses take node ports.
    pub node_ports: NodePorts,
}

/// How a pod of the node is told from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detection {
    /// By the node's pod CIDRs.
    NodeCidr,
    /// By the cluster's.
    ClusterCidr,
    /// By the name of the interface.
    InterfaceNamePrefix,
}

/// Who is masqueraded on the way to a cluster IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Masquerade {
    /// Who is not local.
    NonLocal,
    /// Everybody.
    All,
}

/// Which addresses take node ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodePorts {
    /// The node's own first address of each family.
    Primary,
    /// All but loopback.
    Anywhere,
    /// The second address of IPv4; all of IPv6, of which nothing is said.
    Second,
}

// === impl Configuration ===

impl Configuration {
    /// One for each seed, the default for 0; neighbours differ in everything they can.
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

    /// The file that kube-proxy reads. It leaves the sysctls of conntrack alone: they are not what
    /// is compared.
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
        // Each mode has a section of its own.
        file[self.mode.word()] = json!({
            "masqueradeAll": self.masquerade == Masquerade::All,
            "minSyncPeriod": "1s",
        });
        file
    }

    /// The NodeProxy that our agent reads, as the operator would have stamped it.
    pub(super) fn of_signpost(self) -> Result<Value> {
        let profile = json!({
            "mode": self.mode.word(),
            "detectLocal": self.detect_local(),
            "masquerade": {"all": self.masquerade == Masquerade::All},
            "nodePorts": {"addresses": self.node_port_addresses()},
        });
        stamped::node_proxy("contest", profile)
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
    /// Whether `ip`, an address of node 1, is to take node ports.
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
