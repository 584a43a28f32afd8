//! What blocks each rollout, and the next step for the user.

use std::collections::BTreeMap;

use crds::condition::reason::advice;
use serde::Serialize;

use crate::cluster::Unreadable;
use crate::dashboard::facts::ClusterState;
use crate::nodes::{NodeReport, by_reason};
use crate::rollout::{NextCommand, Stage, commands, describe, stage};
use crate::status::{ProfileReport, Report};

/// All profiles.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::dashboard) struct Rollouts {
    profiles: Vec<Rollout>,
    /// Whether profiles have been listed, so that an empty list means that none exists.
    is_read: bool,
    nodes_without_configuration: Names,
    unreadable: Vec<Unreadable>,
}

/// One profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Rollout {
    #[serde(flatten)]
    report: ProfileReport,
    /// The health, in the same words as `status`.
    state: &'static str,
    /// The line printed by `rollout status`.
    progress: String,
    stage: Stage,
    /// What the user can type now.
    commands: Vec<NextCommand>,
    /// The reasons of its unhealthy nodes.
    reasons: Vec<ReasonOnNodes>,
}

/// A reason, and the nodes that have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct ReasonOnNodes {
    reason: String,
    nodes: Names,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<&'static str>,
}

/// The first few names, and the total number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(in crate::dashboard) struct Names {
    pub(in crate::dashboard) first: Vec<String>,
    pub(in crate::dashboard) total: usize,
}

/// The maximum number of names listed.
const MOST_NAMED: usize = 10;

// === impl Rollouts ===

impl Rollouts {
    pub(in crate::dashboard) fn of(facts: &ClusterState) -> Rollouts {
        let reports = facts.profiles.objects.values().map(ProfileReport::of);
        let unreadable = facts.profiles.unreadable.values();
        let unreadable = unreadable.chain(facts.proxies.unreadable.values());
        let report = Report::sum(
            reports.collect(),
            facts.unconfigured(),
            unreadable.cloned().collect(),
        );
        let mut of_profiles: BTreeMap<&str, Vec<&NodeReport>> = BTreeMap::new();
        for observed in facts.proxies.objects.values() {
            let report = &observed.row.report;
            let nodes = of_profiles.entry(&report.profile).or_default();
            nodes.push(report);
        }
        let profiles = report.profiles.into_iter().map(|report| {
            let nodes = of_profiles.remove(report.name.as_str());
            let stage = stage(&report);
            let profile = facts.profiles.objects.get(&report.name);
            let commands = profile.map(|profile| commands(profile, &stage, &facts.flags));
            let commands = commands.unwrap_or_default();
            Rollout::new(report, &nodes.unwrap_or_default(), stage, commands)
        });
        Rollouts {
            profiles: profiles.collect(),
            is_read: facts.profiles.is_read(),
            nodes_without_configuration: Names::of(&report.nodes_without_configuration),
            unreadable: report.unreadable,
        }
    }
}

// === impl Rollout ===

impl Rollout {
    fn new(
        report: ProfileReport,
        nodes: &[&NodeReport],
        stage: Stage,
        commands: Vec<NextCommand>,
    ) -> Rollout {
        let reasons = by_reason(nodes.iter().copied()).into_iter();
        let reasons = reasons.map(|(reason, names)| ReasonOnNodes {
            reason: reason.to_owned(),
            nodes: Names::of(&names),
            advice: advice(reason),
        });
        Rollout {
            state: report.health.describe(),
            progress: describe(&report).trim_end().to_owned(),
            stage,
            commands,
            reasons: reasons.collect(),
            report,
        }
    }
}

// === impl Names ===

impl Names {
    pub(in crate::dashboard) fn of<S: AsRef<str>>(names: &[S]) -> Names {
        let first = names.iter().take(MOST_NAMED);
        Names {
            first: first.map(|name| name.as_ref().to_owned()).collect(),
            total: names.len(),
        }
    }
}
