//! The conditions of a profile's status, derived from the summary of its nodes' reports.

use crds::{
    condition::{
        ACCEPTED, AVAILABLE, CONFLICT, DEGRADED, FEATURES_HONOURED, Finding, PROGRESSING, READY,
        Status,
        reason::{
            AGENT_SILENT, ALL_HONOURED, ALL_NODES_PROGRAMMED, AS_EXPECTED, DEADLINE_EXCEEDED,
            ENOUGH_NODES_READY, HALTED, HELD_BACK, INVALID_FIELD, INVALID_NODE_SELECTOR,
            NO_MATCHING_NODES, NODES_DEGRADED, NODES_NOT_READY, PAUSED, ROLLED_BACK, ROLLING_OUT,
            Reason, SETTLED, TOO_FEW_NODES_READY, UNREADABLE, VALID,
        },
        set_condition,
    },
    profile::{
        progress::{RolloutPhase, RolloutStatus},
        rollout::OnFailure,
        status::ProxyProfileStatus,
    },
};
use jiff::Timestamp;

use crate::{
    fleet::{
        history,
        report_summary::{NodeCounts, ReportSummary},
        rollout_phase::Phase,
        rollout_progress::RolloutProgress,
        rollout_target::{PauseState, RolloutTarget},
        wave_progress::WaveProgress,
    },
    records::ProfileRecord,
};

/// The maximum number of names in one message.
const MOST_NAMED: usize = 5;

// === impl ReportSummary ===

impl ReportSummary {
    /// Builds the status to write. Conditions that did not change keep their transition time.
    pub(crate) fn status(
        self,
        record: &ProfileRecord,
        target: &RolloutTarget,
        rollout_progress: Option<(&RolloutProgress, &WaveProgress)>,
        conflict: (Status, Reason, String),
        now: Timestamp,
    ) -> ProxyProfileStatus {
        let mut conditions = record.status().conditions;
        let generation = Some(record.generation());
        let accepted = accepted(record);
        let is_valid = accepted.0 == Status::True;
        let phase = rollout_progress
            .map(|(rollout_progress, _)| &rollout_progress.phase)
            .filter(|_| is_valid);
        let undo = rollout_progress.and_then(|(rollout_progress, _)| {
            let generation = rollout_progress.start_generation();
            target.undo.describe(&target.hash, generation)
        });
        let (ready, reason, mut message) = self.ready(&accepted, phase);
        if !self.nodes_without_agent.is_empty() {
            message += "; left out, because no agent can run there: ";
            message += &first_names(&self.nodes_without_agent);
        }
        if let Some(undo) = undo.as_ref().filter(|_| phase.is_some_and(has_verdict)) {
            message += "; ";
            message += undo;
        }
        let stuck = rollout_progress.map(|(_, progress)| &progress.without_rollback);
        if let Some(stuck) = stuck.filter(|stuck| is_valid && !stuck.is_empty()) {
            message +=
                "; no earlier configuration is known to return to, and these keep the failed one: ";
            message += &first_names(stuck);
        }
        let mut findings = vec![
            (READY, (ready, reason, message)),
            (AVAILABLE, self.available(target)),
            (PROGRESSING, self.progressing(target, phase, undo)),
            (DEGRADED, self.degraded(&accepted, phase)),
            (CONFLICT, conflict),
        ];
        findings.extend(
            self.features_honoured()
                .map(|finding| (FEATURES_HONOURED, finding)),
        );
        findings.push((ACCEPTED, accepted));
        conditions.retain(|condition| findings.iter().any(|(kind, _)| *kind == condition.type_));
        for (kind, (status, reason, message)) in findings {
            set_condition(
                &mut conditions,
                Finding {
                    kind,
                    status,
                    reason,
                    message,
                    generation,
                },
                now,
            );
        }
        let rollout = rollout_progress
            .filter(|_| is_valid)
            .map(|(rollout_progress, progress)| {
                rollout_progress.report(target, progress, &record.status(), now)
            });
        ProxyProfileStatus {
            history: match &rollout {
                Some(rollout) => {
                    history::next_history(record, target, rollout, self.current.as_deref(), now)
                }
                None => record.status().history,
            },
            observed_generation: generation,
            matched_nodes: self.counts.matched,
            updated_nodes: self.counts.updated,
            ready_nodes: self.counts.ready,
            degraded_nodes: self.counts.degraded,
            current_hash: self.current,
            target_hash: is_valid.then(|| target.hash.to_string()),
            // An operator that can read the profile again continues with what is known of it.
            rollout: rollout.or_else(|| failed(record.status())),
            sync_latency: self.latency,
            worst_nodes: self.worst,
            node_findings: self.node_findings,
            agent_versions: self.agent_versions,
            conditions,
        }
    }

    fn ready(
        &self,
        accepted: &(Status, Reason, String),
        phase: Option<&Phase>,
    ) -> (Status, Reason, String) {
        if accepted.0 != Status::True {
            return (Status::False, accepted.1, accepted.2.clone());
        }
        let matched = self.counts.matched;
        if matched == 0 {
            // Neither a failure nor a success: an alert must not fire, and waiting for the
            // condition must not end.
            return (
                Status::Unknown,
                NO_MATCHING_NODES,
                "applies to no node".to_owned(),
            );
        }
        let ready_with_target = self.ready_with_target;
        if ready_with_target == matched {
            return (
                Status::True,
                ALL_NODES_PROGRAMMED,
                format!("{ready_with_target} of {matched} nodes are ready with it"),
            );
        }
        let mut message = format!("{ready_with_target} of {matched} nodes are ready with it");
        if let Some(Phase::Failed { .. }) = phase {
            message += "; the rollout failed";
        }
        if !self.unready.is_empty() {
            message += &format!("; not ready: {}", first_names(&self.unready));
        }
        (Status::False, NODES_NOT_READY, message)
    }

    fn available(&self, target: &RolloutTarget) -> (Status, Reason, String) {
        let NodeCounts { matched, ready, .. } = self.counts;
        if matched == 0 {
            let nothing = "applies to no node".to_owned();
            return (Status::Unknown, NO_MATCHING_NODES, nothing);
        }
        let unavailable = usize::try_from(matched - ready).unwrap_or(usize::MAX);
        let allowed = target
            .rollout
            .max_unavailable
            .of(usize::try_from(matched).unwrap_or(usize::MAX));
        let message = format!(
            "{ready} of {matched} nodes are ready, with whatever configuration they have; {allowed} may be unavailable"
        );
        if ready > 0 && unavailable <= allowed {
            (Status::True, ENOUGH_NODES_READY, message)
        } else {
            (Status::False, TOO_FEW_NODES_READY, message)
        }
    }

    fn progressing(
        &self,
        target: &RolloutTarget,
        phase: Option<&Phase>,
        undo: Option<String>,
    ) -> (Status, Reason, String) {
        let (status, reason, mut message) = self.progress(target, phase);
        // With a definition that lacks verdicts, an operator that starts takes the message for the
        // verdict.
        if phase.is_some_and(|phase| !has_verdict(phase)) {
            for note in self.takeover_warnings.iter().chain(&undo) {
                message += "; ";
                message += note;
            }
        }
        (status, reason, message)
    }

    fn progress(&self, target: &RolloutTarget, phase: Option<&Phase>) -> (Status, Reason, String) {
        let NodeCounts {
            matched,
            assigned,
            updated,
            ..
        } = self.counts;
        let taken_on = format!("{updated} of {matched} nodes have applied it");
        match phase {
            None => (
                Status::False,
                SETTLED,
                "nodes keep their configuration while the profile is invalid".to_owned(),
            ),
            Some(Phase::Failed {
                on_failure: OnFailure::Halt,
                verdict,
            }) => (Status::False, HALTED, verdict.message.clone()),
            Some(Phase::Failed {
                on_failure: OnFailure::Rollback,
                verdict,
            }) => (Status::False, ROLLED_BACK, verdict.message.clone()),
            Some(Phase::RollingOut) if matched == 0 => (
                Status::False,
                NO_MATCHING_NODES,
                "applies to no node".to_owned(),
            ),
            Some(Phase::RollingOut) if target.pause == PauseState::Paused => {
                (Status::False, PAUSED, taken_on)
            }
            Some(Phase::RollingOut) => (Status::True, ROLLING_OUT, taken_on),
            Some(Phase::Settled) if assigned < matched => (
                Status::False,
                SETTLED,
                format!(
                    "{assigned} of {matched} nodes have been assigned the profile's configuration"
                ),
            ),
            Some(Phase::Settled) => (
                Status::False,
                SETTLED,
                "every node has the profile's configuration".to_owned(),
            ),
            Some(Phase::HeldBack { verdict }) => {
                (Status::False, HELD_BACK, verdict.message.clone())
            }
            Some(Phase::DeadlineExceeded) => (Status::False, DEADLINE_EXCEEDED, taken_on),
        }
    }

    fn degraded(
        &self,
        accepted: &(Status, Reason, String),
        phase: Option<&Phase>,
    ) -> (Status, Reason, String) {
        if accepted.0 != Status::True {
            return (Status::True, accepted.1, accepted.2.clone());
        }
        let NodeCounts {
            matched, degraded, ..
        } = self.counts;
        match phase {
            Some(Phase::Failed {
                on_failure: OnFailure::Rollback,
                verdict,
            }) => (Status::True, ROLLED_BACK, verdict.message.clone()),
            Some(Phase::Failed {
                on_failure: OnFailure::Halt,
                verdict,
            }) => (Status::True, NODES_DEGRADED, verdict.message.clone()),
            Some(Phase::HeldBack { verdict }) => (Status::True, HELD_BACK, verdict.message.clone()),
            _ if degraded > 0 => (
                Status::True,
                NODES_DEGRADED,
                format!(
                    "{degraded} of {matched} nodes are degraded: {}",
                    self.worst_names()
                ),
            ),
            _ if !self.silent.is_empty() => (
                Status::True,
                AGENT_SILENT,
                format!("no report from the agents of {}", first_names(&self.silent)),
            ),
            Some(Phase::DeadlineExceeded) => (
                Status::True,
                DEADLINE_EXCEEDED,
                format!(
                    "nodes exceeded rollout.progressDeadline: {}",
                    self.worst_names()
                ),
            ),
            _ => (Status::False, AS_EXPECTED, String::new()),
        }
    }

    /// The condition is Unknown until a node has reported.
    fn features_honoured(&self) -> Option<(Status, Reason, String)> {
        if let Some(unsupported) = self.unsupported.first() {
            let count = self.unsupported.len();
            let message = format!(
                "on {count} of {} nodes, such as {}",
                self.counts.matched, unsupported.message
            );
            return Some((Status::False, unsupported.reason, message));
        }
        (self.with_all_features > 0).then(|| {
            (
                Status::True,
                ALL_HONOURED,
                "every node supports everything that the profile and the Services ask for"
                    .to_owned(),
            )
        })
    }

    fn worst_names(&self) -> String {
        let names: Vec<String> = self
            .worst
            .iter()
            .map(|node| format!("{} ({})", node.name, node.reason))
            .collect();
        first_names(&names)
    }
}

/// Whether the message of condition Progressing is a verdict.
const fn has_verdict(phase: &Phase) -> bool {
    matches!(phase, Phase::HeldBack { .. } | Phase::Failed { .. })
}

/// Returns the rollout of the last valid configuration if it failed.
fn failed(status: ProxyProfileStatus) -> Option<RolloutStatus> {
    status.rollout.filter(|rollout| {
        matches!(
            rollout.phase,
            RolloutPhase::RollingBack | RolloutPhase::RolledBack | RolloutPhase::Halted
        )
    })
}

fn accepted(record: &ProfileRecord) -> (Status, Reason, String) {
    let errors = record.errors();
    if errors.is_empty() {
        return (Status::True, VALID, "the profile is valid".to_owned());
    }
    let reason = if !record.unreadable.is_empty() {
        UNREADABLE
    } else if errors
        .iter()
        .all(|error| error.field.starts_with("spec.nodeSelector"))
    {
        INVALID_NODE_SELECTOR
    } else {
        INVALID_FIELD
    };
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    (Status::False, reason, texts.join("; "))
}

/// Writes how many nodes.
pub(super) fn node_count(count: usize) -> String {
    if count == 1 {
        "1 node".to_owned()
    } else {
        format!("{count} nodes")
    }
}

/// Lists the first few of `names`.
pub(super) fn first_names(names: &[String]) -> String {
    let mut text = names
        .iter()
        .take(MOST_NAMED)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > MOST_NAMED {
        text += &format!(" and {} more", names.len() - MOST_NAMED);
    }
    text
}
