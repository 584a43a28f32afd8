use std::sync::Arc;

use backend::Recovery;
use reconciler::{Failing, Failure, FamilyStatus, Outcome, Reason};

use super::*;

/// kube-proxy's limit with its default syncPeriod of 30 s.
const PATIENCE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

fn sync(family: Family, began: Instant, took: Duration, outcome: Outcome) -> Arc<FamilySync> {
    Arc::new(FamilySync {
        took,
        ended: began + took,
        ..FamilySync::new(family, Reason::Changed, outcome)
    })
}

fn report(activity: Activity, finished: Vec<Arc<FamilySync>>) -> Report {
    Report {
        activity,
        families: Vec::new(),
        repair_backoff: None,
        finished,
        latencies: Vec::new(),
    }
}

fn failed(recovery: Recovery) -> Outcome {
    Outcome::Failed(Failure {
        error: "no such device".to_owned(),
        recovery,
    })
}

/// A node whose families were both programmed by syncs that began at `began`.
fn programmed(began: Instant) -> ProxyHealth {
    let health = ProxyHealth::default();
    health.queued(began);
    let syncs = Family::ALL.map(|family| sync(family, began, SECOND, Outcome::Committed));
    health.reported(&report(Activity::Waiting, syncs.into()));
    health
}

/// Failure story T56: kubernetes#83263.
#[test]
fn t56_an_agent_that_has_never_programmed_anything_is_not_healthy_and_not_killed() {
    let start = Instant::now();
    let health = ProxyHealth::default();
    let node_health = health.node_health(PATIENCE, start);
    assert!(!node_health.is_healthy());
    assert!(node_health.is_alive());
    assert_eq!(node_health.last_updated(), None);
    let one = sync(Family::Ipv4, start, SECOND, Outcome::Committed);
    health.reported(&report(Activity::Waiting, vec![one]));
    assert!(
        !health.node_health(PATIENCE, start).is_healthy(),
        "one family is half a node"
    );
}

#[test]
fn an_update_is_late_after_twice_the_sync_period_and_not_before() {
    let start = Instant::now();
    let health = programmed(start);
    let queued = start + 10 * SECOND;
    health.queued(queued);
    health.queued(queued + 50 * SECOND);
    let just_before = queued + PATIENCE - Duration::from_millis(1);
    assert!(health.node_health(PATIENCE, just_before).is_healthy());
    let late = health.node_health(PATIENCE, queued + PATIENCE);
    assert!(!late.is_healthy());
    assert!(!late.is_alive(), "no sync works at it");
    assert!(
        health
            .node_health(5 * PATIENCE, queued + PATIENCE)
            .is_healthy(),
        "a profile with a longer period"
    );
}

#[test]
fn a_quiet_cluster_is_healthy_for_ever() {
    let start = Instant::now();
    let week = Duration::from_secs(7 * 86_400);
    assert!(
        programmed(start)
            .node_health(PATIENCE, start + week)
            .is_healthy()
    );
}

#[test]
fn what_was_queued_while_a_sync_ran_still_waits_after_it() {
    let start = Instant::now();
    let health = programmed(start);
    let began = start + 10 * SECOND;
    health.queued(began - SECOND);
    health.queued(began + SECOND);
    let syncs = Family::ALL.map(|family| sync(family, began, 5 * SECOND, Outcome::Committed));
    health.reported(&report(Activity::Waiting, syncs.into()));
    assert!(
        health
            .node_health(PATIENCE, began + 30 * SECOND)
            .is_healthy()
    );
    assert!(!health.node_health(PATIENCE, began + PATIENCE).is_healthy());
}

/// Failure story T57: kubernetes#83263.
#[test]
fn t57_five_minutes_of_a_sync_are_a_reason_to_send_traffic_elsewhere_and_none_to_kill() {
    let start = Instant::now();
    let health = programmed(start);
    health.queued(start + 2 * SECOND);
    health.began();
    let later = start + Duration::from_secs(300);
    let node_health = health.node_health(PATIENCE, later);
    assert!(
        !node_health.is_healthy(),
        "the kernel is five minutes behind"
    );
    assert!(node_health.is_alive());
    let began = start + 2 * SECOND;
    let took = Duration::from_secs(300);
    let syncs = Family::ALL.map(|family| sync(family, began, took, Outcome::Committed));
    health.reported(&report(Activity::Waiting, syncs.into()));
    assert!(health.node_health(PATIENCE, began + took).is_healthy());
}

#[test]
fn syncs_that_fail_do_not_answer_and_are_late_by_themselves() {
    let start = Instant::now();
    let health = programmed(start);
    let began = start + 10 * SECOND;
    // A periodic sync: no update was queued.
    let outcome = failed(Recovery::Retry);
    let sync = sync(Family::Ipv6, began, SECOND, outcome);
    health.reported(&report(Activity::Waiting, vec![sync]));
    assert!(
        health
            .node_health(PATIENCE, began + 59 * SECOND)
            .is_healthy()
    );
    let node_health = health.node_health(PATIENCE, began + PATIENCE);
    assert!(!node_health.is_healthy());
    assert!(node_health.families[&Family::Ipv4].is_healthy());
    assert!(!node_health.families[&Family::Ipv6].is_healthy());
}

fn halted(family: Family, programmed_since: Option<SystemTime>) -> FamilyStatus {
    FamilyStatus {
        programmed_since,
        failing: Some(Failing {
            since: SystemTime::UNIX_EPOCH,
            syncs: 1,
            retries: 0,
            error: "operation not supported".to_owned(),
            recovery: Recovery::Halt,
        }),
        ..FamilyStatus::new(family)
    }
}

#[test]
fn a_family_that_the_kernel_lacks_does_not_count_as_long_as_there_is_another() {
    let start = Instant::now();
    let health = ProxyHealth::default();
    health.queued(start);
    let lacking = |families: &[Family]| {
        let finished = Family::ALL.map(|family| {
            let outcome = match families.contains(&family) {
                true => failed(Recovery::Halt),
                false => Outcome::Committed,
            };
            sync(family, start, SECOND, outcome)
        });
        let mut report = report(Activity::Waiting, finished.into());
        report.families = families.iter().map(|f| halted(*f, None)).collect();
        report
    };
    health.reported(&lacking(&[Family::Ipv6]));
    let later = start + Duration::from_secs(300);
    assert!(health.node_health(PATIENCE, later).is_healthy());
    health.reported(&lacking(&Family::ALL));
    assert!(
        !health.node_health(PATIENCE, later).is_healthy(),
        "a kernel that lacks both serves nothing"
    );
}

#[test]
fn a_family_that_was_programmed_and_is_refused_now_counts() {
    let start = Instant::now();
    let health = programmed(start);
    let began = start + 10 * SECOND;
    let refused = sync(Family::Ipv4, began, SECOND, failed(Recovery::Halt));
    let mut report = report(Activity::Waiting, vec![refused]);
    report.families = vec![halted(Family::Ipv4, Some(SystemTime::UNIX_EPOCH))];
    health.reported(&report);
    assert!(!health.node_health(PATIENCE, began + PATIENCE).is_healthy());
}

#[test]
fn a_node_that_was_reported_to_pause_is_not_late() {
    let start = Instant::now();
    let health = programmed(start);
    health.queued(start + 2 * SECOND);
    let mut paused = report(Activity::Paused, Vec::new());
    paused.families = Family::ALL
        .map(|family| halted(family, Some(SystemTime::UNIX_EPOCH)))
        .into();
    health.reported(&paused);
    let later = start + Duration::from_secs(300);
    assert!(health.node_health(PATIENCE, later).is_healthy());
}
