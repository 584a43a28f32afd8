//! The whole fleet as one synchronous state machine: watch events go in, the writes to make come
//! out.
//!
//! ```text
//!   ProxyProfiles --.                                        .--> Assign        NodeProxy.spec of a node
//!   Nodes ----------+--> Fleet::apply   Fleet::plan(now) ----+--> Delete        a NodeProxy that no profile is for
//!   NodeProxies -----+                                       +--> UpdateStatus  ProxyProfile.status
//!   DaemonSets ------+                                       '--> MarkUnknown   NodeProxy.status of a silent agent
//!   Leases ----------'
//!   answers to writes ---^
//! ```
//!
//! It holds little besides the objects in Kubernetes, so that a plan is the difference between the
//! observed and the desired state: once everything is written, the next plan is empty, also for an
//! operator that has just started.

mod budget;
mod conflict;
mod first_configuration;
mod heartbeats;
mod history;
mod member;
mod min_ready;
mod moving_nodes;
mod node_findings;
mod node_progress;
mod object_cache;
mod observations;
mod outage;
mod plan;
mod preflight;
mod profile_status;
mod proven;
mod rollback;
mod rollback_budget;
mod rollback_progress;
mod rollout_progress;
mod rollup;
mod unwritten_verdicts;
mod verdict;
mod watch_health;
mod waves;
mod written_status;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use crds::{
    effective::{EffectiveConfig, hash::ConfigHash},
    node_proxy::NodeProxySpec,
    profile::{
        ProxyProfile,
        progress::RolloutPhase,
        undo::{Request, Undo},
    },
    resolve::{self, NodeFacts, Ranking},
};
use jiff::Timestamp;

pub(crate) use crate::fleet::{
    object_cache::ObjectChange,
    plan::{Action, Plan},
    rollup::NodeCounts,
    watch_health::WatchSignal,
};
use crate::{
    agent_daemon_set::AgentDaemonSet,
    clock_offset::ClockOffset,
    fleet::{
        conflict::Conflicts,
        heartbeats::Heartbeats,
        member::{DesiredNodeProxy, Member},
        node_progress::after,
        object_cache::{ObjectCache, PlanImpact},
        observations::Observations,
        preflight::Preflight,
        rollout_progress::{
            CacheState, EvaluationContext, PauseState, RolloutProgress, RolloutTarget,
        },
        rollup::{NodesWithoutAgent, Rollup},
        unwritten_verdicts::UnwrittenVerdicts,
        watch_health::WatchHealth,
        waves::WaveProgress,
    },
    kube_proxy_daemon_set::KubeProxyDaemonSetState,
    records::{NODE_LABEL, NodeProxyRecord, NodeRecord, PROFILE_LABEL, ProfileRecord, Record},
};

/// The observed state of the fleet.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    profiles: ObjectCache<ProfileRecord>,
    nodes: ObjectCache<NodeRecord>,
    proxies: ObjectCache<NodeProxyRecord>,
    agent_daemon_sets: ObjectCache<AgentDaemonSet>,
    /// What is known of the DaemonSet of kube-proxy; absent before the operator has asked for it.
    kube_proxy: Option<KubeProxyDaemonSetState>,
    rollouts: BTreeMap<String, RolloutProgress>,
    observations: Observations,
    heartbeats: Heartbeats,
    /// The last known `NodeProxy` of each node whose object was deleted. Its agent keeps that
    /// configuration.
    deleted_proxies: BTreeMap<String, NodeProxyRecord>,
    unwritten: UnwrittenVerdicts,
    /// The fields of a profile's status that the API server does not know, by profile.
    unknown_fields: BTreeMap<String, UnknownFields>,
    /// Whether any event since the last plan can change the next one.
    has_changes: bool,
    /// The offset of the API server's clock by which its times are read.
    offset: ClockOffset,
    watches: WatchHealth,
}

/// A change reported by a watch, by a list of Leases or by the answer to a write.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A change of profiles.
    Profile(ObjectChange<ProfileRecord>),
    /// The status of a profile was written.
    Reported {
        /// The profile.
        record: Box<ProfileRecord>,
        /// The fields of the status that the API server does not know.
        unknown_fields: BTreeSet<String>,
    },
    /// A change of nodes.
    Node(ObjectChange<NodeRecord>),
    /// A change of NodeProxies.
    Proxy(ObjectChange<NodeProxyRecord>),
    /// A change of the agents' DaemonSets.
    AgentDaemonSet(ObjectChange<AgentDaemonSet>),
    /// What is known of the DaemonSet of kube-proxy.
    KubeProxyDaemonSet(KubeProxyDaemonSetState),
    /// A watch, or a list, has failed and is tried again, or works again.
    Watch {
        /// What it is of.
        kind: &'static str,
        /// What happened.
        signal: WatchSignal,
        /// When.
        at: Instant,
    },
    /// The resource versions of the agents' Leases.
    Leases {
        /// The versions by node name.
        versions: BTreeMap<String, String>,
        /// When the operator requested the list.
        at: Instant,
    },
}

/// The fields of a status that the API server did not know.
#[derive(Debug)]
struct UnknownFields {
    fields: BTreeSet<String>,
    /// When to try them again; absent before the first plan since.
    due: Option<Timestamp>,
}

/// How often a status is written with all its fields where the API server did not know some: its
/// definition may have been replaced. An answer without them changes nothing there.
const UNKNOWN_FIELDS_RETRY: Duration = Duration::from_secs(600);

/// The maximum length of a label value, in bytes. A longer name is not written as a label.
const LONGEST_LABEL: usize = 63;

/// The result of planning one profile.
struct Outcome<'a> {
    record: &'a ProfileRecord,
    target: RolloutTarget,
    members: Vec<Member<'a>>,
}

// === impl Fleet ===

impl Fleet {
    /// Creates a fleet of which nothing is known but the offset of the API server's clock.
    pub(crate) fn new(offset: ClockOffset) -> Self {
        Self {
            offset,
            ..Self::default()
        }
    }

    /// Reads times of the API server with `offset` from now on, if it differs from the one in use by
    /// more than the measurements; returns whether it does. Times that were read before remain as
    /// they are.
    pub(crate) fn follow_clock(&mut self, offset: ClockOffset) -> bool {
        let differs = offset.differs_from(self.offset);
        if differs {
            self.offset = offset;
        }
        differs
    }

    /// Applies an event to the observed state.
    pub(crate) fn apply(&mut self, event: Event) {
        let impact = match event {
            Event::Profile(change) => self.profiles.apply(change).0,
            Event::Reported {
                record,
                unknown_fields,
            } => {
                let name = record.name().to_owned();
                if unknown_fields.is_empty() {
                    self.unknown_fields.remove(&name);
                } else {
                    self.unknown_fields
                        .insert(name, UnknownFields::new(unknown_fields));
                }
                self.profiles.apply(ObjectChange::Applied(record)).0
            }
            Event::Node(change) => {
                let change = change.map_objects(|node| {
                    node.correct_times(self.offset, self.nodes.get(&node.name));
                });
                self.nodes.apply(change).0
            }
            Event::AgentDaemonSet(change) => self.agent_daemon_sets.apply(change).0,
            Event::KubeProxyDaemonSet(kube_proxy) => {
                let known = self.kube_proxy.replace(kube_proxy);
                if known == self.kube_proxy {
                    PlanImpact::None
                } else {
                    PlanImpact::Replan
                }
            }
            Event::Proxy(change) => {
                let change = change.map_objects(|proxy| {
                    proxy.correct_times(self.offset, self.proxies.get(&proxy.name));
                });
                self.heartbeats.note_reports(&change, &self.proxies);
                let (impact, gone) = self.proxies.apply(change);
                let gone = gone.into_iter();
                self.deleted_proxies
                    .extend(gone.map(|record| (record.name.clone(), record)));
                impact
            }
            Event::Watch { kind, signal, at } => {
                if self.watches.note(kind, signal, at) {
                    PlanImpact::Replan
                } else {
                    PlanImpact::None
                }
            }
            // The NodeProxies must be listed first: they say which agents renew a Lease.
            Event::Leases { versions, at } => match self.proxies.listed() {
                Some(proxies) => {
                    let renewing = proxies.values().filter(|proxy| proxy.renews_lease());
                    let renewing = renewing.map(|proxy| proxy.name.as_str());
                    let impact = self.heartbeats.observe(renewing, &versions, at);
                    if self.observations.renewal_matters(&self.heartbeats) {
                        PlanImpact::Replan
                    } else {
                        impact
                    }
                }
                None => PlanImpact::None,
            },
        };
        self.has_changes |= impact == PlanImpact::Replan;
    }

    /// Returns every profile, as last read or written.
    pub(crate) fn profiles(&self) -> impl Iterator<Item = &ProxyProfile> {
        let profiles = self.profiles.listed().into_iter().flatten();
        profiles.map(|(_, record)| &record.profile)
    }

    /// Whether these are the fields of a profile's status that the API server did not know last.
    pub(crate) fn has_unknown_fields(&self, profile: &str, fields: &BTreeSet<String>) -> bool {
        self.unknown_fields
            .get(profile)
            .is_some_and(|unknown_fields| unknown_fields.fields == *fields)
    }

    /// Returns the age of the oldest heartbeat among all agents.
    pub(crate) const fn oldest_heartbeat(&self) -> Duration {
        self.heartbeats.oldest()
    }

    /// Returns for how long each watch that failed has been failing at `now`.
    pub(crate) fn failing_watches(
        &self,
        now: Instant,
    ) -> impl Iterator<Item = (&'static str, Duration)> {
        self.watches.failing(now)
    }

    /// Whether every resource has been listed once. No plan is made before.
    pub(crate) const fn is_complete(&self) -> bool {
        self.profiles.listed().is_some()
            && self.nodes.listed().is_some()
            && self.proxies.listed().is_some()
            && self.agent_daemon_sets.listed().is_some()
            && self.kube_proxy.is_some()
    }

    /// Whether a plan may differ from the last one before [`Plan::requeue_at`].
    pub(crate) const fn has_changes(&self) -> bool {
        self.has_changes
    }

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
            unwritten,
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
        unwritten.retain(profiles);
        unknown_fields.retain(|name, _| profiles.contains_key(name));
        deleted_proxies.retain(|name, record| {
            let is_the_same = |node: &NodeRecord| record.owners.contains(&node.uid);
            !proxies.contains_key(name) && nodes.get(name).is_some_and(is_the_same)
        });

        let ranking = Ranking::of(profiles.values().map(|record| &record.profile));
        let preflight = Preflight::of(kube_proxy, nodes);
        let mut conflicts = Conflicts::default();
        let mut nodes_without_agent: BTreeMap<String, NodesWithoutAgent> = BTreeMap::new();
        let mut members: BTreeMap<String, Vec<Member<'_>>> = BTreeMap::new();
        for node in nodes.values() {
            let proxy = proxies.get(&node.name);
            let facts = NodeFacts {
                name: node.name.clone(),
                labels: Arc::clone(&node.labels),
                current: proxy.and_then(|proxy| proxy.spec.clone()),
            };
            let mut resolution = ranking.resolve(&facts);
            let mut member = resolution.effective.take().map(|effective| Member {
                node,
                proxy,
                deleted_proxy: deleted_proxies.get(&node.name),
                heartbeats,
                effective,
                takeover_block: None,
            });
            if let Some(member) = &mut member {
                member.takeover_block = preflight.takeover_block(member);
            }
            let by_label = node.without_agent();
            let exclusion = || member.as_ref()?.exclusion(agent_daemon_sets, now);
            let by_daemon_set = by_label.is_none().then(exclusion).flatten();
            let is_excluded = by_daemon_set.is_some();
            if let Some(why) = by_label.or(by_daemon_set) {
                if let Some(winner) = resolution.winner {
                    let without_agent = nodes_without_agent.entry(winner).or_default();
                    without_agent.names.push(format!("{} ({why})", node.name));
                    without_agent.excluded += u32::from(is_excluded);
                }
                continue;
            }
            conflicts.count(&resolution);
            if let (Some(winner), Some(member)) = (resolution.winner, member) {
                members.entry(winner).or_default().push(member);
            }
        }

        let mut desired: BTreeMap<String, DesiredNodeProxy> = BTreeMap::new();
        let mut plan = Plan::default();
        plan.requeue_by(watches.stale_until(instant).map(at));
        let mut unknown = Vec::new();
        let mut waiting: BTreeSet<String> = BTreeSet::new();
        for (name, record) in profiles {
            let members = members.remove(name).unwrap_or_default();
            let outcome = Outcome {
                target: target(&record.profile),
                record,
                members,
            };
            let (rollout_progress, progress) = outcome.advance(
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
            let mut rollup = Rollup::of(&outcome.members, &outcome.target.hash, now);
            unknown.extend(outcome.members.iter().filter_map(|m| m.mark_unknown(now)));
            let without_agent = nodes_without_agent.remove(name).unwrap_or_default();
            rollup.set_nodes_without_agent(without_agent, &outcome.target.rollout);
            rollup.takeover_warnings = preflight.describe_warnings(&outcome.members);
            plan.requeue_by(rollup.requeue_at);
            plan.counts.insert(name.clone(), rollup.counts);
            let status = rollup.status(
                record,
                &outcome.target,
                rollout_progress
                    .as_ref()
                    .map(|rollout_progress| (rollout_progress, &progress)),
                conflicts.of(name),
                now,
            );
            let unknown_fields = unknown_fields.get_mut(name);
            let known =
                written_status::as_written(&status, unknown_fields.as_ref().map(|it| &it.fields));
            if let Some(rollout_progress) = rollout_progress {
                // Whether an operator that starts now would know.
                let is_written =
                    || RolloutProgress::resume(&outcome.target, &record.status()).has_failed();
                let has_failed = rollout_progress.has_failed();
                if let Some(until) = unwritten.wait(name, has_failed, is_written, now) {
                    waiting.extend(outcome.members.iter().map(|m| m.name().to_owned()));
                    plan.requeue_by(Some(until));
                }
                if !has_failed && !written_status::has_same_progress(&record.status(), &known) {
                    waiting.extend(outcome.changes(&desired));
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

        observations.close(proxies);
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

fn target(profile: &ProxyProfile) -> RolloutTarget {
    let Request { spec, undo } = profile.request();
    let name = profile.metadata.name.clone().unwrap_or_default();
    let generation = profile.metadata.generation.unwrap_or_default();
    let hash = ConfigHash::of(&EffectiveConfig::of(&spec));
    let mut history = profile.status.iter().flat_map(|status| &status.history);
    let previous = history.find(|revision| revision.config_hash != hash.as_str());
    let mut requested = spec.into_owned();
    requested.paused = false;
    requested.rollout.undo = None;
    RolloutTarget {
        previous_generation: previous.map_or(0, |revision| revision.generation),
        proven: match undo {
            // All nodes had it, and no node is to get what is undone, unless the others went back to
            // that.
            Undo::InEffect(_) if !has_failed(profile, &hash) => {
                Some(Arc::new(resolve::stamp(&name, generation, &requested)))
            }
            Undo::InEffect(_) | Undo::Absent | Undo::NothingBefore => history::proven(profile),
        },
        profile: name,
        hash,
        generation,
        rollout: profile.spec.rollout.complete(),
        request_hash: ConfigHash::of_request(&requested),
        requested,
        // What is undone reaches no further node, also where nothing is known to return to.
        pause: if profile.spec.paused || undo == Undo::NothingBefore {
            PauseState::Paused
        } else {
            PauseState::Active
        },
        undo,
    }
}

/// Whether the last rollout of `profile` is of this configuration and has failed.
fn has_failed(profile: &ProxyProfile, hash: &ConfigHash) -> bool {
    let rollout = profile.status.as_ref().and_then(|it| it.rollout.as_ref());
    rollout.is_some_and(|rollout| {
        rollout.config_hash == hash.as_str()
            && matches!(
                rollout.phase,
                RolloutPhase::RollingBack | RolloutPhase::RolledBack | RolloutPhase::Halted
            )
    })
}

/// Returns the assignments for the nodes whose `NodeProxy` differs from the desired one.
fn assignments(
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

// === impl UnknownFields ===

impl UnknownFields {
    const fn new(fields: BTreeSet<String>) -> Self {
        Self { fields, due: None }
    }

    /// Whether to try the fields again at `now`; has `plan` made again when they are due next. They
    /// stay due until a write is answered: this one may fail or have to wait.
    fn is_due(&mut self, now: Timestamp, plan: &mut Plan) -> bool {
        let due = *self.due.get_or_insert(after(now, UNKNOWN_FIELDS_RETRY));
        if due > now {
            plan.requeue_by(Some(due));
        }
        due <= now
    }
}

// === impl Outcome ===

impl Outcome<'_> {
    /// Advances the profile's rollout and collects the desired configuration of its nodes. An
    /// invalid profile has no rollout: its nodes keep their configuration.
    fn advance(
        &self,
        rollout_progress: Option<RolloutProgress>,
        context: EvaluationContext,
        observations: &mut Observations,
        desired: &mut BTreeMap<String, DesiredNodeProxy>,
        plan: &mut Plan,
    ) -> (Option<RolloutProgress>, WaveProgress) {
        if !self.record.errors().is_empty() {
            let kept = self.members.iter();
            let rollout = &self.target.rollout;
            desired.extend(kept.filter_map(|member| {
                Some((
                    member.name().to_owned(),
                    member.keep_current(rollout, context.now)?,
                ))
            }));
            return (rollout_progress, WaveProgress::default());
        }
        let mut rollout_progress = rollout_progress
            .unwrap_or_else(|| RolloutProgress::resume(&self.target, &self.record.status()));
        let decision = rollout_progress.advance(&self.target, &self.members, observations, context);
        desired.extend(decision.desired);
        // Deadlines move on until then.
        let requeue_at = decision.requeue_at;
        plan.requeue_by(requeue_at.map(|requeue_at| {
            context
                .suspended_until
                .map_or(requeue_at, |until| requeue_at.max(until))
        }));
        (Some(rollout_progress), decision.progress)
    }

    /// Returns the nodes that change to the profile's configuration.
    fn changes(
        &self,
        desired: &BTreeMap<String, DesiredNodeProxy>,
    ) -> impl Iterator<Item = String> {
        let changes = self.members.iter().filter(|member| {
            let desired = desired.get(member.name());
            desired.is_some_and(|it| written_status::assigns_target(member, it, &self.target.hash))
        });
        changes.map(|member| member.name().to_owned())
    }
}

#[cfg(test)]
mod tests;
