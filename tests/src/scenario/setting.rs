//! Changes to the default configuration, each with a keyword.

use std::str::FromStr;

use dataplane::{Family, Mode, Scheduler};
use testkit::{ConfigBuilder, address_plan};

/// One difference from the configuration of an empty profile, which has node ports on the node's
/// primary address, local traffic detected by the node's pod CIDR, and known Service CIDRs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// `masquerade-all`: all traffic to cluster IPs is masqueraded.
    MasqueradeAll,
    /// `node-ports-anywhere`: node ports on every address that is not loopback.
    NodePortsAnywhere,
    /// `node-ports-link-local`: node ports only on the node's link-local address.
    NodePortsLinkLocal,
    /// `no-local-detection`: no traffic counts as coming from this node's pods.
    NoLocalDetection,
    /// `detect-interface`: traffic from the interface `veth9` is local, as if it were a bridge.
    DetectInterface,
    /// `detect-prefix`: traffic from interfaces whose names start with `veth` is local.
    DetectPrefix,
    /// `detect-cluster-cidr`: traffic from all pods of the cluster is local.
    DetectClusterCidr,
    /// `service-cidrs-unknown`: the cluster has no ServiceCIDR objects.
    ServiceCidrsUnknown,
    /// `external-ips-ignored`: `spec.externalIPs` is ignored.
    ExternalIpsIgnored,
    /// `round-robin`: endpoints take turns.
    RoundRobin,
    /// `mode-ipvs`: Services may ask for the schedulers that only IPVS has.
    ModeIpvs,
}

impl Setting {
    pub(super) fn change(self, config: ConfigBuilder) -> ConfigBuilder {
        match self {
            Setting::MasqueradeAll => config.masquerade_all(),
            Setting::NodePortsAnywhere => config.node_ports_anywhere(),
            Setting::NodePortsLinkLocal => {
                config.node_ports_at(&[&address_plan::link_local_address().to_string()])
            }
            Setting::NoLocalDetection => config.detect_nothing(),
            Setting::DetectInterface => config.detect_by_bridge("veth9"),
            Setting::DetectPrefix => config.detect_by_prefix(address_plan::POD_INTERFACE_PREFIX),
            Setting::DetectClusterCidr => {
                let ranges = Family::ALL.map(|f| address_plan::cluster_cidr(f).to_string());
                config.detect_by_source(&ranges.each_ref().map(String::as_str))
            }
            Setting::ServiceCidrsUnknown => config.without_service_cidrs(),
            Setting::ExternalIpsIgnored => config.ignore_external_ips(),
            Setting::RoundRobin => config.scheduler(Scheduler::RoundRobin),
            Setting::ModeIpvs => config.mode(Mode::Ipvs),
        }
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(word: &str) -> Result<Setting, String> {
        Ok(match word {
            "masquerade-all" => Setting::MasqueradeAll,
            "node-ports-anywhere" => Setting::NodePortsAnywhere,
            "node-ports-link-local" => Setting::NodePortsLinkLocal,
            "no-local-detection" => Setting::NoLocalDetection,
            "detect-interface" => Setting::DetectInterface,
            "detect-prefix" => Setting::DetectPrefix,
            "detect-cluster-cidr" => Setting::DetectClusterCidr,
            "service-cidrs-unknown" => Setting::ServiceCidrsUnknown,
            "external-ips-ignored" => Setting::ExternalIpsIgnored,
            "round-robin" => Setting::RoundRobin,
            "mode-ipvs" => Setting::ModeIpvs,
            _ => {
                return Err(format!(
                    "{word:?} is not a setting: masquerade-all, node-ports-anywhere, node-ports-link-local, \
                     no-local-detection, detect-interface, detect-prefix, detect-cluster-cidr, service-cidrs-unknown, external-ips-ignored, round-robin or mode-ipvs"
                ));
            }
        })
    }
}
