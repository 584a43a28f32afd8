//! The `NodeProxy` that a node is to have, and the writes that give it to the node.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crds::{node_proxy::NodeProxySpec, profile::rollout::Rollout};
use jiff::Timestamp;

use crate::{
    baseline::Baseline,
    fleet::{Action, node_progress::after, profile_node::ProfileNode},
    records::{NODE_LABEL, NodeProxyRecord, NodeRecord, PROFILE_LABEL},
};

/// The desired `NodeProxy` of a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredNodeProxy {
    /// Its spec.
    pub(crate) spec: Arc<NodeProxySpec>,
    /// The spec to return to if the change fails.
    pub(crate) previous: Option<Arc<NodeProxySpec>>,
    /// The state of the node before the change.
    pub(crate) baseline: Option<Baseline>,
}

/// Whether the last change of a node is still evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeEvaluation {
    /// It is, or the node is healthy.
    UnderWay,
    /// It is not, and the node is not healthy.
    Over,
}

/// The maximum length of a label value, in bytes. A longer name is not written as a label.
const LONGEST_LABEL: usize = 63;

// === impl DesiredNodeProxy ===

impl DesiredNodeProxy {
    /// For a node that has no configuration yet.
    pub(crate) fn first(spec: &Arc<NodeProxySpec>) -> Self {
        Self {
            spec: Arc::clone(spec),
            previous: None,
            baseline: None,
        }
    }
}

// === impl ProfileNode ===

impl ProfileNode<'_> {
    /// Returns the desired configuration at `now` that keeps the current one, or restores the one
    /// of a deleted object.
    pub(crate) fn keep_current(
        &self,
        rollout: &Rollout,
        now: Timestamp,
    ) -> Option<DesiredNodeProxy> {
        if let Some((proxy, spec)) = self.proxy.zip(self.current()) {
            return Some(DesiredNodeProxy {
                spec: spec.clone(),
                previous: proxy.previous.clone(),
                baseline: proxy.baseline.clone(),
            });
        }
        let deleted_proxy = self.deleted_proxy?;
        let before = Self {
            proxy: self.deleted_proxy,
            deleted_proxy: None,
            ..self.clone()
        };
        let mut spec = deleted_proxy.whole_spec()?.clone();
        if self.is_of_a_former_profile(&spec) {
            // Later generations of the new profile will be greater.
            Arc::make_mut(&mut spec).profile_generation = 0;
        }
        Some(DesiredNodeProxy {
            spec,
            previous: deleted_proxy.previous.clone(),
            baseline: before.next_baseline(deleted_proxy.baseline.clone(), rollout, now),
        })
    }

    /// Whether the node's spec requests the same as the profile but with other fields written
    /// explicitly. The agent then reports on other fields.
    pub(crate) fn has_other_written_fields(&self) -> bool {
        self.current().is_some_and(|current| {
            requests_the_same(current, &self.effective)
                && current.written_fields != self.effective.written_fields
        })
    }

    /// Whether the node was ready with its current spec, by its own report or by its baseline. For
    /// an agent marked as silent, only that it had applied this spec is known.
    fn was_ready(&self, current: &NodeProxySpec) -> bool {
        let is_marked_silent = self.proxy.is_some_and(NodeProxyRecord::is_marked_silent);
        if is_marked_silent && self.has_applied(&current.config_hash) {
            return true;
        }
        let baseline = self.proxy.and_then(|proxy| proxy.baseline.as_ref());
        let is_restored = |baseline: &Baseline| {
            baseline.config_hash == current.config_hash && baseline.is_healthy()
        };
        self.is_ready_with_spec() || baseline.is_some_and(is_restored)
    }

    /// Returns the desired configuration at `now` that applies `spec`. The spec to return to is the
    /// current one if the node is ready with it, otherwise the previous one.
    pub(crate) fn assign(
        &self,
        spec: &Arc<NodeProxySpec>,
        evaluation: ChangeEvaluation,
        rollout: &Rollout,
        now: Timestamp,
    ) -> DesiredNodeProxy {
        let is_kept = |current: &NodeProxySpec| {
            requests_the_same(current, spec) && current.written_fields == spec.written_fields
        };
        let is_over = |current: &NodeProxySpec| match current.profile_name == spec.profile_name {
            true => evaluation == ChangeEvaluation::Over && !is_kept(current),
            false => !self.is_being_changed(current, rollout, now),
        };
        let written = self.proxy.and_then(|proxy| proxy.baseline.clone());
        let (previous, baseline) = match self.current() {
            Some(current) if current.config_hash != spec.config_hash => {
                let baseline = self.next_baseline(written, rollout, now);
                let whole = self.proxy.and_then(NodeProxyRecord::whole_spec);
                let previous = whole.filter(|current| self.was_ready(current)).cloned();
                (previous, baseline)
            }
            // What the node was like before a change that is over is no measure for what follows. To write
            // the same configuration otherwise begins the time anew for which that would be kept.
            Some(current) if is_over(current) => (
                None,
                written.and_then(|it| self.next_baseline(Some(it), rollout, now)),
            ),
            _ => (None, written),
        };
        let previous = previous.or_else(|| self.proxy.and_then(|proxy| proxy.previous.clone()));
        // A new generation of the same configuration does not justify a write for every node and a
        // report from every agent.
        let spec = match self.current() {
            Some(current) if is_kept(current) => current.clone(),
            Some(current) if current.config_hash == spec.config_hash => {
                let is_being_changed = self.is_being_changed(current, rollout, now);
                Arc::new(self.with_kept_generation(current, spec, is_being_changed))
            }
            _ => spec.clone(),
        };
        DesiredNodeProxy {
            previous: previous.filter(|previous| previous.config_hash != spec.config_hash),
            spec,
            baseline,
        }
    }

    /// Returns `spec` for a node that has its configuration already. The generation stays the one that
    /// gave the node the configuration, so that a rollout that changed nothing there takes nothing
    /// back; generations of another profile come before all of this one. A change of another profile
    /// that is still under way there is this profile's from now on: no other judges it any more.
    fn with_kept_generation(
        &self,
        current: &NodeProxySpec,
        spec: &NodeProxySpec,
        is_being_changed: bool,
    ) -> NodeProxySpec {
        let is_of_this_profile =
            current.profile_name == spec.profile_name && !self.is_of_a_former_profile(current);
        NodeProxySpec {
            profile_generation: match (is_of_this_profile, is_being_changed) {
                (true, _) => current.profile_generation,
                (false, true) => spec.profile_generation,
                (false, false) => 0,
            },
            ..spec.clone()
        }
    }

    /// Whether the node was given its configuration in place of another one, so recently that it has
    /// not shown to work there.
    fn is_being_changed(&self, current: &NodeProxySpec, rollout: &Rollout, now: Timestamp) -> bool {
        let baseline = self.proxy.and_then(|proxy| proxy.baseline.as_ref());
        let is_proven = self.is_ready_with_spec()
            && !self.was_assigned_within(rollout.min_ready.duration(), now);
        baseline.is_some_and(|baseline| baseline.config_hash != current.config_hash)
            && self.was_assigned_within(rollout.progress_deadline.duration(), now)
            && !is_proven
    }

    /// Whether the node's configuration was last written less than `span` ago, without the time for
    /// which nodes could not be watched.
    fn was_assigned_within(&self, span: Duration, now: Timestamp) -> bool {
        let assigned = self.proxy.and_then(|proxy| Some(proxy.assigned_at?.own()));
        assigned.is_some_and(|assigned| now < after(assigned, span.saturating_add(self.unwatched)))
    }

    /// Returns the baseline for the next change: the present state of the node. Before the deadline
    /// of the last change, a fault may be caused by that change, so its baseline is kept.
    fn next_baseline(
        &self,
        written: Option<Baseline>,
        rollout: &Rollout,
        now: Timestamp,
    ) -> Option<Baseline> {
        let present = self.current_baseline(now);
        let is_healthy = present.as_ref().is_some_and(Baseline::is_healthy);
        match written {
            Some(written)
                if !is_healthy
                    && self.was_assigned_within(rollout.progress_deadline.duration(), now) =>
            {
                Some(written)
            }
            _ => present,
        }
    }

    /// Whether `spec` is of the node's profile, or what the node had before the change: other profiles
    /// may be for other nodes.
    pub(crate) fn may_roll_back_to(&self, spec: &NodeProxySpec) -> bool {
        let baseline = self.proxy.and_then(|proxy| proxy.baseline.as_ref());
        spec.profile_name == self.effective.profile_name
            || baseline.is_some_and(|baseline| baseline.config_hash == spec.config_hash)
    }

    /// Returns the desired configuration that gives the node `spec` for want of one to return to.
    pub(crate) fn assign_fallback(
        &self,
        spec: &Arc<NodeProxySpec>,
        now: Timestamp,
    ) -> DesiredNodeProxy {
        DesiredNodeProxy {
            baseline: self.current_baseline(now),
            ..DesiredNodeProxy::first(spec)
        }
    }

    /// Returns the desired configuration that restores the previous spec.
    pub(crate) fn roll_back(&self, now: Timestamp) -> Option<DesiredNodeProxy> {
        let spec = self.proxy?.previous.clone()?;
        Some(DesiredNodeProxy {
            spec,
            previous: None,
            baseline: self.current_baseline(now),
        })
    }
}

/// Whether the two specs request the same from the node. They may differ in the generation of the
/// profile and in which fields were written with their default value.
fn requests_the_same(current: &NodeProxySpec, desired: &NodeProxySpec) -> bool {
    let same = NodeProxySpec {
        profile_generation: desired.profile_generation,
        written_fields: desired.written_fields.clone(),
        ..current.clone()
    };
    same == *desired
}

/// Returns the assignments for the nodes whose `NodeProxy` differs from the desired one.
pub(super) fn assignments(
    nodes: &BTreeMap<String, NodeRecord>,
    proxies: &BTreeMap<String, NodeProxyRecord>,
    desired: BTreeMap<String, DesiredNodeProxy>,
) -> impl Iterator<Item = Action> {
    desired.into_iter().filter_map(|(name, desired)| {
        let owner = &nodes.get(&name)?.uid;
        let proxy = proxies.get(&name);
        let fits = proxy.is_some_and(|proxy| {
            let is_kept = proxy.spec.as_ref() == Some(&desired.spec);
            let is_complete = proxy.previous == desired.previous
                && proxy.baseline == desired.baseline
                && proxy.owners.contains(owner)
                && labels(&name, &desired.spec).all(|(label, value)| {
                    proxy.labels.get(label).map(String::as_str) == Some(value)
                });
            is_kept && (is_complete || !proxy.is_spec_whole)
        });
        (!fits).then(|| Action::Assign {
            owner: owner.clone(),
            node: name,
            spec: desired.spec,
            previous: desired.previous,
            baseline: desired.baseline,
            version: proxy.and_then(NodeProxyRecord::resource_version),
        })
    })
}

/// Returns the labels of a node's `NodeProxy`.
pub(crate) fn labels<'a>(
    node: &'a str,
    spec: &'a NodeProxySpec,
) -> impl Iterator<Item = (&'static str, &'a str)> {
    [
        (NODE_LABEL, node),
        (PROFILE_LABEL, spec.profile_name.as_str()),
    ]
    .into_iter()
    .filter(|(_, value)| value.len() <= LONGEST_LABEL)
}
