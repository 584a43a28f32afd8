//! Handovers of all nodes by the profile's field `handover`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crds::NodeProxy;
use crds::profile::ProxyProfile;
use crds::profile::handover::Handover;
use crds::profile::node_findings::NodeFindingKind;
use crds::profile::progress::{RolloutPhase, RolloutStatus, RolloutVerdict};
use crds::profile::rollout::Rollout;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use serde_json::json;

use super::agent::{HANDOVER, SYNC};
use super::agents::KubeProxy;
use super::course::{Cluster, node_name};

/// The writes of a handover for each node: its configuration, and the agent's reports that it is
/// pending and that it is done.
const WRITES: u32 = 3;

/// Handovers to kube-proxy and back.
#[derive(Debug, Clone)]
pub struct Handovers {
    /// From Signpost to kube-proxy, which runs on all nodes.
    pub handback: HandoverFigures,
    /// A takeover that one node refuses, because kube-proxy still runs there.
    pub refused: RefusedTakeover,
    /// From kube-proxy, which has stopped, to Signpost.
    pub takeover: HandoverFigures,
}

/// A handover of all nodes.
#[derive(Debug, Clone, Copy)]
pub struct HandoverFigures {
    /// The time from the edit of the profile until its status reports that all nodes are handed
    /// over and ready.
    pub all: Duration,
    /// The time of the same writes without an operator, and of the agents' work on as many nodes at
    /// once as waves and `maxUnavailable` allow.
    pub least: Duration,
    /// The largest number of nodes that had been given the configuration and had not applied it.
    pub most_at_once: usize,
    /// The number of configurations given to the node with the fewest.
    pub fewest_generations: i64,
    /// The number of configurations given to the node with the most.
    pub most_generations: i64,
}

/// A takeover that the first node of the rollout refuses.
#[derive(Debug, Clone)]
pub struct RefusedTakeover {
    /// The node that refuses it.
    pub node: String,
    /// The time from the edit of the profile until every node is assigned its former configuration
    /// again.
    pub ended: Duration,
    /// The verdict of the rollout.
    pub verdict: RolloutVerdict,
    /// The nodes that were given a configuration, with the number of configurations: there and
    /// back are two.
    pub changed: BTreeMap<String, i64>,
}

// === impl Cluster ===

impl Cluster {
    /// Hands all nodes back to kube-proxy, and takes them over again, first with one node that
    /// refuses.
    pub(super) async fn measure_handovers(&self) -> Result<Handovers> {
        self.agents.run_kube_proxy(KubeProxy::Everywhere);
        self.wait("all nodes to report kube-proxy's rules", |profile| {
            let findings = profile.status.as_ref()?.node_findings.iter();
            let mut found = findings.filter(|f| f.kind == NodeFindingKind::ForeignProxyDetected);
            found.find(|found| self.is_all(found.nodes)).map(drop)
        })
        .await?;
        let handback = self.measure_handover(Handover::Handback).await?;
        eprintln!("handback: {handback:.1?}");
        let refused = self.measure_refused_takeover().await?;
        eprintln!("refused takeover: {refused:.1?}");
        self.agents.run_kube_proxy(KubeProxy::Nowhere);
        let takeover = self.measure_handover(Handover::Takeover).await?;
        eprintln!("takeover: {takeover:.1?}");
        Ok(Handovers {
            handback,
            refused,
            takeover,
        })
    }

    async fn measure_handover(&self, to: Handover) -> Result<HandoverFigures> {
        let work = (SYNC + HANDOVER) * rounds(self.settings.nodes);
        let least = self.observe_least(WRITES, work).await?;
        let before = self.observe_generations().await?;
        self.agents.take_most_changing();
        let all = self.put_handover(to).await?;
        let most_at_once = self.agents.take_most_changing();
        let given = self.observe_generations_since(&before).await?;
        Ok(HandoverFigures {
            all,
            least,
            most_at_once,
            fewest_generations: given.values().copied().min().context("there are nodes")?,
            most_generations: given.values().copied().max().context("there are nodes")?,
        })
    }

    /// Requests a takeover while kube-proxy still runs on the first node, and then the handback that
    /// all nodes have.
    async fn measure_refused_takeover(&self) -> Result<RefusedTakeover> {
        let node = node_name(0);
        self.agents.run_kube_proxy(KubeProxy::On(node.clone()));
        let before = self.observe_generations().await?;
        let began = Instant::now();
        let generation = self
            .put_profile(json!({
                "handover": Handover::Takeover,
                // A refusal counts as a failure once it has lasted as long as this.
                "rollout": {"minReady": "0s", "progressDeadline": "10s"},
            }))
            .await?;
        let (phase, verdict) = self
            .wait("the refused takeover to end", |profile| {
                let rollout = rollout_of(profile, generation)?;
                let is_over = !matches!(
                    rollout.phase,
                    RolloutPhase::RollingOut | RolloutPhase::RollingBack
                );
                is_over.then(|| (rollout.phase, rollout.verdict.clone()))
            })
            .await?;
        let ended = began.elapsed();
        ensure!(
            phase == RolloutPhase::RolledBack,
            "the refused takeover has ended as {phase:?}: {verdict:?}"
        );
        let mut changed = self.observe_generations_since(&before).await?;
        changed.retain(|_, generations| *generations > 0);
        self.put_handover(Handover::Handback).await?;
        Ok(RefusedTakeover {
            node,
            ended,
            verdict: verdict.context("a rollout that was rolled back has a verdict")?,
            changed,
        })
    }

    /// Requests this handover and waits until all nodes have completed it. Returns how long that
    /// took.
    async fn put_handover(&self, to: Handover) -> Result<Duration> {
        let began = Instant::now();
        let generation = self
            .put_profile(json!({"handover": to, "rollout": {"minReady": "0s"}}))
            .await?;
        self.wait("all nodes to be handed over", |profile| {
            let rollout = rollout_of(profile, generation)?;
            let status = profile.status.as_ref()?;
            let is_done = rollout.phase == RolloutPhase::Settled
                && self.is_all(status.updated_nodes)
                && self.is_all(status.ready_nodes);
            is_done.then_some(())
        })
        .await?;
        Ok(began.elapsed())
    }

    async fn observe_generations(&self) -> Result<BTreeMap<String, i64>> {
        let proxies: Api<NodeProxy> = Api::all(self.client.clone());
        let proxies = proxies.list_metadata(&ListParams::default()).await?;
        let generations = proxies.items.into_iter().map(|proxy| {
            let generation = proxy.metadata.generation.unwrap_or_default();
            (proxy.name_any(), generation)
        });
        Ok(generations.collect())
    }

    /// Returns how many configurations each node was given since `before`.
    async fn observe_generations_since(
        &self,
        before: &BTreeMap<String, i64>,
    ) -> Result<BTreeMap<String, i64>> {
        let mut generations = self.observe_generations().await?;
        for (name, generation) in &mut generations {
            *generation -= before.get(name).copied().unwrap_or_default();
        }
        Ok(generations)
    }
}

/// Returns the rollout in the status if that is about this generation of the profile.
fn rollout_of(profile: &ProxyProfile, generation: i64) -> Option<&RolloutStatus> {
    let status = profile.status.as_ref()?;
    let is_current = status.observed_generation == Some(generation);
    status.rollout.as_ref().filter(|_| is_current)
}

/// Returns how many times the work of one node a default rollout over `nodes` nodes takes at least:
/// each wave, in parts of as many nodes as may be unavailable.
fn rounds(nodes: usize) -> u32 {
    let rollout = Rollout::default();
    let most = rollout.max_unavailable.of(nodes);
    let size = |percent: &u32| nodes.saturating_mul(usize::try_from(*percent).unwrap_or(0));
    let canary = usize::try_from(rollout.canary).unwrap_or(0).min(nodes);
    let waves = rollout.waves.iter();
    let waves = waves
        .map(|percent| size(percent).div_ceil(100))
        .chain([nodes]);
    let (mut done, mut rounds) = (canary, canary.div_ceil(most));
    for end in waves {
        rounds += end.saturating_sub(done).div_ceil(most);
        done = done.max(end);
    }
    u32::try_from(rounds).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wave_takes_as_many_rounds_as_its_nodes_may_be_unavailable() {
        // One node after another.
        assert_eq!(rounds(12), 12);
        // 1, 9, 40, 200 and 750 nodes, at most 100 of them at once.
        assert_eq!(rounds(1000), 1 + 1 + 1 + 2 + 8);
    }
}
