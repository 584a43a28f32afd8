use super::*;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use backend::Size;
use dataplane::Dataplane;
use reconciler::{Activity, Failing, Failure, FamilyStatus, FamilySync, RepairedDrift};

/// A sync of IPv4 with this outcome, without damage.
fn sync(reason: Reason, outcome: Outcome) -> FamilySync {
    FamilySync::new(Family::Ipv4, reason, outcome)
}

fn failed(recovery: Recovery) -> Outcome {
    Outcome::Failed(Failure {
        error: "failed to commit IPv4 rules".to_owned(),
        recovery,
    })
}

/// Returns what is known after `sync`, with `programmed` as the programmed state. `?` means
/// unknown.
fn reported(sync: FamilySync, programmed: Option<Dataplane>) -> Vec<&'static str> {
    reported_while(None, sync, programmed)
}

/// The same, after earlier syncs that failed.
fn reported_while(
    failing: Option<Failing>,
    sync: FamilySync,
    programmed: Option<Dataplane>,
) -> Vec<&'static str> {
    let status = FamilyStatus {
        failing,
        programmed,
        ..FamilyStatus::new(Family::Ipv4)
    };
    reported_with(status, sync)
}

/// The same, with this status.
fn reported_with(status: FamilyStatus, sync: FamilySync) -> Vec<&'static str> {
    let report = Report {
        activity: Activity::Waiting,
        families: vec![status],
        repair_backoff: None,
        finished: vec![Arc::new(sync)],
        latencies: Vec::new(),
    };
    let known_after = known_after(&report).into_iter();
    let words = known_after.map(|(_, knowledge)| match knowledge {
        ProgrammedState::Programmed(_) => "programmed",
        ProgrammedState::Unknown => "?",
    });
    words.collect()
}

#[test]
fn what_is_programmed_is_reported_after_every_sync_that_knows() {
    let programmed = || Some(Dataplane::default());
    for outcome in [
        Outcome::Committed,
        Outcome::Unchanged,
        failed(Recovery::Retry),
        failed(Recovery::Isolate),
    ] {
        let sync = sync(Reason::Changed, outcome);
        assert_eq!(reported(sync.clone(), programmed()), ["programmed"]);
        assert_eq!(reported(sync, None), [""; 0], "nothing ever was");
    }
}

/// Failure story T19: kubernetes#112604. The partial commit may have created flows.
#[test]
fn t19_after_a_commit_that_may_have_taken_effect_in_part_nothing_is_known() {
    for recovery in [Recovery::Observe, Recovery::Halt] {
        let sync = sync(Reason::Changed, failed(recovery));
        assert_eq!(reported(sync, Some(Dataplane::default())), ["?"]);
    }
}

/// Failure story T450. Parts in a mode that is being replaced are not in what is programmed.
#[test]
fn t450_parts_bring_no_certainty_back_that_a_failure_has_lost() {
    for (recovery, known) in [
        (Recovery::Retry, "programmed"),
        (Recovery::Isolate, "programmed"),
        (Recovery::Observe, "?"),
        (Recovery::Halt, "?"),
    ] {
        let failing = Failing {
            since: SystemTime::UNIX_EPOCH,
            syncs: 1,
            retries: 0,
            error: "failed to commit IPv4 rules".to_owned(),
            recovery,
        };
        let part = sync(Reason::Continued, Outcome::Partial);
        let reported = reported_while(Some(failing), part, Some(Dataplane::default()));
        assert_eq!(reported, [known]);
    }
}

/// Failure story T457. A sync for drift failed, and then flows were judged by the endpoints of before the
/// switch: those to endpoints that the mode that serves had got meanwhile were deleted.
#[test]
fn t457_during_a_switch_no_flow_is_judged_by_what_was_programmed_before_it() {
    for outcome in [
        failed(Recovery::Retry),
        failed(Recovery::Isolate),
        Outcome::Partial,
    ] {
        for reason in [Reason::Drift, Reason::Changed, Reason::Continued] {
            let status = FamilyStatus {
                is_switching: true,
                programmed: Some(Dataplane::default()),
                ..FamilyStatus::new(Family::Ipv4)
            };
            let known = reported_with(status, sync(reason, outcome.clone()));
            assert_eq!(known, ["?"], "{reason}, {outcome}");
        }
    }
}

/// Failure story T30: spatiumddi#382. Flows were created while the table was gone.
#[test]
fn t30_after_a_repair_it_is_reported_that_nothing_was_known() {
    let repaired_drift = RepairedDrift {
        found: SystemTime::UNIX_EPOCH,
        actor: None,
        size: Size::default(),
        repaired_after: Duration::ZERO,
    };
    let repaired = FamilySync {
        repaired_drift: Some(repaired_drift),
        ..sync(Reason::Timer, Outcome::Committed)
    };
    // A later sync repairs what this one found.
    let unrepaired = sync(Reason::Drift, failed(Recovery::Retry));
    for sync in [repaired, unrepaired] {
        let reported = reported(sync, Some(Dataplane::default()));
        assert_eq!(reported, ["?", "programmed"]);
    }
}

/// Failure story T41: a dump of a million flows, at every start and each time another program
/// changes something beside Signpost's rules.
#[test]
fn t41_a_look_that_found_nothing_puts_nothing_in_doubt() {
    for outcome in [Outcome::Unchanged, Outcome::Committed] {
        let reported = reported(sync(Reason::Drift, outcome), Some(Dataplane::default()));
        assert_eq!(reported, ["programmed"]);
    }
}

/// After a handback, the agent leaves the other proxy's connections alone.
#[test]
fn where_the_kernel_has_no_rules_of_signpost_nothing_is_known() {
    let report = Report {
        activity: Activity::Withdrawn,
        families: Vec::new(),
        repair_backoff: None,
        finished: Vec::new(),
        latencies: Vec::new(),
    };
    let known_after = known_after(&report);
    let families: Vec<Family> = known_after.iter().map(|(family, _)| *family).collect();
    assert_eq!(families, Family::ALL);
    let unknown =
        |(_, knowledge): &(Family, ProgrammedState)| matches!(knowledge, ProgrammedState::Unknown);
    assert!(known_after.iter().all(unknown));
}
