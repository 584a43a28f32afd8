//! The state of the profiles as a value.

use std::collections::BTreeSet;

use crds::profile::mode::Mode;
use crds::profile::node_findings::{AgentVersion, NodeFinding};
use crds::profile::progress::RolloutStatus;
use crds::profile::status::{FleetLatency, WorstNode};
use crds::{NodeProxy, ProxyProfile};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::Serialize;

use crate::cluster::{Read, Unreadable};
use crate::ending::Ending;
use crate::trouble::{ConditionProblem, Weight, troubles};

/// After how long without renewal of its Lease no operator runs. One renews it every few seconds, and
/// another takes it over within half a minute; the rest is for a clock of this machine that is wrong.
const OPERATOR_ABSENT: SignedDuration = SignedDuration::from_mins(5);

/// The state of all profiles.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub(crate) health: Health,
    pub(crate) profiles: Vec<ProfileReport>,
    /// The nodes of the cluster that no profile configures.
    pub(crate) nodes_without_configuration: Vec<String>,
    /// Objects that this version cannot read.
    pub(crate) unreadable: Vec<Unreadable>,
    /// When an operator last renewed its Lease, if that is long ago: then no operator has updated the
    /// status of profiles since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) operator_absent_since: Option<Timestamp>,
}

/// The state of one profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProfileReport {
    pub(crate) name: String,
    pub(crate) health: Health,
    pub(crate) mode: Mode,
    pub(crate) priority: i32,
    pub(crate) paused: bool,
    pub(crate) generation: i64,
    pub(crate) nodes: NodeCounts,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rollout: Option<RolloutStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sync_latency: Option<FleetLatency>,
    pub(crate) troubles: Vec<ConditionProblem>,
    pub(crate) worst_nodes: Vec<WorstNode>,
    pub(crate) node_findings: Vec<NodeFinding>,
    pub(crate) agent_versions: Vec<AgentVersion>,
}

/// The number of nodes in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct NodeCounts {
    pub(crate) matched: u32,
    pub(crate) updated: u32,
    pub(crate) ready: u32,
    pub(crate) degraded: u32,
}

/// Whether a profile or a node has problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Health {
    /// No problems.
    Healthy,
    /// In progress: waiting may resolve the problem.
    Pending,
    /// A problem that waiting does not resolve.
    Unhealthy,
}

// === impl Report ===

impl Report {
    /// Builds the report. `nodes` are the Nodes of the cluster, if they could be read.
    pub(crate) fn of(
        profiles: &Read<ProxyProfile>,
        proxies: &Read<NodeProxy>,
        nodes: Option<&[Node]>,
    ) -> Report {
        let configured: BTreeSet<String> =
            proxies.objects.iter().map(ResourceExt::name_any).collect();
        let nodes = nodes.unwrap_or_default().iter().map(ResourceExt::name_any);
        let unreadable = profiles.unreadable.iter().chain(&proxies.unreadable);
        let reports = profiles.objects.iter().map(ProfileReport::of);
        Report::sum(
            reports.collect(),
            nodes.filter(|node| !configured.contains(node)).collect(),
            unreadable.cloned().collect(),
        )
    }

    /// Builds the report of a single profile.
    pub(crate) fn of_one(profile: &ProxyProfile) -> Report {
        Report::sum(vec![ProfileReport::of(profile)], Vec::new(), Vec::new())
    }

    /// Builds a report from the parts.
    pub(crate) fn sum(
        mut profiles: Vec<ProfileReport>,
        nodes_without_configuration: Vec<String>,
        unreadable: Vec<Unreadable>,
    ) -> Report {
        profiles.sort_by(|a, b| (a.priority, &a.name).cmp(&(b.priority, &b.name)));
        let worst = profiles.iter().map(|profile| profile.health).max();
        // Without a profile no node reports its status.
        let of_profiles = worst.unwrap_or(Health::Unhealthy);
        Report {
            health: match unreadable.is_empty() {
                true => of_profiles,
                false => Health::Unhealthy,
            },
            profiles,
            nodes_without_configuration,
            unreadable,
            operator_absent_since: None,
        }
    }

    /// Adds what `leases` of operators say at `now`. Without any, nothing is known: they may have
    /// another name.
    pub(crate) fn with_operator(mut self, leases: &[Lease], now: Timestamp) -> Report {
        self.operator_absent_since = operator_absent_since(leases, now);
        if self.operator_absent_since.is_some() {
            self.health = Health::Unhealthy;
        }
        self
    }
}

/// Returns when an operator last renewed one of `leases`, if none has for long at `now`.
pub(crate) fn operator_absent_since(leases: &[Lease], now: Timestamp) -> Option<Timestamp> {
    let specs = leases.iter().filter_map(|lease| lease.spec.as_ref());
    let renewed = specs.filter_map(|spec| Some(spec.renew_time.as_ref()?.0));
    let is_long_ago = |renewed: &Timestamp| now.duration_since(*renewed) > OPERATOR_ABSENT;
    renewed.max().filter(is_long_ago)
}

// === impl ProfileReport ===

impl ProfileReport {
    pub(crate) fn of(profile: &ProxyProfile) -> ProfileReport {
        let status = profile.status.clone().unwrap_or_default();
        let generation = profile.metadata.generation.unwrap_or_default();
        let mut troubles = troubles(&status.conditions);
        if status.observed_generation != Some(generation) {
            troubles.insert(0, unreported(generation));
        }
        ProfileReport {
            name: profile.name_any(),
            health: Health::of(&troubles),
            mode: profile.request().spec.mode,
            priority: profile.spec.priority,
            paused: profile.spec.paused,
            generation,
            nodes: NodeCounts {
                matched: status.matched_nodes,
                updated: status.updated_nodes,
                ready: status.ready_nodes,
                degraded: status.degraded_nodes,
            },
            rollout: status.rollout,
            sync_latency: status.sync_latency,
            troubles,
            worst_nodes: status.worst_nodes,
            node_findings: status.node_findings,
            agent_versions: status.agent_versions,
        }
    }
}

/// The problem of a profile whose current generation the operator has not reported yet. The
/// operator reports within a second of a change.
fn unreported(generation: i64) -> ConditionProblem {
    ConditionProblem {
        weight: Weight::Pending,
        condition: "observedGeneration".to_owned(),
        status: "Unknown".to_owned(),
        reason: "NotReported".to_owned(),
        message: format!("the operator has not reported on generation {generation} yet"),
        advice: Some(
            "Wait a few seconds; if it stays, see whether the operator's Pod runs: kubectl get pods -A -l app.kubernetes.io/name=signpost,app.kubernetes.io/component=operator.",
        ),
    }
}

// === impl Health ===

impl Health {
    /// Returns the health that corresponds to the most severe of `troubles`.
    pub(crate) fn of(troubles: &[ConditionProblem]) -> Health {
        match troubles.iter().map(|trouble| trouble.weight).max() {
            Some(Weight::Fault) => Health::Unhealthy,
            Some(Weight::Pending) => Health::Pending,
            Some(Weight::Note) | None => Health::Healthy,
        }
    }

    /// The health in words.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Health::Healthy => "healthy",
            Health::Pending => "in progress",
            Health::Unhealthy => "unhealthy",
        }
    }
}

impl From<Health> for Ending {
    fn from(health: Health) -> Ending {
        match health {
            Health::Healthy => Ending::Success,
            Health::Pending | Health::Unhealthy => Ending::ProblemFound,
        }
    }
}
