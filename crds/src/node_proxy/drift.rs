//! Changes of a node's rules by other programs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rejections::cut;

/// A program that changed Signpost's rules on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    /// The program, as the kernel names it; absent for changes of which the kernel does not say who made them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub program: Option<String>,
    /// Whether it keeps changing the rules, so that repairs are delayed.
    pub continues: bool,
    /// How often the agent repaired what it changed, since the agent started.
    pub repairs: u64,
    /// When the agent last found a change.
    pub last_found: Time,
    /// How many elements of sets and maps, or entries, all repairs wrote.
    pub elements: u64,
    /// How many tables, chains, sets, maps and rules all repairs wrote.
    pub objects: u64,
}

/// The maximum number of programs in a status.
pub const MOST_PROGRAMS: usize = 8;

// === impl Drift ===

impl Drift {
    /// Returns the entries with the latest changes, in the order of their names, within the bounds of the API.
    #[must_use]
    pub fn bounded(mut all: Vec<Drift>) -> Vec<Drift> {
        all.sort_by_key(|drift| std::cmp::Reverse(drift.last_found.0));
        all.truncate(MOST_PROGRAMS);
        for drift in &mut all {
            if let Some(program) = &mut drift.program {
                cut(program, 64);
            }
        }
        all.sort_by(|a, b| a.program.cmp(&b.program));
        all
    }
}
