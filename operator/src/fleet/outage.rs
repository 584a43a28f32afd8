//! Whether nodes are lost for another reason than what they were given: without the load balancer of
//! the API server, the other nodes are lost like those. Such a loss fails no node
//! ([0036](../../../docs/decisions/0036-what-counts-as-a-failed-node.md)).

use std::collections::BTreeSet;

use crds::profile::rollout::OnFailure;
use jiff::Timestamp;

use crate::{
    fleet::{
        member::Member,
        moves,
        node_progress::{GRACE, after},
        observations::Observations,
        rollout_progress::{Phase, RolloutProgress, Target},
    },
    records::Role,
};

/// The nodes lost since a change began, among those that were given it and among the others. A
/// rollback, and a move of nodes to another profile, are such changes, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    changed: Group,
    others: Group,
}

/// Nodes, and how many of them are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Group {
    nodes: usize,
    lost: usize,
}

/// A node that was not lost when the rollout began.
struct Witness {
    role: Role,
    is_changed: bool,
    is_lost: bool,
}

/// The part of a node in a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// It was given the change.
    Given,
    /// It was not.
    Other,
    /// It may be lost by another change.
    None,
}

/// An outage has hit both groups if the share of lost nodes among the others is at least one in so
/// many of the share among those with the change: with three zones, a lost zone that the only canary
/// belongs to.
const COMPARABLE: usize = 4;

// === impl Losses ===

impl Losses {
    /// Counts the nodes of a change, each by its `part` in it.
    pub(super) fn count(
        part: impl Fn(&Member<'_>) -> Part,
        members: &[Member<'_>],
        observations: &Observations,
        now: Timestamp,
    ) -> Self {
        let is_changed = |member: &Member<'_>| part(member) == Part::Given;
        let assigned_since = |member: &Member<'_>| {
            let assigned_since = member
                .proxy
                .and_then(|proxy| observations.assigned_since(proxy));
            assigned_since.unwrap_or(now)
        };
        let changed = members.iter().filter(|member| is_changed(member));
        let start = changed.clone().map(assigned_since).min();
        let assigned = changed.filter_map(|member| Some(member.proxy?.assigned_at?.own()));
        let assigned = assigned.min();
        let mut witnesses = Vec::with_capacity(members.len());
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
            if member.current().is_some() && !was_lost_before && part(member) != Part::None {
                witnesses.push(Witness {
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
        if lost == nodes && !witnesses.iter().any(|it| it.is_changed) {
            // Lost before the rollout began: no node would show what the change does.
            let others = Group { nodes, lost };
            return Self {
                others,
                ..Self::default()
            };
        }
        Self::of(&witnesses)
    }

    /// Counts nodes of the roles that lost nodes with the change have. Those of the control plane
    /// change last, and may reach the API server another way.
    fn of(witnesses: &[Witness]) -> Self {
        let lost = witnesses.iter().filter(|it| it.is_changed && it.is_lost);
        let roles: BTreeSet<Role> = lost.map(|it| it.role).collect();
        let mut losses = Self::default();
        for witness in witnesses {
            if !roles.is_empty() && !roles.contains(&witness.role) {
                continue;
            }
            let group = if witness.is_changed {
                &mut losses.changed
            } else {
                &mut losses.others
            };
            group.nodes += 1;
            group.lost += usize::from(witness.is_lost);
        }
        losses
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
            others.lost * changed.nodes * COMPARABLE >= changed.lost * others.nodes
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
    pub(super) fn look_for_an_outage(
        &mut self,
        target: &Target,
        members: &[Member<'_>],
        observations: &mut Observations,
        now: Timestamp,
    ) {
        for member in members {
            if member.is_lost(now) {
                observations.note_loss(member.name(), now);
            } else {
                observations.note_contact(member.name());
            }
        }
        let losses = self.is_under_way(members).then(|| {
            let part = |member: &Member<'_>| self.part(member);
            Losses::count(part, members, observations, now)
        });
        let most = target.rollout.max_unavailable.of(members.len());
        let outage = losses.filter(|losses| losses.are_an_outage(most));
        if outage.is_some() || self.outage.is_some() {
            let lost = members.iter().filter(|member| member.is_lost(now));
            lost.for_each(|member| observations.excuse(member.name(), now));
        }
        self.outage = outage;
    }

    /// Whether nodes are being changed, or wait to be.
    fn is_under_way(&self, members: &[Member<'_>]) -> bool {
        match &self.phase {
            Phase::Rolling => true,
            Phase::Failed {
                on_failure: OnFailure::Rollback,
                ..
            } => members.iter().any(|member| self.was_assigned_by_it(member)),
            Phase::Failed { .. } => false,
            Phase::Settled | Phase::Overdue | Phase::HeldBack { .. } => {
                !self.moves.is_empty() || members.iter().any(|it| !self.has(it))
            }
        }
    }

    fn part(&self, member: &Member<'_>) -> Part {
        let is_given = match &self.phase {
            Phase::Failed { .. } if self.was_assigned_by_it(member) => return Part::None,
            Phase::Failed { .. } => member.was_rolled_back_from(self.hash()),
            phase if moves::has_ended(phase) => self.moves.have(member.name()) && self.has(member),
            _ => self.was_assigned_by_it(member),
        };
        if is_given { Part::Given } else { Part::Other }
    }

    fn has(&self, member: &Member<'_>) -> bool {
        let current = member.current();
        current.is_some_and(|current| current.config_hash == *self.hash())
    }

    /// Whether this rollout gave the node its configuration.
    fn was_assigned_by_it(&self, member: &Member<'_>) -> bool {
        self.has(member) && !member.was_assigned_before(self.began())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The losses of lost nodes and all nodes, with the change and without it.
    fn losses(changed: (usize, usize), others: (usize, usize)) -> Losses {
        let group = |(lost, nodes)| Group { nodes, lost };
        Losses {
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
            let losses = losses(changed, others);
            assert!(losses.are_an_outage(most), "{losses:?} {most}");
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
            let losses = losses(changed, others);
            assert!(!losses.are_an_outage(most), "{losses:?} {most}");
        }
    }

    #[test]
    fn t216_nodes_of_the_control_plane_say_nothing_about_workers() {
        let witness = |role, is_changed, is_lost| Witness {
            role,
            is_changed,
            is_lost,
        };
        let cluster = [
            witness(Role::Worker, true, true),
            witness(Role::Worker, true, true),
            witness(Role::ControlPlane, false, false),
            witness(Role::ControlPlane, false, false),
        ];
        assert_eq!(Losses::of(&cluster), losses((2, 2), (0, 0)));
    }
}
