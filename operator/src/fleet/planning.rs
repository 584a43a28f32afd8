//! How a plan is made: each node is matched to a profile, each profile's rollout advances, and what
//! then differs from the objects in Kubernetes is to be written.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use crds::resolve::{NodeFacts, Ranking};
use jiff::Timestamp;

use crate::{
    fleet::{
        Action, Fleet, Plan,
        desired_node_proxy::{DesiredNodeProxy, assignments},
        evaluation_context::{CacheState, EvaluationContext},
        matched_nodes::MatchedNodes,
        node_progress::after,
        planned_profile::PlannedProfile,
        preflight::Preflight,
        profile_node::ProfileNode,
        report_summary::ReportSummary,
        rollout_progress::RolloutProgress,
        rollout_target::RolloutTarget,
        written_status,
    },
    records::NodeRecord,
};

// === impl Fleet ===

impl Fleet {
    /// Returns the writes to make at `now`, which is `instant` on the monotonic clock.
    pub(crate) fn plan(&mut self, now: Timestamp, instant: Instant) -> Plan {
        self.has_changes = false;
        let Self {
            has_changes: _,
            offset: _,
            watches,
            profiles,
            nodes,
            proxies,
            agent_daemon_sets,
            kube_proxy,
            rollouts,
            observations,
            heartbeats,
            deleted_proxies,
            unreported_failures,
            unknown_fields,
        } = self;
        let (Some(profiles), Some(nodes), Some(proxies), Some(agent_daemon_sets), Some(kube_proxy)) = (
            profiles.listed(),
            nodes.listed(),
            proxies.listed(),
            agent_daemon_sets.listed(),
            kube_proxy.as_ref(),
        ) else {
            return Plan::default();
        };
        observations.exclude_unwatched(watches.take_unwatched(instant));
        let at = |until: Instant| after(now, until.saturating_duration_since(instant));
        let suspended_until = watches.suspended_until(instant).map(at);
        let cache = match watches.stale_until(instant) {
            Some(_) => CacheState::Stale,
            None => CacheState::Synced,
        };
        rollouts.retain(|name, _| profiles.contains_key(name));
        unreported_failures.retain(profiles);
        unknown_fields.retain(|name, _| profiles.contains_key(name));
        deleted_proxies.retain(|name, record| {
            let is_the_same = |node: &NodeRecord| record.owners.contains(&node.uid);
            !proxies.contains_key(name) && nodes.get(name).is_some_and(is_the_same)
        });

        let ranking = Ranking::of(profiles.values().map(|record| &record.profile));
        let preflight = Preflight::of(kube_proxy, nodes);
        let mut matched = MatchedNodes::default();
        for node in nodes.values() {
            let proxy = proxies.get(&node.name);
            let facts = NodeFacts {
                name: node.name.clone(),
                labels: Arc::clone(&node.labels),
                current: proxy.and_then(|proxy| proxy.spec.clone()),
            };
            let mut resolution = ranking.resolve(&facts);
            let mut member = resolution.effective.take().map(|effective| ProfileNode {
                node,
                proxy,
                deleted_proxy: deleted_proxies.get(&node.name),
                heartbeats,
                effective,
                unwatched: proxy.map_or(Duration::ZERO, |proxy| observations.unwatched(proxy)),
                takeover_block: None,
            });
            if let Some(member) = &mut member {
                member.takeover_block = preflight.takeover_block(member);
            }
            matched.add(node, member, resolution, agent_daemon_sets, now);
        }

        let mut desired: BTreeMap<String, DesiredNodeProxy> = BTreeMap::new();
        let mut plan = Plan::default();
        plan.requeue_by(watches.stale_until(instant).map(at));
        // What rollouts wait for changes then.
        plan.requeue_by(suspended_until);
        let mut unknown = Vec::new();
        let mut waiting: BTreeSet<String> = BTreeSet::new();
        for (name, record) in profiles {
            let planned = PlannedProfile {
                target: RolloutTarget::of(&record.profile),
                record,
                members: matched.take_members(name),
            };
            let (rollout_progress, progress) = planned.advance(
                rollouts.remove(name),
                EvaluationContext {
                    now,
                    suspended_until,
                    cache,
                },
                observations,
                &mut desired,
                &mut plan,
            );
            let mut summary = ReportSummary::of(&planned.members, &planned.target.hash, now);
            unknown.extend(planned.members.iter().filter_map(|m| m.mark_unknown(now)));
            let without_agent = matched.take_without_agent(name);
            summary.set_nodes_without_agent(without_agent, &planned.target.rollout);
            summary.takeover_warnings = preflight.describe_warnings(&planned.members);
            plan.requeue_by(summary.requeue_at);
            plan.counts.insert(name.clone(), summary.counts);
            let status = summary.status(
                record,
                &planned.target,
                rollout_progress
                    .as_ref()
                    .map(|rollout_progress| (rollout_progress, &progress)),
                matched.conflict(name),
                now,
            );
            let unknown_fields = unknown_fields.get_mut(name);
            let known =
                written_status::as_written(&status, unknown_fields.as_ref().map(|it| &it.fields));
            if let Some(rollout_progress) = rollout_progress {
                // Whether an operator that starts now would know.
                let is_written =
                    || RolloutProgress::resume(&planned.target, &record.status()).has_failed();
                let has_failed = rollout_progress.has_failed();
                if let Some(until) = unreported_failures.wait(name, has_failed, is_written, now) {
                    waiting.extend(planned.members.iter().map(|m| m.name().to_owned()));
                    plan.requeue_by(Some(until));
                }
                if !has_failed && !written_status::has_same_progress(&record.status(), &known) {
                    waiting.extend(planned.changes(&desired));
                }
                rollouts.insert(name.clone(), rollout_progress);
            }
            let is_whole = record.is_status_whole || unknown_fields.is_some();
            let is_tried_again = unknown_fields.is_some_and(|it| it.is_due(now, &mut plan));
            if !is_whole || is_tried_again || record.profile.status.as_ref() != Some(&*known) {
                let before = record.profile.status.clone().map(Box::new);
                let status = Box::new(status);
                plan.actions.push(Action::UpdateStatus {
                    profile: name.clone(),
                    before,
                    status,
                    version: record.resource_version(),
                });
            }
        }

        observations.end_sync(proxies);
        plan.actions.extend(unknown);
        let gone = proxies.values().filter(|proxy| {
            proxy.pending_finalizers.is_empty() && !desired.contains_key(&proxy.name)
        });
        let deletions = gone.map(|proxy| Action::Delete {
            node: proxy.name.clone(),
            uid: proxy.uid.clone(),
            version: proxy.resource_version(),
        });
        let deletions: Vec<Action> = deletions.collect();
        desired.retain(|node, _| !waiting.contains(node));
        plan.actions.extend(assignments(nodes, proxies, desired));
        plan.actions.extend(deletions);
        plan
    }
}
