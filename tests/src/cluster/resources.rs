//! Our two kinds of objects, read as anybody reads them, and waited for.

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

/// The profile that decides for every node when nothing is going on. Every field that a test
/// changes is written, so that applying it again undoes the change.
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
  rollout: {minReady: 0s}
";

#[derive(Debug, Deserialize)]
struct List<T> {
    items: Vec<T>,
}

impl Cluster {
    /// Every NodeProxy, by the name of its node.
    pub fn observe_node_proxies(&self) -> Result<BTreeMap<String, NodeProxy>> {
        let proxies: List<NodeProxy> = self.get(&["nodeproxies"])?;
        let by_name = |proxy: NodeProxy| Some((proxy.metadata.name.clone()?, proxy));
        Ok(proxies.items.into_iter().filter_map(by_name).collect())
    }

    /// One profile.
    pub fn observe_profile(&self, name: &str) -> Result<ProxyProfile> {
        self.get(&["proxyprofile", name])
    }

    /// Changes fields of a profile's spec, as `kubectl patch` does.
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

    /// What `kubectl get … --output=json` prints, as what it stands for.
    pub fn get<T: DeserializeOwned>(&self, arguments: &[&str]) -> Result<T> {
        let mut all = vec!["get", "--output=json"];
        all.extend(arguments);
        let text = self.control_plane.kubectl(&all)?;
        serde_json::from_str(&text)
            .with_context(|| format!("kubectl {} prints {text}", all.join(" ")))
    }

    /// Waits until the profile is as `wanted`, and returns it.
    pub fn wait_for_profile(
        &self,
        name: &str,
        what: &str,
        deadline: Duration,
        wanted: impl Fn(&ProxyProfile) -> bool,
    ) -> Result<ProxyProfile> {
        let mut last = None;
        let waited = wait_for(what, deadline, || {
            let profile = self.observe_profile(name)?;
            if wanted(&profile) {
                return Ok(Some(profile));
            }
            last = profile.status;
            Ok(None)
        });
        waited.with_context(|| format!("the last status of ProxyProfile {name}: {last:#?}"))
    }

    /// Waits until the NodeProxies are as `wanted`, and returns them.
    pub fn wait_for_node_proxies(
        &self,
        what: &str,
        deadline: Duration,
        wanted: impl Fn(&BTreeMap<String, NodeProxy>) -> bool,
    ) -> Result<BTreeMap<String, NodeProxy>> {
        let mut last = BTreeMap::new();
        let waited = wait_for(what, deadline, || {
            let proxies = self.observe_node_proxies()?;
            if wanted(&proxies) {
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

/// Whether a profile is Ready, by a status that speaks of what it asks for now.
pub fn is_ready(profile: &ProxyProfile) -> bool {
    let generation = profile.metadata.generation;
    profile.status.as_ref().is_some_and(|status| {
        status.observed_generation == generation
            && status_of(&status.conditions, condition::READY) == Status::True
    })
}

/// Whether a node is Ready, by a status that speaks of what it was given last.
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
