//! `NodeProxy`: the configuration of one node, and its agent's report.

#![expect(
    clippy::duplicated_attributes,
    reason = "columns of the same type repeat type_, which is no mistake"
)]

pub mod drift;
pub mod latency;
pub mod rejections;

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    condition,
    effective::{EffectiveConfig, hash::ConfigHash},
    node_proxy::{drift::Drift, latency::SyncLatency, rejections::Rejections},
    profile::mode::Mode,
    span::Span,
};

/// The configuration of the node that has the name of this object. Only the operator writes it.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "signpost.dev",
    version = "v1alpha1",
    kind = "NodeProxy",
    plural = "nodeproxies",
    shortname = "npx",
    category = "proxy",
    status = "NodeProxyStatus",
    selectable = ".spec.profileName",
    derive = "PartialEq",
    doc = "NodeProxy is the configuration of one node, and its agent's report of what is programmed. Written by the operator and the agent, not by users.",
    printcolumn(name = "Profile", type_ = "string", json_path = ".spec.profileName"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".status.mode"),
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
        name = "Degraded",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Degraded')].status"
    ),
    printcolumn(
        name = "Services",
        type_ = "integer",
        json_path = ".status.counts.services"
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
        name = "Applied",
        type_ = "string",
        json_path = ".status.appliedHash",
        priority = 1
    ),
    printcolumn(
        name = "Rejected",
        type_ = "integer",
        json_path = ".status.rejections.total",
        priority = 1
    ),
    printcolumn(
        name = "Agent",
        type_ = "string",
        json_path = ".status.agentVersion",
        priority = 1
    ),
    printcolumn(
        name = "Kernel",
        type_ = "string",
        json_path = ".status.kernelVersion",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeProxySpec {
    /// The profile that applies to this node.
    #[schemars(length(max = 253))]
    pub profile_name: String,

    /// The generation of that profile from which the configuration was made.
    pub profile_generation: i64,

    /// The hash of config. The agent copies it to status.appliedHash and never computes its own, so that
    /// an agent one version apart, which may not know a field, still agrees with the operator on what it applied.
    pub config_hash: ConfigHash,

    /// The complete configuration, every default filled in.
    pub config: EffectiveConfig,

    /// The paths of the fields that the profile sets to other values than the API's own defaults, such as conntrack.maxPerCore, at
    /// most 256: among them the agent finds those that it does not support.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 256)))]
    pub written_fields: Vec<String>,
}

/// What the node's agent has programmed. Only that agent writes it; when its heartbeat stops, the operator sets condition
/// Ready to Unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeProxyStatus {
    /// The generation of this object that the status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// The spec.configHash of the configuration in force; absent before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied_hash: Option<ConfigHash>,

    /// The mechanism that is forwarding, which is not spec.config.mode while that is not supported or being switched to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Mode")]
    pub mode: Option<Mode>,

    /// When the kernel last acknowledged a write, or was last found to need none, before this status was written: an agent
    /// that renews a Lease writes none while nothing changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_sync_time: Option<Time>,

    /// How long changes took to reach the kernel; absent before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_latency: Option<SyncLatency>,

    /// How the agent shows that it is alive; absent when it does so by this status alone, which it then renews every five
    /// minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Heartbeat")]
    pub heartbeat: Option<Heartbeat>,

    /// How much is programmed.
    pub counts: Counts,

    /// How full the connection tracking table was when this status was written; absent where the kernel does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conntrack: Option<ConntrackFill>,

    /// How mode iptables runs on this node; absent in other modes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iptables: Option<IptablesStatus>,

    /// The version of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub agent_version: Option<String>,

    /// The release of the node's kernel, as uname prints it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub kernel_version: Option<String>,

    /// Objects, or parts of them, that are rejected. Everything else is served.
    #[serde(skip_serializing_if = "Rejections::is_empty")]
    pub rejections: Rejections,

    /// Programs that changed Signpost's rules on this node since the agent started, at most 8: those with the latest changes.
    /// The agent repaired all of it. Condition RulesContested says when one does not stop.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub drift: Vec<Drift>,

    /// Ready, Progressing, Degraded, IPv4Programmed, IPv6Programmed, FeaturesHonoured, SourceSynced, ManifestsParsed,
    /// ConntrackPressure, ConntrackConfigured, RulesContested, ForeignProxyDetected, APIServiceReachable and IptablesSplit, as far as
    /// they apply.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}

/// How an agent shows that it is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Heartbeat {
    /// It renews Lease signpost-agent-NODE, in the namespace of the agents, every half minute.
    Lease,
}

/// The prefix of the names of the agents' Leases; the name of the node follows.
pub const LEASE_PREFIX: &str = "signpost-agent-";

/// How much is programmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Counts {
    /// Services.
    pub services: u32,
    /// Endpoints, each counted once for every Service port it serves.
    pub endpoints: u32,
    /// Set and map elements, rules, or virtual and real servers in the kernel.
    pub elements: u32,
}

/// How full the connection tracking table is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConntrackFill {
    /// Entries in use.
    pub entries: u32,
    /// The limit of entries.
    pub max: u32,
}

/// How mode iptables runs on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IptablesStatus {
    /// The variant of iptables the rules are in.
    pub variant: IptablesVariant,

    /// The longest that a write has waited for the lock of legacy iptables (/run/xtables.lock) since the agent started;
    /// 0s in variant nf_tables, which has no such lock.
    pub longest_lock_wait: Span,
}

/// A variant of iptables: which tables of the kernel its rules are in.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum IptablesVariant {
    /// Tables of nf_tables, the variant of iptables-nft.
    NfTables,
    /// The older tables of x_tables, the variant of iptables-legacy.
    Legacy,
}

// === impl IptablesVariant ===

impl fmt::Display for IptablesVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
