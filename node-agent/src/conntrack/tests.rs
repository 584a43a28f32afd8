use super::*;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use backend::Size;
use dataplane::Dataplane;
use reconciler::{Activity, Damage, Failure, FamilyStatus, Pace, Phases, Round, Rounds};

/// A round of IPv4 that ended like this, with nothing amiss.
fn round(reason: Reason, outcome: Outcome) -> Round {
    Round {
        family: Family::Ipv4,
        number: 7,
        reason,
        started: SystemTime::UNIX_EPOCH,
        took: Duration::ZERO,
        ended: Instant::now(),
        phases: Phases::default(),
        size: Size::default(),
        transactions: 1,
        outcome,
        damage: None,
        quarantined: Vec::new(),
        shortcomings: Arc::default(),
    }
}

fn failed(recovery: Recovery) -> Outcome {
    Outcome::Failed(Failure {
        error: "failed to commit IPv4 rules".to_owned(),
        recovery,
    })
}

/// What is learnt of `round`, after which this is programmed: `?` is that nothing is known.
fn told(round: Round, programmed: Option<Dataplane>) -> Vec<&'static str> {
    let report = Report {
        activity: Activity::Waiting,
        families: vec![FamilyStatus {
            family: Family::Ipv4,
            programmed_since: None,
            last_receipt: None,
            last_success: None,
            failing: None,
            pace: Pace::Ordinary,
            drifts: 0,
            last_damage: None,
            quarantined: Vec::new(),
            shortcomings: Arc::default(),
            programmed,
            rounds: Rounds::default(),
        }],
        contest: None,
        finished: vec![Arc::new(round)],
        latencies: Vec::new(),
    };
    let learnt = learnt(&report).into_iter();
    let words = learnt.map(|(_, knowledge)| match knowledge {
        Knowledge::Programmed(_) => "programmed",
        Knowledge::Unknown => "?",
    });
    words.collect()
}

#[test]
fn what_is_programmed_is_told_after_every_round_that_knows() {
    let programmed = || Some(Dataplane::default());
    for outcome in [
        Outcome::Committed,
        Outcome::Unchanged,
        failed(Recovery::Retry),
        failed(Recovery::Isolate),
    ] {
        let round = round(Reason::Changed, outcome);
        assert_eq!(told(round.clone(), programmed()), ["programmed"]);
        assert_eq!(told(round, None), [""; 0], "nothing ever was");
    }
}

/// Failure story T19: kubernetes#112604. Flows were made by what a commit had left.
#[test]
fn t19_after_a_commit_that_may_have_taken_effect_in_part_nothing_is_known() {
    for recovery in [Recovery::Observe, Recovery::Halt] {
        let round = round(Reason::Changed, failed(recovery));
        assert_eq!(told(round, Some(Dataplane::default())), ["?"]);
    }
}

/// Failure story T30: spatiumddi#382. Flows were made while the table was gone.
#[test]
fn t30_after_a_repair_it_is_told_that_nothing_was_known() {
    let damage = Damage {
        found: SystemTime::UNIX_EPOCH,
        culprit: None,
        size: Size::default(),
        repaired_after: Duration::ZERO,
    };
    let repaired = Round {
        damage: Some(damage),
        ..round(Reason::Timer, Outcome::Committed)
    };
    // What it found is repaired later.
    let unrepaired = round(Reason::Drift, failed(Recovery::Retry));
    for round in [repaired, unrepaired] {
        let told = told(round, Some(Dataplane::default()));
        assert_eq!(told, ["?", "programmed"]);
    }
}

/// Failure story T41: a list of a million flows, once at every start and each time another program
/// touches what is beside ours.
#[test]
fn t41_a_look_that_found_nothing_puts_nothing_in_doubt() {
    for outcome in [Outcome::Unchanged, Outcome::Committed] {
        let told = told(round(Reason::Drift, outcome), Some(Dataplane::default()));
        assert_eq!(told, ["programmed"]);
    }
}

/// Whose Services were handed to another proxy keeps its hands off that proxy's connections.
#[test]
fn where_nothing_of_ours_is_in_the_kernel_nothing_is_known() {
    let report = Report {
        activity: Activity::Withdrawn,
        families: Vec::new(),
        contest: None,
        finished: Vec::new(),
        latencies: Vec::new(),
    };
    let learnt = learnt(&report);
    let families: Vec<Family> = learnt.iter().map(|(family, _)| *family).collect();
    assert_eq!(families, Family::ALL);
    let unknown = |(_, knowledge): &(Family, Knowledge)| matches!(knowledge, Knowledge::Unknown);
    assert!(learnt.iter().all(unknown));
}
