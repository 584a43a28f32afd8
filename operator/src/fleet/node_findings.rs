//! What the nodes of a profile report besides being ready or degraded, summed up by kind.

use std::{cmp::Reverse, collections::BTreeMap};

use crds::{
    condition::{CONNTRACK_PRESSURE, FOREIGN_PROXY_DETECTED, RULES_CONTESTED, Status},
    profile::node_findings::{
        AgentVersion, MOST_AGENT_VERSIONS, MOST_FIRST_NODES, NodeFinding, NodeFindingKind,
    },
};
use jiff::Timestamp;

use crate::fleet::profile_node::ProfileNode;

/// Returns an entry for each kind that a node reports. A silent agent's last report does not count.
pub(super) fn sum_up(members: &[ProfileNode<'_>], now: Timestamp) -> Vec<NodeFinding> {
    let mut nodes: BTreeMap<NodeFindingKind, Vec<&str>> = BTreeMap::new();
    for member in members.iter().filter(|member| !member.is_silent(now)) {
        for kind in found_on(member) {
            nodes.entry(kind).or_default().push(member.name());
        }
    }
    let entry = |(kind, mut nodes): (NodeFindingKind, Vec<&str>)| {
        nodes.sort_unstable();
        let first = nodes.iter().take(MOST_FIRST_NODES);
        NodeFinding {
            kind,
            nodes: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
            first_nodes: first.map(ToString::to_string).collect(),
        }
    };
    nodes.into_iter().map(entry).collect()
}

fn found_on(member: &ProfileNode<'_>) -> impl Iterator<Item = NodeFindingKind> {
    let is_true = |kind| member.condition_status(kind) == Status::True;
    let has_drift = member.status().is_some_and(|status| status.has_drift);
    let all = [
        (
            NodeFindingKind::ForeignProxyDetected,
            is_true(FOREIGN_PROXY_DETECTED),
        ),
        (NodeFindingKind::RulesContested, is_true(RULES_CONTESTED)),
        (NodeFindingKind::RulesDrifted, has_drift),
        (
            NodeFindingKind::ConntrackPressure,
            is_true(CONNTRACK_PRESSURE),
        ),
        (NodeFindingKind::HandedBack, member.is_handed_back()),
    ];
    all.into_iter()
        .filter_map(|(kind, is_there)| is_there.then_some(kind))
}

/// Returns the versions of the agents, the most frequent first.
pub(super) fn agent_versions(members: &[ProfileNode<'_>]) -> Vec<AgentVersion> {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for member in members {
        if let Some(version) = member.status().and_then(|s| s.agent_version.as_deref()) {
            *counts.entry(version).or_default() += 1;
        }
    }
    let mut versions: Vec<_> = counts.into_iter().collect();
    // A stable sort: equally frequent versions stay in alphabetical order.
    versions.sort_by_key(|(_, nodes)| Reverse(*nodes));
    versions.truncate(MOST_AGENT_VERSIONS);
    let entry = |(version, nodes): (&str, u32)| AgentVersion {
        version: version.to_owned(),
        nodes,
    };
    versions.into_iter().map(entry).collect()
}
