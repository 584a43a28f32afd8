//! What both proxies are told, each in its own words.

use std::path::Path;

use anyhow::{Context, Result};
use crds::effective::hash::ConfigHash;
use crds::{EffectiveConfig, NodeProxySpec, ProxyProfileSpec};
use dataplane::Family;
use serde_json::{Value, json};
use testkit::address_plan as addresses;

/// What differs from one contest to the next. Everything else is as both have it by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Configuration {
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
    pub fn of_seed(seed: u64) -> Configuration {
        Configuration {
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
        json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": addresses::NODE,
            "clientConnection": {"kubeconfig": kubeconfig},
            "nftables": {
                "masqueradeAll": self.masquerade == Masquerade::All,
                "minSyncPeriod": "1s",
            },
            "detectLocalMode": self.mode(),
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
        })
    }

    /// The NodeProxy that our agent reads, as the operator would have stamped it.
    pub(super) fn of_signpost(self) -> Result<Value> {
        let profile = json!({
            "mode": "nftables",
            "detectLocal": self.detect_local(),
            "masquerade": {"all": self.masquerade == Masquerade::All},
            "nodePorts": {"addresses": self.node_port_addresses()},
        });
        let profile: ProxyProfileSpec =
            serde_json::from_value(profile).context("the profile above can be read")?;
        let config = EffectiveConfig::of(&profile);
        let spec = NodeProxySpec {
            profile_name: "contest".to_owned(),
            profile_generation: 1,
            config_hash: ConfigHash::of(&config),
            config,
            written_fields: Vec::new(),
        };
        Ok(json!({
            "apiVersion": "signpost.dev/v1alpha1",
            "kind": "NodeProxy",
            "metadata": {"name": addresses::NODE},
            "spec": spec,
        }))
    }

    fn mode(self) -> &'static str {
        match self.detection {
            Detection::NodeCidr => "NodeCIDR",
            Detection::ClusterCidr => "ClusterCIDR",
            Detection::InterfaceNamePrefix => "InterfaceNamePrefix",
        }
    }

    fn detect_local(self) -> Value {
        let mode = self.mode();
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

fn cluster_cidrs() -> [String; 2] {
    Family::ALL.map(|family| addresses::cluster_cidr(family).to_string())
}
