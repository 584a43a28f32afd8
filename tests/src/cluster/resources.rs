//! Reads Signpost's two kinds of objects through kubectl, and waits for their state.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use crds::condition::{self, Status, status_of};
use crds::{NodeProxy, ProxyProfile};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Cluster;
use crate::deadline::wait_for;

/// The profile of all nodes in the idle state. It writes every field that a test changes, so that
/// applying it again reverts the change.
pub const PROFILE: &str = "
apiVersion: signpost.dev/v1alpha1
kind: ProxyProfile
metadata: {name: default}
spec:
  mode: nftables
  priority: 500
  nodeSelector: {}
  paused: false
  syncPeriod: 30s
  minSyncPeriod: 1ms
  loadBalancer: {scheduler: random}
  nodePorts: {addresses: [primary]}
  masquerade: {all: false, markBit: 14}
  detectLocal: {mode: NodeCIDR}
  rollout: {minReady: 0s, progressDeadline: 10m, onFailure: Rollback}
";

#[derive(Debug, Deserialize)]
struct List<T> {
    items: Vec<T>,
}

impl Cluster {
    /// Returns every NodeProxy by the name of its node.
    pub fn observe_node_proxies(&self) -> Result<BTreeMap<String, NodeProxy>> {
        let proxies: List<NodeProxy> = self.get(&["nodeproxies"])?;
        let by_name = |proxy: NodeProxy| Some((proxy.metadata.name.clone()?, proxy));
        Ok(proxies.items.into_iter().filter_map(by_name).collect())
    }

    /// Returns one profile.
    pub fn observe_profile(&self, name: &str) -> Result<ProxyProfile> {
        self.get(&["proxyprofile", name])
    }

    /// Patches fields of a profile's spec, as `kubectl patch` does.
    pub fn patch_profile(&self, name: &str, spec: &Value) -> Result<()> {
        let patch = json!({"spec": spec}).to_string();
        let object = [
            "patch",
            "proxyprofile",
            name,
            "--type=merge",
            "--patch",
            &patch,
        ];
        self.control_plane.kubectl(&object).map(drop)
    }

    /// Parses the output of `kubectl get … --output=json`.
    pub fn get<T: DeserializeOwned>(&self, arguments: &[&str]) -> Result<T> {
        let mut all = vec!["get", "--output=json"];
        all.extend(arguments);
        let text = self.control_plane.kubectl(&all)?;
        serde_json::from_str(&text)
            .with_context(|| format!("kubectl {} prints {text}", all.join(" ")))
    }

    /// Waits until `expected` accepts the profile, and returns it.
    pub fn wait_for_profile(
        &self,
        name: &str,
        what: &str,
        deadline: Duration,
        expected: impl Fn(&ProxyProfile) -> bool,
    ) -> Result<ProxyProfile> {
        let mut last = None;
        let waited = wait_for(what, deadline, || {
            let profile = self.observe_profile(name)?;
            if expected(&profile) {
                return Ok(Some(profile));
            }
            last = profile.status;
            Ok(None)
        });
        waited.with_context(|| format!("the last status of ProxyProfile {name}: {last:#?}"))
    }

    /// Waits until `expected` accepts the NodeProxies, and returns them.
    pub fn wait_for_node_proxies(
        &self,
        what: &str,
        deadline: Duration,
        expected: impl Fn(&BTreeMap<String, NodeProxy>) -> bool,
    ) -> Result<BTreeMap<String, NodeProxy>> {
        let mut last = BTreeMap::new();
        let waited = wait_for(what, deadline, || {
            let proxies = self.observe_node_proxies()?;
            if expected(&proxies) {
                return Ok(Some(proxies));
            }
            last = proxies;
            Ok(None)
        });
        waited.with_context(|| {
            let statuses: Vec<_> = last
                .iter()
                .map(|(name, proxy)| (name, &proxy.status))
                .collect();
            format!("the last NodeProxies: {statuses:#?}")
        })
    }

    /// Waits until the profile `default` is Ready with every node of the cluster.
    pub fn wait_until_ready(&self, deadline: Duration) -> Result<ProxyProfile> {
        let nodes = u32::try_from(self.nodes().count()).context("a handful of nodes")?;
        let what = format!("ProxyProfile default to be Ready on {nodes} nodes");
        self.wait_for_profile("default", &what, deadline, |profile| {
            is_ready(profile)
                && profile.status.as_ref().is_some_and(|status| {
                    [
                        status.matched_nodes,
                        status.updated_nodes,
                        status.ready_nodes,
                    ] == [nodes; 3]
                })
        })
    }
}

/// Whether a profile is Ready according to a status that is about its current generation.
pub fn is_ready(profile: &ProxyProfile) -> bool {
    let generation = profile.metadata.generation;
    profile.status.as_ref().is_some_and(|status| {
        status.observed_generation == generation
            && status_of(&status.conditions, condition::READY) == Status::True
    })
}

/// Whether a node is Ready according to a status that is about its current spec.
pub fn is_node_ready(proxy: &NodeProxy) -> bool {
    proxy.status.as_ref().is_some_and(|status| {
        status.observed_generation == proxy.metadata.generation
            && status.applied_hash.as_ref() == Some(&proxy.spec.config_hash)
            && status_of(&status.conditions, condition::READY) == Status::True
    })
}

/// Whether one of `conditions` is of this type, status and reason.
pub fn says(
    conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition],
    kind: &str,
    status: Status,
    reason: condition::reason::Reason,
) -> bool {
    conditions.iter().any(|condition| {
        condition.type_ == kind
            && condition.status == status.to_string()
            && condition.reason == reason.name
    })
}
