//! How many nodes may change at once, and which nodes are next.
//!
//! A node uses the budget while it changes, until it has proven itself, and while it is worse than
//! before for any reason: a node lost after a change must not let the next one start. Nodes that
//! were not ready before reduce the budget but never to zero: a fleet with a broken node still
//! changes, one node at a time.

use std::collections::BTreeSet;

use crds::profile::rollout::Rollout;

use crate::fleet::{
    node_failure::{FailureStart, NodeFailure},
    node_progress::{Health, NodeProgress},
    profile_node::ProfileNode,
    rollout_phase::Phase,
};

/// Returns the nodes that receive the configuration next: those that have `begun`, which are the
/// nodes of the waves up to the one in progress, healthy ones first. All nodes are in `order`.
pub(crate) fn next_nodes<'a>(
    phase: &Phase,
    rollout: &Rollout,
    members: &'a [ProfileNode<'_>],
    node_progress: &[NodeProgress],
    begun: &[usize],
    order: &[usize],
) -> BTreeSet<&'a str> {
    let count = |is: &dyn Fn(&NodeProgress) -> bool| node_progress.iter().filter(|s| is(s)).count();
    let changing = count(&|progress| is_changing(phase, progress));
    let unavailable = count(&|progress| {
        !is_changing(phase, progress)
            && matches!(
                progress,
                NodeProgress::Outdated(Health::Unready | Health::Unreachable)
                    | NodeProgress::Excused
                    | NodeProgress::Failed(_)
            )
    });
    let most = rollout.max_unavailable.of(members.len());
    let allowed = match phase {
        Phase::HeldBack { .. } => 0,
        _ => most,
    };
    let budget = allowed.saturating_sub(changing);
    let least = usize::from(changing == 0).min(budget);
    let budget_for_ready = budget
        .min(most.saturating_sub(changing + unavailable))
        .max(least);

    let name = |index: usize| members[index].name();
    let to_change = begun
        .iter()
        .filter_map(|&index| match node_progress[index] {
            NodeProgress::Outdated(health) if members[index].takeover_block.is_none() => {
                Some((health, name(index)))
            }
            _ => None,
        });
    let to_rewrite = order.iter().filter_map(|&index| {
        let health = match node_progress[index] {
            NodeProgress::Available | NodeProgress::ReadyUnproven => Health::Ready,
            NodeProgress::Excused | NodeProgress::Failed(_) => Health::Unready,
            _ => return None,
        };
        members[index]
            .has_other_written_fields()
            .then(|| (health, name(index)))
    });
    let outdated: Vec<(Health, &str)> = to_change.chain(to_rewrite).collect();
    let ready = outdated
        .iter()
        .filter(|(health, _)| *health == Health::Ready)
        .take(budget_for_ready);
    let chosen: BTreeSet<&str> = ready.map(|(_, name)| *name).collect();
    // Nodes that are already unavailable do not use the budget.
    let others = outdated
        .iter()
        .filter(|(health, _)| *health != Health::Ready)
        .take(budget - chosen.len());
    chosen
        .iter()
        .copied()
        .chain(others.map(|(_, name)| *name))
        .collect()
}

/// Whether `failure` counts against the change. During a rollout every failure does; afterwards
/// only one that began with the change. A later failure of a node must not hold back new nodes.
pub(crate) fn is_about_the_change(phase: &Phase, failure: &NodeFailure) -> bool {
    match failure.start {
        FailureStart::WithTheChange => true,
        FailureStart::Unknown => matches!(phase, Phase::RollingOut | Phase::HeldBack { .. }),
        FailureStart::Afterwards => *phase == Phase::RollingOut,
    }
}

/// Whether the node uses the budget while the rollout is in `phase`.
pub(crate) fn is_changing(phase: &Phase, progress: &NodeProgress) -> bool {
    match progress {
        NodeProgress::Pending(_)
        | NodeProgress::AwaitingMinReady(_)
        | NodeProgress::Worse(_)
        | NodeProgress::ApiServerLost => true,
        NodeProgress::Failed(failure) => is_about_the_change(phase, failure),
        NodeProgress::Unassigned
        | NodeProgress::AwaitingFirstReport(_)
        | NodeProgress::Outdated(_)
        | NodeProgress::Available
        | NodeProgress::ReadyUnproven
        | NodeProgress::Excused => false,
    }
}
