//! The progress of the rollout of a profile's configuration.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far the rollout of a profile's configuration has come: the content of condition Progressing, for programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// The hash of the configuration that is rolled out, which is targetHash.
    #[schemars(length(max = 64))]
    pub config_hash: String,

    /// The generation of the profile that began this rollout. A later edit that does not change the configuration does not
    /// begin another one, unless this one failed.
    pub generation: i64,

    /// The hash of the spec that this rollout carries out, without paused and rollout.undo. After a failure, only another spec is
    /// another attempt. Older operators do not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub request_hash: Option<String>,

    /// What happens to the configuration.
    pub phase: RolloutPhase,

    /// When this phase began, or the wave in progress if that is later.
    pub since: Time,

    /// The wave in progress, counted from 1; after the end of the rollout, the one it ended in.
    pub wave: u32,

    /// Every wave, in order, after the end of the rollout as it was then. A later one begins when all nodes of the earlier ones
    /// are available or have failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub waves: Vec<WaveStatus>,

    /// What the rollout waits for, as a sentence that names up to five nodes; absent when it waits for nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub waiting_for: String,

    /// Why nodes were rolled back, or no further node changes; absent while nothing has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<RolloutVerdict>,
}

/// What happens to a configuration. Apart from RollingBack the names are those of the reasons of condition Progressing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutPhase {
    /// Nodes are assigned it, wave by wave.
    RollingOut,
    /// Nodes keep their configuration while spec.paused is true.
    Paused,
    /// Every node has it.
    Settled,
    /// Every node was assigned it, and some did not become available in time: fewer than would have failed the rollout.
    DeadlineExceeded,
    /// The rollout has ended, but nodes that joined the profile later fail with it, and other such nodes keep their
    /// configuration.
    HeldBack,
    /// Too many nodes failed, and nodes are still to return to their previous configuration.
    RollingBack,
    /// Too many nodes failed, and every node that has an earlier configuration has returned to it.
    RolledBack,
    /// Too many nodes failed, and every node keeps its configuration.
    Halted,
}

/// The nodes of one wave. Those that are counted nowhere but in nodes are changing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WaveStatus {
    /// All nodes of this wave.
    pub nodes: u32,
    /// Of these, nodes that have applied the configuration.
    pub updated: u32,
    /// Of these, nodes that have been ready with it for rollout.minReady.
    pub available: u32,
    /// Of these, nodes that became worse with it than they were before.
    pub failed: u32,
    /// Of these, nodes that have not been assigned it yet.
    pub waiting: u32,
}

/// Why a rollout failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutVerdict {
    /// How many nodes had failed when this was decided.
    pub failed_nodes: u32,

    /// The first of them by name; empty when the rollout was aborted before a node failed.
    #[schemars(length(max = 253))]
    pub node: String,

    /// Why that node counts as failed: the reason of its condition Degraded or Ready, or NodeNotReady, AgentSilent or
    /// ProgressDeadlineExceeded. Aborted when rollout.abort names the configuration.
    #[schemars(length(max = 128))]
    pub reason: String,

    /// The same in a sentence, with up to five of the nodes.
    #[schemars(length(max = 32768))]
    pub message: String,
}
