//! `ProxyProfile`: the configuration for a set of nodes, and the progress of its rollout.

#![expect(
    clippy::duplicated_attributes,
    reason = "columns of the same type repeat type_, which is no mistake"
)]

pub mod detect_local;
pub mod forwarding;
pub mod handover;
pub mod history;
pub mod mode;
pub mod node_findings;
pub mod node_selector;
pub mod process;
pub mod progress;
pub mod rollout;
pub mod status;
pub mod undo;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    profile::{
        detect_local::DetectLocal,
        forwarding::{ConntrackSpec, LoadBalancerSpec, Masquerade, NodePortsSpec},
        handover::Handover,
        mode::{IptablesSpec, IpvsSpec, Mode, NftablesSpec},
        node_selector::NodeSelector,
        process::{ClientConnectionSpec, FeatureGates, LoggingSpec},
        rollout::RolloutSpec,
        status::ProxyProfileStatus,
    },
    rule::{
        self, BIND_ADDRESS, CONFIG_SYNC_PERIOD, HEALTHZ_BIND_ADDRESS, HIDDEN_METRICS_VERSION,
        METRICS_BIND_ADDRESS, MIN_SYNC_PERIOD, SYNC_PERIOD,
    },
    span::Span,
};

/// How the nodes that it selects forward Service traffic. Of several profiles that select a node, exactly one applies, as a
/// whole: the one with the lowest priority number, then the oldest, then the first by name.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "signpost.dev",
    version = "v1alpha1",
    kind = "ProxyProfile",
    plural = "proxyprofiles",
    shortname = "pxp",
    category = "proxy",
    status = "ProxyProfileStatus",
    derive = "PartialEq",
    doc = "ProxyProfile configures how the nodes it selects forward Service traffic, and reports how many of them do.",
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(name = "Priority", type_ = "integer", json_path = ".spec.priority"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.matchedNodes"),
    printcolumn(
        name = "Updated",
        type_ = "integer",
        json_path = ".status.updatedNodes"
    ),
    printcolumn(
        name = "Ready-Nodes",
        type_ = "integer",
        json_path = ".status.readyNodes"
    ),
    printcolumn(
        name = "Degraded-Nodes",
        type_ = "integer",
        json_path = ".status.degradedNodes"
    ),
    printcolumn(
        name = "Available",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Available')].status"
    ),
    printcolumn(
        name = "Progressing",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Progressing')].status"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason"
    ),
    printcolumn(
        name = "Sync-P99",
        type_ = "string",
        json_path = ".status.syncLatency.p99"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Scheduler",
        type_ = "string",
        json_path = ".spec.loadBalancer.scheduler",
        priority = 1
    ),
    printcolumn(
        name = "Paused",
        type_ = "boolean",
        json_path = ".spec.paused",
        priority = 1
    ),
    printcolumn(
        name = "Rollout",
        type_ = "string",
        json_path = ".status.rollout.phase",
        priority = 1
    ),
    printcolumn(
        name = "Wave",
        type_ = "integer",
        json_path = ".status.rollout.wave",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rule::list(&[
    &MIN_SYNC_PERIOD,
])))]
pub struct ProxyProfileSpec {
    /// The kernel mechanism that forwards Service traffic. Default nftables. A node that cannot use it uses nftables and
    /// reports that in condition FeaturesHonoured.
    pub mode: Mode,

    /// Which profile applies when several select a node: the lowest number wins, ties go to the oldest profile and then
    /// to the first by name. From 0 to 10000, default 1000.
    #[schemars(range(min = 0, max = 10_000))]
    pub priority: i32,

    /// The nodes this profile is for, as a label selector. Default empty, which selects every node.
    pub node_selector: NodeSelector,

    /// While true, nodes keep their configuration and no change of this profile reaches them. A node that has none yet
    /// still gets one, since a node without a service proxy cannot reach any Service: that of this profile, or during a
    /// rollout the one before. Default false.
    pub paused: bool,

    /// How often a node compares the kernel with the desired state although nothing changed, and the longest delay before
    /// a failed write is tried again. From 1s to 24h, default 30s.
    #[schemars(extend("x-kubernetes-validations" = rule::list(&[&rule::SPAN_TOO_LONG, &SYNC_PERIOD])))]
    pub sync_period: Span,

    /// The least time between two writes to the kernel: changes in between are collected into one. The first change after
    /// an idle period is written at once. A write that takes longer is followed by a pause of the same length, of at most
    /// 100ms; 0s writes every change by itself. At most syncPeriod, default 1ms.
    pub min_sync_period: Span,

    /// How often the agent processes everything it has read from the API server again. At least 1s, default 15m.
    /// Not supported yet: reported by condition FeaturesHonoured.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = rule::list(&[&rule::SPAN_TOO_LONG, &CONFIG_SYNC_PERIOD])))]
    pub config_sync_period: Option<Span>,

    /// How the endpoint of a new connection is chosen.
    #[serde(skip_serializing_if = "LoadBalancerSpec::is_empty")]
    pub load_balancer: LoadBalancerSpec,

    /// Which of a node's addresses take node-port traffic.
    #[serde(skip_serializing_if = "NodePortsSpec::is_empty")]
    pub node_ports: NodePortsSpec,

    /// When and how the source address of forwarded traffic is replaced by the node's.
    pub masquerade: Masquerade,

    /// How a node distinguishes traffic of its own Pods from other traffic.
    pub detect_local: DetectLocal,

    /// Whether traffic to a Service's spec.externalIPs is forwarded. Default true; false ignores that field on every
    /// Service, so that the author of a Service cannot capture traffic to an arbitrary address.
    #[serde(rename = "allowServiceExternalIPs")]
    pub allow_service_external_ips: bool,

    /// The kernel's connection tracking table.
    #[serde(skip_serializing_if = "ConntrackSpec::is_empty")]
    pub conntrack: ConntrackSpec,

    /// Settings of mode nftables. A profile of another mode may have them, too; they have no effect there.
    #[serde(skip_serializing_if = "NftablesSpec::is_empty")]
    pub nftables: NftablesSpec,

    /// Settings of mode iptables. A profile of another mode may have them, too; they have no effect there.
    #[serde(skip_serializing_if = "IptablesSpec::is_empty")]
    pub iptables: IptablesSpec,

    /// Settings of mode ipvs. A profile of another mode may have them, too; they have no effect there.
    #[serde(skip_serializing_if = "IpvsSpec::is_empty")]
    pub ipvs: IpvsSpec,

    /// Which service proxy serves nodes that have rules of kube-proxy, too. Manual (default): the profile does not decide;
    /// commands do, such as kubectl signpost migrate. Takeover: Signpost alone; the agent removes kube-proxy's rules once
    /// its own are programmed. Handback: kube-proxy alone; the agent removes its own rules once kube-proxy's are complete
    /// and kube-proxy answers. A change of this field is rolled out in waves, like any other. A node that refuses it, for
    /// example because kube-proxy still runs there, changes nothing and gives the reason in condition Degraded. A node on
    /// which something would start kube-proxy again, such as DaemonSet kube-system/kube-proxy, waits, and
    /// status.rollout.waitingFor names it. Back at Manual, each node keeps the proxy that serves it.
    #[serde(skip_serializing_if = "Handover::is_manual")]
    pub handover: Handover,

    /// How a change of this profile is rolled out to the nodes.
    #[serde(skip_serializing_if = "RolloutSpec::is_empty")]
    pub rollout: RolloutSpec,

    /// The address whose family is the primary one when a Node does not specify one: 0.0.0.0 or :: for a set of nodes.
    /// Nothing listens on it. Default 0.0.0.0. Not supported yet: reported by condition FeaturesHonoured.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 45), extend("x-kubernetes-validations" = rule::list(&[&BIND_ADDRESS])))]
    pub bind_address: Option<String>,

    /// Where the agent answers /healthz and /livez for load balancers and monitors, as IP:port; empty for no server.
    /// If omitted, the agent's flag --health-address applies, 0.0.0.0:10256 by default. The
    /// probes of the agent's own Pod do not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 54), extend("x-kubernetes-validations" = rule::list(&[&HEALTHZ_BIND_ADDRESS])))]
    pub healthz_bind_address: Option<String>,

    /// Where the agent serves its metrics, as IP:port; empty for no server. If omitted, the agent's flag --metrics-address
    /// applies, 127.0.0.1:10249 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 54), extend("x-kubernetes-validations" = rule::list(&[&METRICS_BIND_ADDRESS])))]
    pub metrics_bind_address: Option<String>,

    /// Whether the agent exits when it cannot listen on healthzBindAddress or metricsBindAddress, instead of retrying.
    /// Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind_address_hard_fail: Option<bool>,

    /// Whether the metrics server also answers profiling requests. Default false.
    /// Not supported yet: reported by condition FeaturesHonoured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_profiling: Option<bool>,

    /// The release, as major.minor, whose hidden metrics are shown again; empty for none. Default empty.
    /// Not supported yet: reported by condition FeaturesHonoured.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), extend("x-kubernetes-validations" = rule::list(&[&HIDDEN_METRICS_VERSION])))]
    pub show_hidden_metrics_for_version: Option<String>,

    /// How readily the kernel kills the agent when memory runs out, as oom_score_adj: from -1000 (never) to 1000 (first).
    /// Default -999. Lowering the value that the process was started with requires CAP_SYS_RESOURCE; without it, that value
    /// stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1000, max = 1000))]
    pub oom_score_adj: Option<i32>,

    /// Features switched on or off by name; the gate AllowServiceExternalIPs has its own field. Default empty.
    /// Not supported yet: reported by condition FeaturesHonoured.
    #[serde(skip_serializing_if = "FeatureGates::is_empty")]
    pub feature_gates: FeatureGates,

    /// The agent's connection to the API server.
    #[serde(skip_serializing_if = "ClientConnectionSpec::is_empty")]
    pub client_connection: ClientConnectionSpec,

    /// What the agent logs.
    #[serde(skip_serializing_if = "LoggingSpec::is_empty")]
    pub logging: LoggingSpec,
}

// === impl ProxyProfileSpec ===

impl ProxyProfileSpec {
    /// The default of [`ProxyProfileSpec::priority`], with room on both sides.
    pub const DEFAULT_PRIORITY: i32 = 1000;
    /// The default of [`ProxyProfileSpec::sync_period`].
    pub const DEFAULT_SYNC_PERIOD: Span = Span::seconds(30);
    /// The default of [`ProxyProfileSpec::min_sync_period`]. kube-proxy waits a second because its
    /// writes cost seconds; Signpost's cost microseconds, and a slower write is followed by a
    /// longer pause.
    pub const DEFAULT_MIN_SYNC_PERIOD: Span = Span::milliseconds(1);
}

impl Default for ProxyProfileSpec {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            priority: Self::DEFAULT_PRIORITY,
            node_selector: NodeSelector::default(),
            paused: false,
            sync_period: Self::DEFAULT_SYNC_PERIOD,
            min_sync_period: Self::DEFAULT_MIN_SYNC_PERIOD,
            config_sync_period: None,
            load_balancer: LoadBalancerSpec::default(),
            node_ports: NodePortsSpec::default(),
            masquerade: Masquerade::default(),
            detect_local: DetectLocal::default(),
            allow_service_external_ips: true,
            conntrack: ConntrackSpec::default(),
            nftables: NftablesSpec::default(),
            iptables: IptablesSpec::default(),
            ipvs: IpvsSpec::default(),
            handover: Handover::default(),
            rollout: RolloutSpec::default(),
            bind_address: None,
            healthz_bind_address: None,
            metrics_bind_address: None,
            bind_address_hard_fail: None,
            enable_profiling: None,
            show_hidden_metrics_for_version: None,
            oom_score_adj: None,
            feature_gates: FeatureGates::default(),
            client_connection: ClientConnectionSpec::default(),
            logging: LoggingSpec::default(),
        }
    }
}
