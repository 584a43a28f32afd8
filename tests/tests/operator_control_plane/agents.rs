//! Reports in place of the agents.

use std::path::Path;

use anyhow::{Context, Result};
use crds::node_proxy::NodeProxy;
use jiff::Timestamp;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use tests::control_plane::{ServiceAccount, client};

use crate::NAMESPACE;
use crate::cluster::Cluster;

// === impl Cluster ===

impl Cluster {
    /// Writes the status of `reported` with the credentials of the agent on `node`.
    pub(crate) fn report_as(
        &self,
        node: Option<&str>,
        reported: &str,
        status: &Value,
    ) -> Result<()> {
        let mut account = ServiceAccount::new(NAMESPACE, "signpost-agent");
        if let Some(node) = node {
            account = account.on_node(node);
        }
        let kubeconfig = self.control_plane.kubeconfig_of_account(&account)?;
        // Not with kubectl, which first reads the subresource; agents may not do that.
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(patch_status(&kubeconfig, reported, status))
    }

    /// Reports as the agent of `node` that it has programmed its configuration. The reported
    /// mechanism is always nftables.
    pub(crate) fn report_ready(&self, node: &str) -> Result<()> {
        self.report(node, ("False", "AsExpected"))
    }

    /// The same while the agent cannot reach its API server.
    pub(crate) fn report_stale(&self, node: &str) -> Result<()> {
        self.report(node, ("True", "SourceStale"))
    }

    fn report(&self, node: &str, (degraded, why): (&str, &str)) -> Result<()> {
        let proxy = self
            .get("nodeproxy", node)?
            .context("the node was given something")?;
        let (generation, mode) = (
            &proxy["metadata"]["generation"],
            &proxy["spec"]["config"]["mode"],
        );
        let honoured = if mode == "nftables" {
            (
                "True",
                "AllHonoured",
                "everything asked for is carried out".to_owned(),
            )
        } else {
            (
                "False",
                "ModeNotHonoured",
                format!("mode {mode} is not available yet"),
            )
        };
        let quantiles =
            json!({"p50Microseconds": 900, "p99Microseconds": 4000, "maxMicroseconds": 5000});
        let condition = |kind: &str, (status, reason, message): (&str, &str, String)| {
            json!({
                "type": kind, "status": status, "reason": reason, "message": message,
                "observedGeneration": generation, "lastTransitionTime": Timestamp::now(),
            })
        };
        self.report_as(
            Some(node),
            node,
            &json!({
                "observedGeneration": generation,
                "appliedHash": proxy["spec"]["configHash"],
                "mode": "nftables",
                "syncLatency": {
                    "window": "5m", "decode": quantiles, "compile": quantiles, "commit": quantiles,
                    "total": quantiles, "p99": "4ms",
                },
                "counts": {"services": 3, "endpoints": 5, "elements": 40},
                "conditions": [
                    condition("Ready", ("True", "Programmed", "3 services".to_owned())),
                    condition("Degraded", (degraded, why, String::new())),
                    condition("FeaturesHonoured", honoured),
                ],
            }),
        )
    }
}

async fn patch_status(kubeconfig: &Path, node: &str, status: &Value) -> Result<()> {
    let resource = ApiResource::erase::<NodeProxy>(&());
    let proxies = Api::<DynamicObject>::all_with(client(kubeconfig).await?, &resource);
    let patch = Patch::Merge(json!({"status": status}));
    proxies
        .patch_status(node, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}
