//! How a change of a profile is rolled out to the nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    int_or_percent::IntOrPercent,
    rule::{self, MIN_READY, PROGRESS_DEADLINE, SPAN_TOO_LONG},
    section::section,
    span::Span,
};

section! {
    /// How a change of this profile is rolled out to the nodes.
    RolloutSpec;
    /// How a change of a profile is rolled out to the nodes, every default filled in.
    Rollout {
        /// How many nodes may be unavailable at once: changing, failing, or not ready before. A number from 1, or a
        /// percentage of the matched nodes, rounded down to at least one node. Default 10%.
        max_unavailable: IntOrPercent = IntOrPercent::Percent(10),

        /// How many nodes get a change first, and have to succeed before any other gets it; 0 for none. Default 1.
        #[schemars(range(min = 0, max = 1000))]
        canary: u32 = 1,

        /// The waves after the canary, as percentages of the matched nodes, rounded up: that many nodes have to be available
        /// with a change before any other gets it; the last wave is all nodes. Each wave is spread over zones
        /// (label topology.kubernetes.io/zone), control-plane nodes come last. Default 1, 5 and 25; an empty list for no waves
        /// between the canary and all nodes.
        #[schemars(length(max = 8), inner(range(min = 1, max = 100)))]
        waves: Vec<u32> = vec![1, 5, 25],

        /// How many failed nodes stop a rollout after the canary; one failed canary stops it. A number from 1, or a percentage of the
        /// nodes in the waves that have begun, rounded down to at least one node. Default 10%.
        max_failures: IntOrPercent = IntOrPercent::Percent(10),

        /// How long a node has to stay ready with a change, and no worse than before it, to count as available. From 0s to
        /// 24h, default 1m: longer than the node controller needs to detect that a node is gone.
        #[schemars(extend("x-kubernetes-validations" = rule::list(&[&SPAN_TOO_LONG, &MIN_READY])))]
        min_ready: Span = Span::minutes(1),

        /// How long a node may take to report that it is ready with a change before it counts as failed. From 10s to 24h, default 10m.
        #[schemars(extend("x-kubernetes-validations" = rule::list(&[&SPAN_TOO_LONG, &PROGRESS_DEADLINE])))]
        progress_deadline: Span = Span::minutes(10),

        /// What happens after a failed wave. Rollback (default): the changed nodes get their previous configuration. Halt: they
        /// keep the new one and no further node changes.
        #[schemars(with = "OnFailure")]
        on_failure: OnFailure = OnFailure::Rollback,

        /// Another number begins another attempt after a rollout has failed or was aborted. Default 0.
        attempt: u32 = 0,

        /// The status.targetHash of a configuration whose rollout is aborted: no further node gets it, and nodes that have
        /// it return to their previous configuration, regardless of onFailure. Without effect on another
        /// configuration, and once every node has this one. Default empty.
        #[schemars(length(max = 64))]
        abort: String = String::new(),

        /// The configHash of the configuration in status.history that nodes leave, also after every node has it. While the
        /// profile's own fields are that configuration, nodes get the other one in status.history with the latest
        /// rolledOutAt, with this profile's nodeSelector, priority, paused and rollout. Without effect on another
        /// configuration, and if no other one has a rolledOutAt. Default empty.
        #[schemars(length(max = 64))]
        undo: String = String::new(),
    }
}

/// What happens after a failed wave.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
pub enum OnFailure {
    /// The changed nodes get their previous configuration.
    #[default]
    Rollback,
    /// Every node keeps its current configuration.
    Halt,
}
