//! The complete configuration of a node: a profile with every default filled in.

pub mod hash;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    address::NodePortAddress,
    profile::{
        ProxyProfileSpec,
        detect_local::DetectLocal,
        forwarding::{Conntrack, LocalhostNodePorts, Masquerade, Scheduler},
        handover::Handover,
        mode::{Iptables, Ipvs, Mode, Nftables},
        process::{ClientConnection, FeatureGates, Logging},
    },
    span::Span,
};

/// The complete configuration of a node's agent: the values of the profile, and the default of the
/// mode where it has none. What only the operator reads (selector, priority, rollout) is not in it.
///
/// Fields that are missing when it is read get their defaults and unknown ones are ignored, so that operator and agent
/// may be one version apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EffectiveConfig {
    /// The kernel mechanism that forwards Service traffic.
    pub mode: Mode,
    /// How often the kernel is compared with the desired state, and the longest delay before a failed write is tried again.
    pub sync_period: Span,
    /// The least time between two writes to the kernel.
    pub min_sync_period: Span,
    /// How often everything read from the API server is processed again.
    pub config_sync_period: Span,
    /// How endpoints are chosen.
    pub scheduler: Scheduler,
    /// The node addresses that take node-port traffic: CIDRs, or primary alone; never empty.
    #[schemars(length(max = 32))]
    pub node_port_addresses: Vec<NodePortAddress>,
    /// Whether node ports answer on 127.0.0.1 and ::1 as well. none: they do not. userspace: the agent listens there
    /// and relays to the endpoints.
    pub localhost_node_ports: LocalhostNodePorts,
    /// When and how the source address of forwarded traffic is replaced by the node's.
    pub masquerade: Masquerade,
    /// How traffic of the node's own Pods is distinguished from other traffic.
    pub detect_local: DetectLocal,
    /// Whether traffic to a Service's spec.externalIPs is forwarded.
    #[serde(rename = "allowServiceExternalIPs")]
    pub allow_service_external_ips: bool,
    /// The kernel's connection tracking table.
    pub conntrack: Conntrack,
    /// Fields that only mode nftables reads.
    // Left out at its default, so that configurations from before this field keep their hash.
    #[serde(skip_serializing_if = "Nftables::is_default")]
    pub nftables: Nftables,
    /// Fields that only mode iptables reads.
    pub iptables: Iptables,
    /// Fields that only mode ipvs reads.
    pub ipvs: Ipvs,
    /// Which service proxy serves the node.
    // Left out at its default, so that configurations from before this field keep their hash.
    #[serde(skip_serializing_if = "Handover::is_manual")]
    pub handover: Handover,
    /// The address whose family is the primary one when the Node does not say.
    #[schemars(length(max = 45))]
    pub bind_address: String,
    /// Where health checks are answered; empty for no server.
    #[schemars(length(max = 54))]
    pub healthz_bind_address: String,
    /// Where metrics are served; empty for no server.
    #[schemars(length(max = 54))]
    pub metrics_bind_address: String,
    /// Whether a server that cannot listen ends the agent.
    pub bind_address_hard_fail: bool,
    /// Whether the metrics server also answers profiling requests.
    pub enable_profiling: bool,
    /// The release whose hidden metrics are shown again; empty for none.
    #[schemars(length(max = 16))]
    pub show_hidden_metrics_for_version: String,
    /// How readily the kernel ends the agent when memory runs out, from -1000 to 1000.
    pub oom_score_adj: i32,
    /// Features switched on or off by name.
    pub feature_gates: FeatureGates,
    /// The agent's connection to the API server.
    pub client_connection: ClientConnection,
    /// What the agent logs.
    pub logging: Logging,
}

// === impl EffectiveConfig ===

impl EffectiveConfig {
    /// Returns `spec` with every default filled in. Never fails: what [`crate::check::check`] would
    /// refuse is copied unchanged.
    #[must_use]
    pub fn of(spec: &ProxyProfileSpec) -> Self {
        let iptables = spec.iptables.complete();
        let text = |written: &Option<String>, default: &str| {
            written.clone().unwrap_or_else(|| default.to_owned())
        };
        Self {
            mode: spec.mode,
            sync_period: spec.sync_period,
            min_sync_period: spec.min_sync_period,
            config_sync_period: spec.config_sync_period.unwrap_or(Span::minutes(15)),
            scheduler: spec
                .load_balancer
                .scheduler
                .unwrap_or_else(|| Scheduler::default_of(spec.mode)),
            node_port_addresses: spec.node_ports.complete(spec.mode),
            localhost_node_ports: spec.node_ports.complete_localhost(spec.mode, &iptables),
            masquerade: spec.masquerade.clone(),
            detect_local: spec.detect_local.clone(),
            allow_service_external_ips: spec.allow_service_external_ips,
            conntrack: spec.conntrack.complete(),
            nftables: spec.nftables.complete(),
            iptables,
            ipvs: spec.ipvs.complete(),
            handover: spec.handover,
            bind_address: text(&spec.bind_address, "0.0.0.0"),
            healthz_bind_address: text(&spec.healthz_bind_address, "0.0.0.0:10256"),
            metrics_bind_address: text(&spec.metrics_bind_address, "127.0.0.1:10249"),
            bind_address_hard_fail: spec.bind_address_hard_fail.unwrap_or(false),
            enable_profiling: spec.enable_profiling.unwrap_or(false),
            show_hidden_metrics_for_version: text(&spec.show_hidden_metrics_for_version, ""),
            oom_score_adj: spec.oom_score_adj.unwrap_or(-999),
            feature_gates: spec.feature_gates.clone(),
            client_connection: spec.client_connection.complete(),
            logging: spec.logging.complete(),
        }
    }
}

impl Default for EffectiveConfig {
    /// The configuration of an empty profile.
    fn default() -> Self {
        Self::of(&ProxyProfileSpec::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::forwarding::NodePortsSpec;

    fn texts(config: &EffectiveConfig) -> Vec<String> {
        config
            .node_port_addresses
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn what_a_profile_leaves_out_depends_on_its_mode() {
        let of = |mode| {
            EffectiveConfig::of(&ProxyProfileSpec {
                mode,
                ..ProxyProfileSpec::default()
            })
        };
        assert_eq!(of(Mode::Nftables).scheduler, Scheduler::Random);
        assert_eq!(of(Mode::Ipvs).scheduler, Scheduler::Rr);
        assert_eq!(texts(&of(Mode::Nftables)), ["primary"]);
        for mode in [Mode::Iptables, Mode::Ipvs] {
            assert_eq!(texts(&of(mode)), ["0.0.0.0/0", "::/0"]);
        }
    }

    #[test]
    fn an_empty_list_of_node_port_addresses_is_one_left_out() {
        let spec = ProxyProfileSpec {
            node_ports: NodePortsSpec {
                addresses: Some(Vec::new()),
                ..NodePortsSpec::default()
            },
            ..ProxyProfileSpec::default()
        };
        assert_eq!(texts(&EffectiveConfig::of(&spec)), ["primary"]);
    }

    #[test]
    fn in_mode_iptables_node_ports_answer_on_localhost_as_kube_proxys_do() {
        let (refused, agent) = (LocalhostNodePorts::None, LocalhostNodePorts::Userspace);
        let of = |json: serde_json::Value| {
            let spec = serde_json::from_value(json).expect("a spec");
            EffectiveConfig::of(&spec).localhost_node_ports
        };
        let iptables = |addresses: &[&str]| {
            of(serde_json::json!({"mode": "iptables", "nodePorts": {"addresses": addresses}}))
        };
        // NewProxier of kube-proxy's mode iptables excludes localhost if ContainsIPv4Loopback
        // returns false.
        for (addresses, expected) in [
            (&[][..], agent),
            (&["0.0.0.0/0"], agent),
            (&["10.0.0.0/8", "127.0.0.0/8"], agent),
            (&["2001:db8::/32"], agent),
            (&["10.0.0.0/8"], refused),
            (&["10.0.0.0/8", "::/0"], refused),
            (&["primary"], refused),
        ] {
            assert_eq!(iptables(addresses), expected, "{addresses:?}");
        }
        let written = |mode: &str, iptables: bool, localhost: &str| {
            of(serde_json::json!({
                "mode": mode,
                "iptables": {"localhostNodePorts": iptables},
                "nodePorts": {"addresses": ["10.0.0.0/8"], "localhost": localhost},
            }))
        };
        assert_eq!(written("iptables", true, "none"), refused);
        assert_eq!(written("iptables", false, "userspace"), agent);
        let switched_off = |mode: &str| {
            of(serde_json::json!({"mode": mode, "iptables": {"localhostNodePorts": false}}))
        };
        assert_eq!(switched_off("iptables"), refused);
        for mode in ["nftables", "ipvs"] {
            assert_eq!(of(serde_json::json!({"mode": mode})), refused, "{mode}");
        }
    }

    #[test]
    fn a_configuration_from_another_version_is_still_read() {
        let config: EffectiveConfig =
            serde_json::from_str(r#"{"syncPeriod": "1m", "fromTheFuture": {"a": 1}}"#)
                .expect("a configuration");
        assert_eq!(
            config,
            EffectiveConfig {
                sync_period: Span::minutes(1),
                ..EffectiveConfig::default()
            }
        );
    }
}
