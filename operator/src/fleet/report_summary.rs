//! The summary of the reports of a profile's nodes.

use std::collections::BTreeMap;

use crds::{
    condition::{
        DEGRADED, FEATURES_HONOURED, READY, Status,
        reason::{
            self, AGENT_SILENT, FIELD_NOT_HONOURED, NO_CONFIGURATION, NODES_DEGRADED, NOT_REPORTED,
            Reason,
        },
    },
    effective::hash::ConfigHash,
    node_proxy::latency::Microseconds,
    profile::{
        node_findings::{AgentVersion, NodeFinding},
        rollout::Rollout,
        status::{FleetLatency, MOST_WORST_NODES, WorstNode},
    },
};
use jiff::Timestamp;

use crate::{
    fleet::{node_findings, profile_node::ProfileNode},
    records::Latency,
};

/// The aggregated reports of one profile's nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportSummary {
    /// The node counts.
    pub(crate) counts: NodeCounts,
    /// When the next agent will count as silent.
    pub(crate) requeue_at: Option<Timestamp>,
    /// The number of nodes that were assigned the profile's configuration and are ready with it.
    pub(super) ready_with_target: u32,
    /// The hash that most nodes have applied.
    pub(super) current: Option<String>,
    /// The latencies of the fleet.
    pub(super) latency: Option<FleetLatency>,
    /// The nodes to check first.
    pub(super) worst: Vec<WorstNode>,
    /// What nodes report besides being ready or degraded.
    pub(super) node_findings: Vec<NodeFinding>,
    /// The versions of the agents.
    pub(super) agent_versions: Vec<AgentVersion>,
    /// The nodes whose agents are silent.
    pub(super) silent: Vec<String>,
    /// The nodes that are not ready, each with its reason.
    pub(super) unready: Vec<String>,
    /// The nodes that the profile selects but on which no agent can run, each with the reason. They
    /// are not counted.
    pub(super) nodes_without_agent: Vec<String>,
    /// What may start kube-proxy again on nodes that take Services over.
    pub(super) takeover_warnings: Option<String>,
    /// The settings that some nodes do not support.
    pub(super) unsupported: Vec<UnsupportedField>,
    /// The number of nodes that support all settings.
    pub(super) with_all_features: u32,
}

/// The node counts of one profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeCounts {
    /// All nodes the profile decides for.
    pub(crate) matched: u32,
    /// Nodes that were assigned the profile's configuration; the others keep theirs so far.
    pub(crate) assigned: u32,
    /// Nodes that have applied the profile's configuration.
    pub(crate) updated: u32,
    /// Nodes that are ready with any configuration.
    pub(crate) ready: u32,
    /// Degraded nodes.
    pub(crate) degraded: u32,
    /// Nodes whose agents are silent.
    pub(crate) silent: u32,
    /// Nodes that the profile selects and all DaemonSets of agents exclude. No other number has them.
    pub(crate) excluded: u32,
    /// How many of all these nodes may be unavailable at once.
    pub(crate) max_unavailable: u32,
}

/// The nodes that a profile selects but on which no agent can run.
#[derive(Clone, Debug, Default)]
pub(super) struct NodesWithoutAgent {
    /// Their names, each with the reason.
    pub(super) names: Vec<String>,
    /// How many of them the DaemonSets of agents exclude.
    pub(super) excluded: u32,
}

/// A setting that one node does not support.
#[derive(Clone, Debug)]
pub(super) struct UnsupportedField {
    /// Why.
    pub(super) reason: Reason,
    /// The node and the settings.
    pub(super) message: String,
}

/// Why a node is listed as one of the worst, worst first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NodeProblem {
    Degraded(String),
    NotReady(String),
    Slow,
}

/// A commit takes milliseconds in a cluster of any size, so a node this slow needs a check.
const SLOW: Microseconds = Microseconds::new(1_000_000);

// === impl ReportSummary ===

impl ReportSummary {
    /// Aggregates the reports of `members`, whose desired configuration has the hash `target`.
    pub(crate) fn of(members: &[ProfileNode<'_>], target: &ConfigHash, now: Timestamp) -> Self {
        let mut summary = Self::default();
        let mut applied: BTreeMap<&str, u32> = BTreeMap::new();
        let mut latencies: Vec<Latency> = Vec::new();
        let mut problems: Vec<(NodeProblem, Option<Microseconds>, &str)> = Vec::new();
        for member in members {
            let silent = member.is_silent(now);
            if let Some(from) = member.silent_from().filter(|from| *from > now) {
                summary.requeue_at = [summary.requeue_at, Some(from)].into_iter().flatten().min();
            }
            let ready = !silent && member.condition_status(READY) == Status::True;
            let degraded = member.condition_status(DEGRADED) == Status::True;
            summary.counts.matched += 1;
            summary.counts.updated += u32::from(member.has_applied(target));
            summary.counts.ready += u32::from(ready);
            summary.counts.degraded += u32::from(degraded);
            let asked_for = member
                .current()
                .is_some_and(|spec| spec.config_hash == *target);
            summary.counts.assigned += u32::from(asked_for);
            summary.ready_with_target +=
                u32::from(ready && asked_for && member.is_ready_with_spec());
            summary.counts.silent += u32::from(silent);
            if silent {
                summary.silent.push(member.name().to_owned());
            }
            summary.features(member);

            if let Some(hash) = member
                .status()
                .and_then(|status| status.applied_hash.as_ref())
            {
                *applied.entry(hash.as_str()).or_default() += 1;
            }
            let latency = member.status().and_then(|status| status.latency);
            latencies.extend(latency);
            let p99 = latency.map(|latency| latency.p99);
            let reason = |kind: &str, otherwise: Reason| {
                member
                    .condition(kind)
                    .map_or(otherwise.name, |condition| condition.reason.as_str())
                    .to_owned()
            };
            let problem = if degraded {
                NodeProblem::Degraded(reason(DEGRADED, NODES_DEGRADED))
            } else if silent {
                NodeProblem::NotReady(AGENT_SILENT.name.to_owned())
            } else if !ready {
                let nothing = if member.current().is_some() {
                    NOT_REPORTED
                } else {
                    NO_CONFIGURATION
                };
                NodeProblem::NotReady(reason(READY, nothing))
            } else if p99.is_some_and(|p99| p99 > SLOW) {
                NodeProblem::Slow
            } else {
                continue;
            };
            if let NodeProblem::NotReady(reason) = &problem {
                summary
                    .unready
                    .push(format!("{} ({reason})", member.name()));
            }
            problems.push((problem, p99, member.name()));
        }
        // The tie between equally frequent hashes is broken deterministically.
        summary.current = applied
            .into_iter()
            .max_by_key(|(hash, count)| (*count, *hash))
            .map(|(hash, _)| hash.to_owned());
        summary.latency = fleet_latency(latencies);
        summary.worst = worst(problems);
        summary.node_findings = node_findings::sum_up(members, now);
        summary.agent_versions = node_findings::agent_versions(members);
        summary
    }

    /// Adds the nodes that are left out.
    pub(super) fn set_nodes_without_agent(
        &mut self,
        without_agent: NodesWithoutAgent,
        rollout: &Rollout,
    ) {
        self.nodes_without_agent = without_agent.names;
        self.counts.excluded = without_agent.excluded;
        let selected = usize::try_from(self.counts.matched + without_agent.excluded);
        let most = rollout.max_unavailable.of(selected.unwrap_or(usize::MAX));
        self.counts.max_unavailable = u32::try_from(most).unwrap_or(u32::MAX);
    }

    fn features(&mut self, member: &ProfileNode<'_>) {
        match member.condition(FEATURES_HONOURED) {
            Some(unsupported) if unsupported.status == "True" => self.with_all_features += 1,
            Some(unsupported) if unsupported.status == "False" => {
                // A newer agent may report a reason that this operator does not know.
                let reason = reason::find(&unsupported.reason).unwrap_or(FIELD_NOT_HONOURED);
                self.unsupported.push(UnsupportedField {
                    reason,
                    message: format!("{}: {}", member.name(), unsupported.message),
                });
            }
            _ => {}
        }
    }
}

/// Returns the median of the medians, which no single node can change, and the maximum of the 99th
/// percentiles, which one node can.
fn fleet_latency(mut latencies: Vec<Latency>) -> Option<FleetLatency> {
    latencies.sort();
    let median = latencies.get(latencies.len().saturating_sub(1) / 2)?.p50;
    let greatest = latencies.into_iter().map(|latency| latency.p99).max()?;
    Some(FleetLatency::new(median, greatest))
}

fn worst(mut problems: Vec<(NodeProblem, Option<Microseconds>, &str)>) -> Vec<WorstNode> {
    let severity = |problem: &NodeProblem| match problem {
        NodeProblem::Degraded(_) => 0,
        NodeProblem::NotReady(_) => 1,
        NodeProblem::Slow => 2,
    };
    problems.sort_by(|(a, a_p99, a_name), (b, b_p99, b_name)| {
        severity(a)
            .cmp(&severity(b))
            .then_with(|| b_p99.cmp(a_p99))
            .then_with(|| a_name.cmp(b_name))
    });
    problems.truncate(MOST_WORST_NODES);
    let describe =
        |(problem, p99_microseconds, name): (NodeProblem, Option<Microseconds>, &str)| WorstNode {
            name: name.to_owned(),
            reason: match problem {
                NodeProblem::Degraded(reason) | NodeProblem::NotReady(reason) => {
                    reason.chars().take(LONGEST_REASON).collect()
                }
                NodeProblem::Slow => "Slow".to_owned(),
            },
            p99_microseconds,
        };
    problems.into_iter().map(describe).collect()
}

/// The maximum length that the schema of [`WorstNode::reason`] allows.
const LONGEST_REASON: usize = 128;
