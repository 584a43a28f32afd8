//! Which profile decides for which node.

use std::collections::BTreeMap;

use crds::{
    condition::{Status, reason::Reason},
    resolve::Resolution,
};
use jiff::Timestamp;

use crate::{
    agent_daemon_set::AgentDaemonSet,
    fleet::{conflict::Conflicts, profile_node::ProfileNode, report_summary::NodesWithoutAgent},
    records::NodeRecord,
};

/// The nodes of all profiles.
#[derive(Debug, Default)]
pub(super) struct MatchedNodes<'a> {
    members: BTreeMap<String, Vec<ProfileNode<'a>>>,
    without_agent: BTreeMap<String, NodesWithoutAgent>,
    conflicts: Conflicts,
}

// === impl MatchedNodes ===

impl<'a> MatchedNodes<'a> {
    /// Adds a node to the profile that decides for it by `resolution`. `member` is absent if none
    /// does.
    pub(super) fn add(
        &mut self,
        node: &NodeRecord,
        member: Option<ProfileNode<'a>>,
        resolution: Resolution,
        agent_daemon_sets: &BTreeMap<String, AgentDaemonSet>,
        now: Timestamp,
    ) {
        let by_label = node.without_agent();
        let exclusion = || member.as_ref()?.exclusion(agent_daemon_sets, now);
        let by_daemon_set = by_label.is_none().then(exclusion).flatten();
        let is_excluded = by_daemon_set.is_some();
        if let Some(why) = by_label.or(by_daemon_set) {
            if let Some(winner) = resolution.winner {
                let without_agent = self.without_agent.entry(winner).or_default();
                without_agent.names.push(format!("{} ({why})", node.name));
                without_agent.excluded += u32::from(is_excluded);
            }
            return;
        }
        self.conflicts.count(&resolution);
        if let (Some(winner), Some(member)) = (resolution.winner, member) {
            self.members.entry(winner).or_default().push(member);
        }
    }

    /// Takes the nodes that `profile` decides for.
    pub(super) fn take_members(&mut self, profile: &str) -> Vec<ProfileNode<'a>> {
        self.members.remove(profile).unwrap_or_default()
    }

    /// Takes the nodes that `profile` selects but on which no agent can run.
    pub(super) fn take_without_agent(&mut self, profile: &str) -> NodesWithoutAgent {
        self.without_agent.remove(profile).unwrap_or_default()
    }

    /// Returns the condition Conflict of `profile`: its status, reason and message.
    pub(super) fn conflict(&self, profile: &str) -> (Status, Reason, String) {
        self.conflicts.of(profile)
    }
}
