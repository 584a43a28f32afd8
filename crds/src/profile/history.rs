//! The configurations that a profile has requested.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    profile::{ProxyProfileSpec, progress::RolloutPhase},
    readable::has_all,
};

/// A configuration that a profile has requested.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Revision {
    /// The latest generation of the profile that requested it, which names the revision.
    pub generation: i64,

    /// The hash of the configuration.
    #[schemars(length(max = 64))]
    pub config_hash: String,

    /// When the profile began to request it.
    pub since: Time,

    /// The latest phase of its rollout.
    pub phase: RolloutPhase,

    /// When a rollout of it last ended with every node having been assigned it; absent before. A node whose NodeProxy is lost during a
    /// later rollout gets the configuration with the latest of these times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_out_at: Option<Time>,

    /// The fields of the profile's spec that define it: all but nodeSelector, priority, paused and rollout.
    #[schemars(schema_with = "any_object")]
    pub spec: Value,
}

/// The maximum length of [`status.history`](crate::profile::status::ProxyProfileStatus::history):
/// the current configuration and five before it.
pub const MOST_REVISIONS: usize = 6;

fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

// === impl Revision ===

impl Revision {
    /// The fields of `spec` that define a configuration, as JSON.
    #[must_use]
    pub fn fields(spec: &ProxyProfileSpec) -> Value {
        let mut fields = serde_json::to_value(spec).unwrap_or_default();
        if let Value::Object(fields) = &mut fields {
            for name in NOT_OF_A_CONFIGURATION {
                fields.remove(name);
            }
        }
        fields
    }

    /// The spec of a profile that requests this configuration. `None` if this version cannot read
    /// all of the fields.
    #[must_use]
    pub fn profile_spec(&self) -> Option<ProxyProfileSpec> {
        let spec = ProxyProfileSpec::deserialize(&self.spec).ok()?;
        has_all(&Self::fields(&spec), &self.spec).then_some(spec)
    }
}

/// The fields of a profile's spec that only the operator reads.
const NOT_OF_A_CONFIGURATION: [&str; 4] = ["nodeSelector", "priority", "paused", "rollout"];
