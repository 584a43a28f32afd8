//! A cluster with Signpost's manifests, and reads from it.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::control_plane::{Contents, ControlPlane, Options};
use tests::deadline::wait_for;
use tests::pool::Restored;

use crate::objects::Objects;
use crate::{DEADLINE, NAMESPACE, NODES};

/// A cluster with Signpost's manifests and three nodes.
pub(crate) struct Cluster {
    objects: Objects,
    /// What there was before the nodes.
    contents: Contents,
    pub(crate) control_plane: ControlPlane,
}

// === impl Cluster ===

impl Cluster {
    /// Starts a separate control plane.
    pub(crate) fn start() -> Result<Cluster> {
        let control_plane = ControlPlane::start(Options::default())?;
        control_plane.apply_operator_manifests()?;
        let cluster = Cluster {
            objects: Objects::of(&control_plane)?,
            contents: control_plane.observe_contents()?,
            control_plane,
        };
        cluster.add_nodes()?;
        Ok(cluster)
    }

    /// Removes everything that a test has added, and adds the nodes again. The programs of the test
    /// must have ended.
    pub(crate) fn restore(&mut self) -> Result<Restored> {
        let restored = self.control_plane.return_to(&self.contents)?;
        if restored == Restored::Completely {
            self.add_nodes()?;
        }
        Ok(restored)
    }

    fn add_nodes(&self) -> Result<()> {
        let nodes = NODES
            .map(|name| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}));
        let list = json!({"apiVersion": "v1", "kind": "List", "items": nodes});
        self.control_plane.apply(&list.to_string()).map(drop)
    }

    /// Creates the profile or replaces its spec. By default a node is available as soon as it is
    /// ready.
    pub(crate) fn put_profile(&self, name: &str, mut spec: Value) -> Result<()> {
        let rollout = &mut spec["rollout"];
        if rollout["minReady"].is_null() {
            rollout["minReady"] = "0s".into();
        }
        let kind = "ProxyProfile";
        let profile = json!({
            "apiVersion": "signpost.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
        });
        self.control_plane.apply(&profile.to_string()).map(drop)
    }

    /// Returns the object of a cluster-scoped kind; `None` if it does not exist.
    pub(crate) fn get(&self, kind: &str, name: &str) -> Result<Option<Value>> {
        let group = match kind {
            "node" => "api/v1",
            _ => "apis/signpost.dev/v1alpha1",
        };
        let plural = match kind {
            "nodeproxy" => "nodeproxies".to_owned(),
            _ => format!("{kind}s"),
        };
        self.objects.get(&format!("/{group}/{plural}/{name}"))
    }

    /// Returns the NodeProxy of `node` once it has this profile and mode.
    pub(crate) fn wait_for_stamp(&self, node: &str, profile: &str, mode: &str) -> Result<Value> {
        wait_for(
            &format!("node {node} to be given {profile} with {mode}"),
            DEADLINE,
            || {
                let proxy = self.get("nodeproxy", node)?;
                Ok(proxy.filter(|proxy| {
                    proxy["spec"]["profileName"] == profile
                        && proxy["spec"]["config"]["mode"] == mode
                }))
            },
        )
    }

    /// Waits until `node` is asked to take Services over.
    pub(crate) fn wait_for_takeover(&self, node: &str) -> Result<()> {
        wait_for(
            &format!("{node} to be asked to take over"),
            DEADLINE,
            || {
                let proxy = self.get("nodeproxy", node)?;
                Ok(proxy.filter(|proxy| proxy["spec"]["config"]["handover"] == "Takeover"))
            },
        )
        .map(drop)
    }

    /// Waits until the rollout of profile `default` waits for something that is described like this.
    pub(crate) fn wait_until_it_waits_for(&self, expected: &str) -> Result<()> {
        let mut seen = Value::Null;
        let found = wait_for(
            &format!("the rollout to wait for {expected:?}"),
            DEADLINE,
            || {
                let profile = self.get("proxyprofile", "default")?;
                seen = profile.context("the profile is there")?["status"]["rollout"].take();
                let text = seen["waitingFor"].as_str().unwrap_or_default();
                Ok(text.contains(expected).then_some(()))
            },
        );
        found.with_context(|| format!("its last rollout: {seen:#}"))
    }

    /// Returns the status of a profile once it has this condition, given as `True/Reason`.
    pub(crate) fn wait_for_condition(
        &self,
        profile: &str,
        kind: &str,
        expected: &str,
    ) -> Result<Value> {
        let mut seen = Value::Null;
        let found = wait_for(
            &format!("profile {profile} to be {kind} {expected}"),
            DEADLINE,
            || {
                seen = self
                    .get("proxyprofile", profile)?
                    .context("the profile is there")?;
                Ok((condition(&seen, kind) == expected).then(|| seen.clone()))
            },
        );
        found.with_context(|| format!("its last status: {:#}", seen["status"]))
    }

    /// Reports in place of the node controller that the kubelet of `node` is lost.
    pub(crate) fn lose_kubelet(&self, node: &str) -> Result<()> {
        let ready = json!({
            "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
        });
        let patch = json!({"status": {"conditions": [ready]}}).to_string();
        let arguments = [
            "patch",
            "node",
            node,
            "--subresource=status",
            "--patch",
            &patch,
        ];
        self.control_plane.kubectl(&arguments).map(drop)
    }

    /// Returns the resource versions of all objects that the operator writes.
    pub(crate) fn versions(&self) -> Result<String> {
        let version = "jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.resourceVersion}{\"\\n\"}{end}";
        let output = format!("--output={version}");
        self.control_plane
            .kubectl(&["get", "proxyprofiles,nodeproxies", &output])
    }

    /// Returns the holder of the operators' lease; empty if there is none.
    pub(crate) fn holder(&self) -> Result<String> {
        let holder = self
            .lease()?
            .and_then(|lease| Some(lease["spec"]["holderIdentity"].as_str()?.to_owned()));
        Ok(holder.unwrap_or_default())
    }

    /// Returns the operators' lease.
    fn lease(&self) -> Result<Option<Value>> {
        let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
        self.objects.get(&format!("{leases}/signpost-operator"))
    }

    /// Returns once `holder` has renewed the operators' lease this many times. It must hold it all
    /// the time.
    pub(crate) fn wait_for_renewals(&self, holder: &str, count: usize) -> Result<()> {
        let mut renewed = BTreeSet::new();
        wait_for("renewals of the lease", DEADLINE, || {
            let lease = self.lease()?.context("there is no lease")?;
            let spec = &lease["spec"];
            ensure!(spec["holderIdentity"] == holder, "{spec:#}");
            renewed.insert(spec["renewTime"].to_string());
            Ok((renewed.len() > count).then_some(()))
        })
    }

    pub(crate) fn wait_for_holder(&self, expected: &str) -> Result<()> {
        wait_for(&format!("{expected} to hold the lease"), DEADLINE, || {
            Ok((self.holder()? == expected).then_some(()))
        })
    }
}

/// Returns `True/Reason` of a condition of `profile`; empty if the condition is missing.
pub(crate) fn condition(profile: &Value, kind: &str) -> String {
    let conditions = profile["status"]["conditions"].as_array();
    let found = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == kind);
    found.map_or_else(String::new, |condition| {
        format!(
            "{}/{}",
            condition["status"].as_str().unwrap_or("?"),
            condition["reason"].as_str().unwrap_or("?")
        )
    })
}

/// Returns the message of a condition of `profile`; empty if the condition is missing.
pub(crate) fn message(profile: &Value, kind: &str) -> String {
    let conditions = profile["status"]["conditions"].as_array();
    let found = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == kind);
    found
        .and_then(|condition| condition["message"].as_str())
        .unwrap_or_default()
        .to_owned()
}
