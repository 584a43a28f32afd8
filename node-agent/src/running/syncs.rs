//! The reconciler thread, and the consumers of its reports.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_metrics::{AgentMetrics, ChangeCounts};
use backend::{AnyBackend, Recovery};
use conntrack::Feed;
use dataplane::Family;
use health_checks::ProxyHealth;
use modes::{Families, IptablesFigures, ModeState, RulesByMode};
use reconciler::{
    Activity, CommandReceiver, FamilyReconciler, FamilySync, LoopEvent, Outcome, Periods,
    Permission, Reason, Reconciler, Report, Settings, SystemClock,
};
use runtime::Heartbeat;
use tracing::{debug, info, warn};

use crate::programmed::{FamilyState, Programmed};

/// The duration from which every sync is logged. Fast syncs for changes are routine, up to a
/// hundred a second, and writing a log line can block.
const SLOW: Duration = Duration::from_secs(1);
/// How many times in a row syncs must fail for a temporary cause before the failure is logged as a
/// warning.
const WORTH_TELLING: u32 = 4;

/// The consumers that the reconciler thread updates directly.
pub(super) struct SyncSubscribers {
    pub(super) metrics: AgentMetrics,
    pub(super) changes: ChangeCounts,
    pub(super) proxy: ProxyHealth,
}

/// The log level of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogLevel {
    /// A failure that may need action.
    Warning,
    /// Info.
    Line,
    /// Debug.
    Detail,
}

/// Runs the reconciler on its thread.
pub(super) fn reconcile(
    Families {
        reconcilers,
        iptables,
    }: Families,
    mut inbox: CommandReceiver,
    programmed: Arc<Programmed>,
    connections: Feed,
    followed: SyncSubscribers,
    heartbeat: Heartbeat,
) {
    let mut reconciler = Reconciler::of(reconcilers.into());
    let settings = Settings {
        periods: Periods {
            min_sync_period: Duration::ZERO,
            sync_period: Duration::from_secs(30),
        },
        permission: Permission::Active,
    };
    let mut remaining = 0;
    reconciler::run(
        &mut reconciler,
        settings,
        &mut inbox,
        &SystemClock,
        |event| {
            let (report, families) = match event {
                LoopEvent::Began(running_sync) => {
                    heartbeat.busy();
                    // A check for external changes covers no change that waits.
                    if running_sync.reason != Reason::Drift {
                        followed.changes.began();
                    }
                    followed.proxy.began();
                    programmed.post_running_sync(running_sync);
                    return;
                }
                LoopEvent::Report(report, families) => (report, families),
            };
            heartbeat.idle();
            let states: BTreeMap<_, _> = families
                .iter()
                .zip(&iptables)
                .filter(|(family, _)| concerns(&report, family.family()))
                .map(|(family, figures)| (family.family(), state(family, figures)))
                .collect();
            for sync in &report.finished {
                let state = states.get(&sync.family);
                let mode = state.and_then(|state| state.mode.chosen);
                let family = report.families.iter().find(|f| f.family == sync.family);
                let failing = family.and_then(|family| family.failing.as_ref());
                log_sync(sync, failing.map_or(0, |failing| failing.syncs));
                followed.metrics.finished(sync, mode.unwrap_or_default());
            }
            // After a takeover the connections go on, and are no longer what a handback has left.
            if report.activity == Activity::Withdrawn {
                let before = mem::replace(&mut remaining, report.remaining_connections());
                log_remaining(before, remaining);
            }
            for latency in &report.latencies {
                followed.metrics.arrived(latency);
            }
            followed.changes.reported(&report);
            followed.proxy.reported(&report);
            conntrack::post(&connections, &report);
            programmed.post_report(report, states, Instant::now());
        },
    );
}

/// Returns whether anything of `family` may have changed with `report`. A report without finished
/// syncs may follow a removal, which concerns all families.
fn concerns(report: &Report, family: Family) -> bool {
    let mut finished = report.finished.iter();
    report.finished.is_empty() || finished.any(|sync| sync.family == family)
}

fn state(family: &FamilyReconciler<AnyBackend>, figures: &IptablesFigures) -> FamilyState {
    FamilyState {
        held: RulesByMode::observed(family),
        mode: ModeState::of(family, figures),
    }
}

/// Logs that connections outlive a withdrawal, and that the last of them has ended. A restarted
/// agent logs it once more.
fn log_remaining(before: u64, remaining: u64) {
    match (before, remaining) {
        (0, 1..) => info!(
            connections = remaining,
            "handed back: connections of mode ipvs go on until they end"
        ),
        (1.., 0) => info!("no connection of mode ipvs is left"),
        _ => {}
    }
}

/// Logs a sync; `failures` is the number of failures in a row, this one included.
fn log_sync(sync: &FamilySync, failures: u32) {
    match worth(sync, failures) {
        LogLevel::Warning => warn!("{sync}"),
        LogLevel::Line => info!("{sync}"),
        LogLevel::Detail => debug!("{sync}"),
    }
}

fn worth(sync: &FamilySync, failures: u32) -> LogLevel {
    match &sync.outcome {
        Outcome::Unchanged | Outcome::Partial => LogLevel::Detail,
        Outcome::Committed if sync.reason == Reason::Changed && sync.took < SLOW => {
            LogLevel::Detail
        }
        Outcome::Committed => LogLevel::Line,
        // A busy kernel is no longer busy when the line is read (kubernetes#122604).
        Outcome::Failed(failure)
            if failure.recovery == Recovery::Retry && failures < WORTH_TELLING =>
        {
            LogLevel::Detail
        }
        // An unsupported kernel fails at each check; the condition reports it all the time.
        Outcome::Failed(failure) if failure.recovery == Recovery::Halt && failures > 1 => {
            LogLevel::Detail
        }
        Outcome::Failed(_) => LogLevel::Warning,
    }
}

#[cfg(test)]
mod tests {
    use reconciler::Failure;

    use super::*;

    fn sync(reason: Reason, took: Duration, outcome: Outcome) -> FamilySync {
        FamilySync {
            took,
            ..FamilySync::new(Family::Ipv4, reason, outcome)
        }
    }

    /// A hundred changes a second are not logged; syncs that people search for afterwards are.
    #[test]
    fn only_fast_syncs_for_changes_are_left_out_of_the_log() {
        let fast = Duration::from_millis(4);
        let committed = |reason, took| worth(&sync(reason, took, Outcome::Committed), 0);
        assert_eq!(committed(Reason::Changed, fast), LogLevel::Detail);
        assert_eq!(committed(Reason::Changed, SLOW), LogLevel::Line);
        for reason in [
            Reason::Startup,
            Reason::Drift,
            Reason::Retry,
            Reason::Requested,
        ] {
            assert_eq!(committed(reason, fast), LogLevel::Line, "{reason}");
        }
        let unchanged = sync(Reason::Timer, SLOW, Outcome::Unchanged);
        assert_eq!(worth(&unchanged, 0), LogLevel::Detail);
    }

    #[test]
    fn a_failure_is_a_warning_and_one_that_passes_once_it_does_not_pass() {
        let failed = |recovery, failures| {
            let error = "no such device".to_owned();
            let outcome = Outcome::Failed(Failure { error, recovery });
            worth(&sync(Reason::Changed, Duration::ZERO, outcome), failures)
        };
        assert_eq!(failed(Recovery::Halt, 1), LogLevel::Warning);
        assert_eq!(failed(Recovery::Halt, 2), LogLevel::Detail);
        assert_eq!(failed(Recovery::Retry, WORTH_TELLING - 1), LogLevel::Detail);
        assert_eq!(failed(Recovery::Retry, WORTH_TELLING), LogLevel::Warning);
    }
}
