//! Whether nodes are lost for another reason than what they were assigned: without the load balancer of
//! the API server, the other nodes are lost like those. Such a loss fails no node
//! ([0036](../../../docs/decisions/0036-what-counts-as-a-failed-node.md)).

use std::collections::BTreeSet;

use crds::profile::rollout::OnFailure;
use jiff::Timestamp;

use crate::{
    fleet::{
        node_progress::{GRACE, after},
        observations::Observations,
        profile_node::ProfileNode,
        rollout_phase::Phase,
        rollout_progress::RolloutProgress,
        rollout_target::RolloutTarget,
    },
    records::Role,
};

/// The nodes lost since a change began, among those that were assigned it and among the others. A
/// rollback, and a move of nodes to another profile, are such changes, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LostNodes {
    changed: GroupLosses,
    others: GroupLosses,
}

/// The number of nodes of a group, and how many of them are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct GroupLosses {
    nodes: usize,
    lost: usize,
}

/// A node that was not lost when the rollout began.
struct ComparedNode {
    role: Role,
    is_changed: bool,
    is_lost: bool,
}

/// Whether a node was assigned a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RolloutGroup {
    /// It was assigned the change.
    Changed,
    /// It was not.
    Unchanged,
    /// It may be lost by another change, and is not counted.
    Ignored,
}

/// An outage has hit both groups if the share of lost nodes among the others is at least one in so
/// many of the share among those with the change: with three zones, a lost zone that the only canary
/// belongs to.
const LARGEST_RATIO: usize = 4;

// === impl LostNodes ===

impl LostNodes {
    /// Counts the nodes of a change, each by its group.
    pub(super) fn count(
        group_of: impl Fn(&ProfileNode<'_>) -> RolloutGroup,
        members: &[ProfileNode<'_>],
        observations: &Observations,
        now: Timestamp,
    ) -> Self {
        let is_changed = |member: &ProfileNode<'_>| group_of(member) == RolloutGroup::Changed;
        let assigned_since = |member: &ProfileNode<'_>| {
            let assigned_since = member
                .proxy
                .and_then(|proxy| observations.assigned_since(proxy));
            assigned_since.unwrap_or(now)
        };
        let changed = members.iter().filter(|member| is_changed(member));
        let start = changed.clone().map(assigned_since).min();
        let assigned = changed.filter_map(|member| Some(member.proxy?.assigned_at?.own()));
        let assigned = assigned.min();
        let mut compared = Vec::with_capacity(members.len());
        for member in members {
            let lost = observations.lost_since(member.name());
            let is_changed = is_changed(member);
            let was_lost_before = if is_changed {
                !member.was_healthy_before()
            } else {
                let written = member.loss_written_at().zip(assigned);
                lost.is_some_and(|lost| start.is_none_or(|start| lost < start))
                    || written.is_some_and(|(lost, assigned)| after(lost, GRACE) <= assigned)
            };
            if member.current().is_some()
                && !was_lost_before
                && group_of(member) != RolloutGroup::Ignored
            {
                compared.push(ComparedNode {
                    role: member.node.role(),
                    is_changed,
                    is_lost: lost.is_some(),
                });
            }
        }
        let with_any = members.iter().filter(|member| member.current().is_some());
        let (nodes, lost) = with_any.fold((0, 0), |(nodes, lost), member| {
            let is_lost = observations.lost_since(member.name()).is_some();
            (nodes + 1, lost + usize::from(is_lost))
        });
        if lost == nodes && !compared.iter().any(|it| it.is_changed) {
            // Lost before the rollout began: no node would show what the change does.
            let others = GroupLosses { nodes, lost };
            return Self {
                others,
                ..Self::default()
            };
        }
        Self::of(&compared)
    }

    /// Counts nodes of the roles that lost nodes with the change have. Those of the control plane
    /// change last, and may reach the API server another way.
    fn of(compared: &[ComparedNode]) -> Self {
        let lost = compared.iter().filter(|it| it.is_changed && it.is_lost);
        let roles: BTreeSet<Role> = lost.map(|it| it.role).collect();
        let mut lost_nodes = Self::default();
        for node in compared {
            if !roles.is_empty() && !roles.contains(&node.role) {
                continue;
            }
            let group = if node.is_changed {
                &mut lost_nodes.changed
            } else {
                &mut lost_nodes.others
            };
            group.nodes += 1;
            group.lost += usize::from(node.is_lost);
        }
        lost_nodes
    }

    /// Whether the losses are an outage, in a rollout that may make `most` nodes unavailable.
    pub(super) const fn are_an_outage(self, most: usize) -> bool {
        let Self { changed, others } = self;
        // Not more than the change may have made unavailable.
        if changed.lost + others.lost <= most {
            return false;
        }
        // With the same share of lost nodes, at least one of the others would be lost.
        if changed.lost > 0 && changed.lost * others.nodes >= changed.nodes {
            others.lost * changed.nodes * LARGEST_RATIO >= changed.lost * others.nodes
        } else {
            (changed.lost + others.lost) * 2 >= changed.nodes + others.nodes
        }
    }

    /// Returns what a rollout waits for in an outage.
    pub(super) fn describe(self) -> String {
        format!(
            "contact with {} of {} nodes to return; no node changes or fails meanwhile",
            self.changed.lost + self.others.lost,
            self.changed.nodes + self.others.nodes
        )
    }
}

// === impl RolloutProgress ===

impl RolloutProgress {
    /// Lost nodes have the whole grace from the end of an outage.
    pub(super) fn detect_outage(
        &mut self,
        target: &RolloutTarget,
        members: &[ProfileNode<'_>],
        observations: &mut Observations,
        now: Timestamp,
    ) {
        for member in members {
            if member.is_lost(now) {
                observations.note_lost(member.name(), now);
            } else {
                observations.note_contact(member.name());
            }
        }
        let lost_nodes = self.is_under_way(members).then(|| {
            let group_of = |member: &ProfileNode<'_>| self.group_of(member);
            LostNodes::count(group_of, members, observations, now)
        });
        let most = target.rollout.max_unavailable.of(members.len());
        let outage = lost_nodes.filter(|lost_nodes| lost_nodes.are_an_outage(most));
        if outage.is_some() || self.outage.is_some() {
            let lost = members.iter().filter(|member| member.is_lost(now));
            lost.for_each(|member| observations.restart_grace(member.name(), now));
        }
        self.outage = outage;
    }

    /// Whether nodes are being changed, or wait to be.
    fn is_under_way(&self, members: &[ProfileNode<'_>]) -> bool {
        match &self.phase {
            Phase::RollingOut => true,
            Phase::Failed {
                on_failure: OnFailure::Rollback,
                ..
            } => members.iter().any(|member| self.was_assigned_by_it(member)),
            Phase::Failed { .. } => false,
            Phase::Settled | Phase::DeadlineExceeded | Phase::HeldBack { .. } => {
                !self.moving_nodes.is_empty()
                    || members.iter().any(|it| !self.has_configuration(it))
            }
        }
    }

    fn group_of(&self, member: &ProfileNode<'_>) -> RolloutGroup {
        let is_changed = match &self.phase {
            Phase::Failed { .. } if self.was_assigned_by_it(member) => {
                return RolloutGroup::Ignored;
            }
            Phase::Failed { .. } => member.was_rolled_back_from(self.hash()),
            phase if phase.has_ended() => {
                self.moving_nodes.contains(member.name()) && self.has_configuration(member)
            }
            _ => self.was_assigned_by_it(member),
        };
        if is_changed {
            RolloutGroup::Changed
        } else {
            RolloutGroup::Unchanged
        }
    }

    fn has_configuration(&self, member: &ProfileNode<'_>) -> bool {
        let current = member.current();
        current.is_some_and(|current| current.config_hash == *self.hash())
    }

    /// Whether this rollout assigned the node its configuration.
    fn was_assigned_by_it(&self, member: &ProfileNode<'_>) -> bool {
        self.has_configuration(member) && !member.was_assigned_before(self.start_generation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The losses of lost nodes and all nodes, with the change and without it.
    fn lost_nodes(changed: (usize, usize), others: (usize, usize)) -> LostNodes {
        let group = |(lost, nodes)| GroupLosses { nodes, lost };
        LostNodes {
            changed: group(changed),
            others: group(others),
        }
    }

    #[test]
    fn t216_an_outage_hits_nodes_with_and_without_the_change() {
        for (changed, others, most) in [
            ((1, 1), (49, 49), 5),
            ((1, 1), (1, 1), 1),
            // The canary and its zone, of three.
            ((1, 1), (16, 49), 5),
            ((20, 50), (1500, 4950), 500),
            // In the last wave.
            ((45, 50), (0, 0), 5),
            ((2, 2), (0, 0), 1),
            ((2, 3), (0, 0), 1),
            // A single node without the change kept its contact, one in ten.
            ((900, 1000), (0, 1), 100),
            // The agents of the changed nodes are not found to be silent yet.
            ((0, 1), (30, 49), 5),
        ] {
            let lost_nodes = lost_nodes(changed, others);
            assert!(lost_nodes.are_an_outage(most), "{lost_nodes:?} {most}");
        }
    }

    #[test]
    fn t216_losses_of_the_change_and_of_single_nodes_are_no_outage() {
        for (changed, others, most) in [
            ((1, 1), (0, 0), 1),
            ((1, 1), (0, 1), 1),
            ((1, 1), (0, 2), 1),
            ((1, 2), (0, 0), 1),
            ((1, 3), (0, 0), 1),
            ((2, 2), (0, 1), 1),
            ((30, 30), (0, 20), 5),
            ((3000, 3000), (20, 2000), 500),
            // Nodes die as often with the change as without it.
            ((3, 25), (2, 25), 5),
            // A zone, in the last wave.
            ((17, 50), (0, 0), 5),
            // All nodes were given the change at once.
            ((50, 50), (0, 0), 50),
            // A zone that has its turn only later.
            ((0, 10), (15, 40), 5),
        ] {
            let lost_nodes = lost_nodes(changed, others);
            assert!(!lost_nodes.are_an_outage(most), "{lost_nodes:?} {most}");
        }
    }

    #[test]
    fn t216_nodes_of_the_control_plane_say_nothing_about_workers() {
        let node = |role, is_changed, is_lost| ComparedNode {
            role,
            is_changed,
            is_lost,
        };
        let cluster = [
            node(Role::Worker, true, true),
            node(Role::Worker, true, true),
            node(Role::ControlPlane, false, false),
            node(Role::ControlPlane, false, false),
        ];
        assert_eq!(LostNodes::of(&cluster), lost_nodes((2, 2), (0, 0)));
    }
}
