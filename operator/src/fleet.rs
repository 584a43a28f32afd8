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
mod desired_node_proxy;
mod evaluation_context;
mod event;
mod heartbeats;
mod history;
mod matched_nodes;
mod min_ready;
mod moving_nodes;
mod new_node_spec;
mod node_failure;
mod node_findings;
mod node_progress;
mod object_cache;
mod observations;
mod outage;
mod plan;
mod planned_profile;
mod planning;
mod preflight;
mod profile_node;
mod profile_status;
mod report_summary;
mod rollback;
mod rollback_budget;
mod rollback_progress;
mod rollout_phase;
mod rollout_progress;
mod rollout_status;
mod rollout_target;
mod unknown_fields;
mod unreported_failures;
mod verdict;
mod watch_health;
mod wave_progress;
mod waves;
mod written_status;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crds::profile::ProxyProfile;

pub(crate) use crate::fleet::{
    desired_node_proxy::labels,
    event::Event,
    object_cache::ObjectChange,
    plan::{Action, Plan},
    report_summary::NodeCounts,
    watch_health::WatchSignal,
};
use crate::{
    agent_daemon_set::AgentDaemonSet,
    clock_offset::ClockOffset,
    fleet::{
        heartbeats::Heartbeats,
        object_cache::{ObjectCache, PlanImpact},
        observations::Observations,
        rollout_progress::RolloutProgress,
        unknown_fields::UnknownFields,
        unreported_failures::UnreportedFailures,
        watch_health::WatchHealth,
    },
    kube_proxy_daemon_set::KubeProxyDaemonSetState,
    records::{NodeProxyRecord, NodeRecord, ProfileRecord, Record},
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
    unreported_failures: UnreportedFailures,
    /// The fields of a profile's status that the API server does not know, by profile.
    unknown_fields: BTreeMap<String, UnknownFields>,
    /// Whether any event since the last plan can change the next one.
    has_changes: bool,
    /// The offset of the API server's clock by which its times are read.
    offset: ClockOffset,
    watches: WatchHealth,
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
}

#[cfg(test)]
mod tests;
