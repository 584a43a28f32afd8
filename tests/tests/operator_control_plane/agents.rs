//! Reports and Events in place of the agents.

use anyhow::{Context, Result};
use crds::node_proxy::NodeProxy;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
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
        // Not with kubectl, which first reads the subresource; agents may not do that.
        self.as_agent(node, async |client| {
            let resource = ApiResource::erase::<NodeProxy>(&());
            let proxies = Api::<DynamicObject>::all_with(client, &resource);
            let patch = Patch::Merge(json!({"status": status}));
            proxies
                .patch_status(reported, &PatchParams::default(), &patch)
                .await?;
            Ok(())
        })
    }

    /// Writes an Event as `reporter` with the credentials of the agent on `node`, and reports it
    /// again, which makes the Event a series.
    pub(crate) fn announce_as(
        &self,
        node: Option<&str>,
        reporter: Reporter,
        regarding: &ObjectReference,
    ) -> Result<()> {
        let event = Event {
            type_: EventType::Normal,
            reason: "Starting".to_owned(),
            note: None,
            action: "Report".to_owned(),
            secondary: None,
        };
        self.as_agent(node, async |client| {
            let recorder = Recorder::new(client, reporter);
            recorder.publish(&event, regarding).await?;
            recorder.publish(&event, regarding).await?;
            Ok(())
        })
    }

    /// Makes requests with the credentials of the agent on `node`; with `None`, of an agent whose
    /// token names no node.
    pub(crate) fn as_agent(
        &self,
        node: Option<&str>,
        request: impl AsyncFnOnce(Client) -> Result<()>,
    ) -> Result<()> {
        let mut account = ServiceAccount::new(NAMESPACE, "signpost-agent");
        if let Some(node) = node {
            account = account.on_node(node);
        }
        let kubeconfig = self.control_plane.kubeconfig_of_account(&account)?;
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(async { request(client(&kubeconfig).await?).await })
    }

    /// Reports as the agent of `node` that it has programmed its configuration. The reported
    /// mode is always nftables.
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
        let status = programmed(
            &proxy["metadata"]["generation"],
            &proxy["spec"],
            (degraded, why),
        );
        self.report_as(Some(node), node, &status)
    }
}

/// Returns the status of an agent that has programmed `spec`, assigned with this generation. The
/// reported mode is always nftables.
pub(crate) fn programmed(generation: &Value, spec: &Value, (degraded, why): (&str, &str)) -> Value {
    let mode = &spec["config"]["mode"];
    let honoured = if mode == "nftables" {
        (
            "True",
            "AllHonoured",
            "every node supports everything that the profile and the Services ask for".to_owned(),
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
    json!({
        "observedGeneration": generation,
        "agentVersion": env!("CARGO_PKG_VERSION"),
        "appliedHash": spec["configHash"],
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
    })
}
