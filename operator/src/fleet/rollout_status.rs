//! A rollout in its profile's status: written there, and read again by an operator that starts.

use crds::{
    condition::{
        PROGRESSING,
        reason::{DEADLINE_EXCEEDED, HALTED, HELD_BACK, ROLLED_BACK, SETTLED},
    },
    profile::{
        progress::{RolloutPhase, RolloutStatus, RolloutVerdict},
        rollout::OnFailure,
        status::ProxyProfileStatus,
    },
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::fleet::{
    moving_nodes::MovingNodes,
    profile_status::{first_names, node_count},
    rollout_phase::Phase,
    rollout_progress::RolloutProgress,
    rollout_target::{PauseState, RolloutTarget},
    wave_progress::WaveProgress,
};

/// What a rollout waits for once a watch that failed works again.
const CATCHING_UP: &str =
    "agents to report what they could not while a watch failed; no time counts meanwhile";

// === impl RolloutProgress ===

impl RolloutProgress {
    /// Restores a rollout from the profile's last written status.
    pub(crate) fn resume(target: &RolloutTarget, status: &ProxyProfileStatus) -> Self {
        let said = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == PROGRESSING);
        let same_target = status.target_hash.as_deref() == Some(target.hash.as_str());
        let verdict = |message: &str| {
            let written = status
                .rollout
                .as_ref()
                .and_then(|rollout| rollout.verdict.clone());
            written.unwrap_or_else(|| RolloutVerdict {
                message: message.to_owned(),
                ..RolloutVerdict::default()
            })
        };
        let failed = |on_failure, message: &str| Phase::Failed {
            on_failure,
            verdict: verdict(message),
        };
        // The profile was invalid meanwhile, or an older operator could not read it.
        let kept = status.rollout.as_ref().filter(|rollout| {
            status.target_hash.is_none() && rollout.config_hash == target.hash.as_str()
        });
        let kept = kept.and_then(|rollout| match rollout.phase {
            RolloutPhase::Halted => Some(failed(OnFailure::Halt, "")),
            RolloutPhase::RollingBack | RolloutPhase::RolledBack => {
                Some(failed(OnFailure::Rollback, ""))
            }
            _ => None,
        });
        let same_target = same_target || kept.is_some();
        let mut generation = target.generation;
        let phase = match (kept, said) {
            (Some(phase), said) => {
                let seen = said.and_then(|said| said.observed_generation);
                generation = seen.unwrap_or(generation);
                phase
            }
            (None, Some(said)) if same_target => {
                generation = said.observed_generation.unwrap_or(generation);
                match said.reason.as_str() {
                    reason if reason == SETTLED.name => Phase::Settled,
                    reason if reason == DEADLINE_EXCEEDED.name => Phase::DeadlineExceeded,
                    reason if reason == HELD_BACK.name => Phase::HeldBack {
                        verdict: verdict(&said.message),
                    },
                    reason if reason == HALTED.name => failed(OnFailure::Halt, &said.message),
                    reason if reason == ROLLED_BACK.name => {
                        failed(OnFailure::Rollback, &said.message)
                    }
                    _ => Phase::RollingOut,
                }
            }
            _ => Phase::RollingOut,
        };
        let written = status.rollout.as_ref().filter(|_| same_target);
        Self {
            hash: target.hash.clone(),
            generation,
            start_generation: written.map_or(target.generation, |rollout| rollout.generation),
            // A hash by another version of the operator may differ for the same fields. Only while paused
            // is it needed, for an edit of which this one has not heard.
            request_hash: match (generation == target.generation, target.pause) {
                (true, PauseState::Active) => Some(target.request_hash.to_string()),
                (is_same, _) => written
                    .and_then(|rollout| rollout.request_hash.clone())
                    .or_else(|| is_same.then(|| target.request_hash.to_string())),
            },
            phase,
            outage: None,
            moving_nodes: MovingNodes::default(),
        }
    }

    /// Returns the rollout status. Its start time is that in `before` while the phase and the wave
    /// are the same.
    pub(super) fn report(
        &self,
        target: &RolloutTarget,
        progress: &WaveProgress,
        before: &ProxyProfileStatus,
        now: Timestamp,
    ) -> RolloutStatus {
        let (phase, verdict) = match &self.phase {
            Phase::RollingOut if target.pause == PauseState::Paused => (RolloutPhase::Paused, None),
            Phase::RollingOut if progress.waves.is_empty() => (RolloutPhase::Settled, None),
            Phase::RollingOut => (RolloutPhase::RollingOut, None),
            Phase::Settled => (RolloutPhase::Settled, None),
            Phase::DeadlineExceeded => (RolloutPhase::DeadlineExceeded, None),
            Phase::HeldBack { verdict } => (RolloutPhase::HeldBack, Some(verdict.clone())),
            Phase::Failed {
                on_failure,
                verdict,
            } => {
                let phase = match on_failure {
                    OnFailure::Halt => RolloutPhase::Halted,
                    OnFailure::Rollback if progress.to_roll_back > 0 => RolloutPhase::RollingBack,
                    OnFailure::Rollback => RolloutPhase::RolledBack,
                };
                (phase, Some(verdict.clone()))
            }
        };
        let waiting_for = match phase {
            RolloutPhase::RollingOut | RolloutPhase::RollingBack
                if let Some(suspended) = &progress.suspended =>
            {
                suspended.clone()
            }
            RolloutPhase::RollingOut if !progress.waiting_for.is_empty() => {
                let available = format!(
                    "{} of wave {} to be available: {}",
                    node_count(progress.waiting_for.len()),
                    progress.current,
                    first_names(&progress.waiting_for)
                );
                let all: Vec<&str> = [
                    Some(available.as_str()),
                    progress.takeover_blocks.as_deref(),
                ]
                .into_iter()
                .flatten()
                .collect();
                all.join("; and for ")
            }
            // Nodes that move to the profile wait as those of a rollout do.
            RolloutPhase::RollingOut
            | RolloutPhase::Settled
            | RolloutPhase::DeadlineExceeded
            | RolloutPhase::HeldBack => progress.takeover_blocks.clone().unwrap_or_default(),
            RolloutPhase::Paused if !progress.failed.is_empty() => format!(
                "spec.paused to become false; {} failed meanwhile, and will count then: {}",
                node_count(progress.failed.len()),
                first_names(&progress.failed)
            ),
            RolloutPhase::RollingBack if !progress.failed_rollbacks.is_empty() => format!(
                "{} to roll back, which waits for nodes that failed after going back: {}",
                node_count(progress.to_roll_back),
                first_names(&progress.failed_rollbacks)
            ),
            RolloutPhase::RollingBack => {
                format!("{} to roll back", node_count(progress.to_roll_back))
            }
            _ => String::new(),
        };
        let waiting_for = match phase {
            RolloutPhase::RollingOut | RolloutPhase::RollingBack
                if progress.is_catching_up && progress.suspended.is_none() =>
            {
                let all = [waiting_for.as_str(), CATCHING_UP];
                let all: Vec<&str> = all.into_iter().filter(|it| !it.is_empty()).collect();
                all.join("; and for ")
            }
            _ => waiting_for,
        };
        let mut report = RolloutStatus {
            config_hash: self.hash().to_string(),
            generation: self.start_generation(),
            request_hash: self.request_hash.clone(),
            phase,
            since: Time(now),
            wave: progress.current,
            waves: progress.waves.clone(),
            waiting_for,
            verdict,
        };
        let is_same = |before: &&RolloutStatus| {
            before.config_hash == report.config_hash && before.generation == report.generation
        };
        if let Some(before) = before.rollout.as_ref().filter(is_same) {
            // Failures of nodes after the end do not count against the rollout.
            let has_ended = !matches!(phase, RolloutPhase::RollingOut | RolloutPhase::Paused);
            let failed = before.verdict.is_some() && report.verdict.is_some();
            if has_ended && (before.phase == phase || failed) {
                report.wave = before.wave;
                report.waves.clone_from(&before.waves);
            }
            if before.phase == phase && before.wave == report.wave {
                report.since = before.since.clone();
            }
        }
        report
    }
}
