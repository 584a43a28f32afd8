//! How a change of a profile spreads over the nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    int_or_percent::IntOrPercent,
    rule::{self, PROGRESS_DEADLINE, SPAN_TOO_LONG},
    section::section,
    span::Span,
};

section! {
    /// How a change of this profile spreads over the nodes.
    RolloutSpec;
    /// How a change of a profile spreads over the nodes, every default filled in.
    Rollout {
        /// How many nodes may be changing or failing at once: a number from 1, or a percentage of the matched nodes, rounded
        /// down to at least one node. Default 10%.
        max_unavailable: IntOrPercent = IntOrPercent::Percent(10),

        /// How many nodes get a change first, and have to report success before any other does; 0 for none. Default 1.
        #[schemars(range(min = 0, max = 1000))]
        canary: u32 = 1,

        /// How long a wave of nodes may take to report success before it counts as failed. From 10s to 24h, default 10m.
        #[schemars(extend("x-kubernetes-validations" = rule::list(&[&SPAN_TOO_LONG, &PROGRESS_DEADLINE])))]
        progress_deadline: Span = Span::minutes(10),

        /// What happens after a failed wave. Rollback (default): the changed nodes go back to what they had. Halt: they
        /// stay as they are and no further node changes.
        #[schemars(with = "OnFailure")]
        on_failure: OnFailure = OnFailure::Rollback,
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
    /// The changed nodes go back to what they had.
    #[default]
    Rollback,
    /// Everything stays as it is.
    Halt,
}
