use super::*;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use backend::Size;
use dataplane::Dataplane;
use reconciler::{Activity, Damage, Failure, FamilyStatus, Pace, Phases, Round, Rounds};

/// A sync of IPv4 with this outcome, without damage.
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

/// Returns what is known after `round`, with `programmed` as the programmed state. `?` means
/// unknown.
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

/// Failure story T19: kubernetes#112604. The partial commit may have created flows.
#[test]
fn t19_after_a_commit_that_may_have_taken_effect_in_part_nothing_is_known() {
    for recovery in [Recovery::Observe, Recovery::Halt] {
        let round = round(Reason::Changed, failed(recovery));
        assert_eq!(told(round, Some(Dataplane::default())), ["?"]);
    }
}

/// Failure story T30: spatiumddi#382. Flows were created while the table was gone.
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
    // A later sync repairs what this one found.
    let unrepaired = round(Reason::Drift, failed(Recovery::Retry));
    for round in [repaired, unrepaired] {
        let told = told(round, Some(Dataplane::default()));
        assert_eq!(told, ["?", "programmed"]);
    }
}

/// Failure story T41: a dump of a million flows, at every start and each time another program
/// changes something beside Signpost's rules.
#[test]
fn t41_a_look_that_found_nothing_puts_nothing_in_doubt() {
    for outcome in [Outcome::Unchanged, Outcome::Committed] {
        let told = told(round(Reason::Drift, outcome), Some(Dataplane::default()));
        assert_eq!(told, ["programmed"]);
    }
}

/// After a handback, the agent leaves the other proxy's connections alone.
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
