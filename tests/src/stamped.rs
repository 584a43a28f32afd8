//! Creates NodeProxies as the operator would, for tests without an operator.

use anyhow::{Context, Result};
use crds::effective::hash::ConfigHash;
use crds::{EffectiveConfig, NodeProxySpec, ProxyProfileSpec};
use serde_json::{Value, json};
use testkit::address_plan as addresses;

/// Returns the NodeProxy of the node under test for the spec of a ProxyProfile.
pub fn node_proxy(profile_name: &str, profile: Value) -> Result<Value> {
    let profile: ProxyProfileSpec =
        serde_json::from_value(profile).context("this is no spec of a ProxyProfile")?;
    let config = EffectiveConfig::of(&profile);
    let spec = NodeProxySpec {
        profile_name: profile_name.to_owned(),
        profile_generation: 1,
        config_hash: ConfigHash::of(&config),
        config,
        written_fields: Vec::new(),
    };
    Ok(json!({
        "apiVersion": "signpost.dev/v1alpha1",
        "kind": "NodeProxy",
        "metadata": {"name": addresses::NODE},
        "spec": spec,
    }))
}
