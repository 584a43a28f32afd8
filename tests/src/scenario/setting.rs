//! Changes to the default configuration, by a word.

use std::str::FromStr;

use testkit::ConfigBuilder;

/// One way in which a configuration differs from what a profile without any wishes gives: node
/// ports on the node's own address, local traffic by the node's pod CIDR, Service CIDRs known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// `masquerade-all`: all traffic to cluster IPs is masqueraded.
    MasqueradeAll,
    /// `node-ports-anywhere`: node ports on every address that is not loopback.
    NodePortsAnywhere,
    /// `no-local-detection`: no traffic counts as coming from this node's pods.
    NoLocalDetection,
    /// `service-cidrs-unknown`: the cluster has no ServiceCIDR objects.
    ServiceCidrsUnknown,
    /// `external-ips-ignored`: `spec.externalIPs` is not honoured.
    ExternalIpsIgnored,
    /// `round-robin`: endpoints take turns.
    RoundRobin,
}

impl Setting {
    pub(super) fn change(self, config: ConfigBuilder) -> ConfigBuilder {
        match self {
            Setting::MasqueradeAll => config.masquerade_all(),
            Setting::NodePortsAnywhere => config.node_ports_anywhere(),
            Setting::NoLocalDetection => config.detect_nothing(),
            Setting::ServiceCidrsUnknown => config.without_service_cidrs(),
            Setting::ExternalIpsIgnored => config.ignore_external_ips(),
            Setting::RoundRobin => config.round_robin(),
        }
    }
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(word: &str) -> Result<Setting, String> {
        Ok(match word {
            "masquerade-all" => Setting::MasqueradeAll,
            "node-ports-anywhere" => Setting::NodePortsAnywhere,
            "no-local-detection" => Setting::NoLocalDetection,
            "service-cidrs-unknown" => Setting::ServiceCidrsUnknown,
            "external-ips-ignored" => Setting::ExternalIpsIgnored,
            "round-robin" => Setting::RoundRobin,
            _ => {
                return Err(format!(
                    "{word:?} is not a setting: masquerade-all, node-ports-anywhere, \
                     no-local-detection, service-cidrs-unknown, external-ips-ignored or round-robin"
                ));
            }
        })
    }
}
