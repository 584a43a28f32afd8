use std::time::Duration;

use tokio::time::advance;

use super::endpoints::{Detail, render};
use super::*;

const ALLOWED: Duration = Duration::from_secs(60);

#[test]
fn a_check_fails_until_it_reports() {
    let health = Health::new();
    assert!(health.readiness().passed());
    let check = health.check("nftables");
    assert!(!health.readiness().passed());
    check.ready();
    assert!(health.readiness().passed());
    check.not_ready("table is gone");
    assert_eq!(
        health.readiness().lines[0].failure.as_deref(),
        Some("table is gone")
    );
}

#[test]
fn asking_for_a_check_again_keeps_what_it_said() {
    let health = Health::new();
    health.check("nftables").ready();
    health.check("nftables");
    assert!(health.readiness().passed());
}

#[test]
fn an_answer_is_ok_or_names_what_fails() {
    let health = Health::new();
    health.check("b").ready();
    let check = health.check("a");
    check.not_ready("waiting for the first list of Services");
    let report = health.readiness();
    assert_eq!(
        render("readyz", &report, Detail::Failures),
        "[-]a waiting for the first list of Services\nreadyz check failed\n"
    );
    assert_eq!(
        render("readyz", &report, Detail::Everything),
        "[-]a waiting for the first list of Services\n[+]b ok\nreadyz check failed\n"
    );
    check.ready();
    let report = health.readiness();
    assert_eq!(render("readyz", &report, Detail::Failures), "ok");
    assert_eq!(
        render("readyz", &report, Detail::Everything),
        "[+]a ok\n[+]b ok\nreadyz check passed\n"
    );
}

#[tokio::test(start_paused = true)]
async fn an_idle_loop_is_alive_forever() {
    let health = Health::new();
    let heartbeat = health.heartbeat("reconciler", ALLOWED);
    advance(100 * ALLOWED).await;
    assert!(health.liveness().passed());
    heartbeat.busy();
    heartbeat.idle();
    advance(100 * ALLOWED).await;
    assert!(health.liveness().passed());
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_is_stuck_is_not_alive_and_says_for_how_long() {
    let health = Health::new();
    health.heartbeat("reconciler", ALLOWED).busy();
    advance(ALLOWED).await;
    assert!(health.liveness().passed());
    advance(Duration::from_secs(3)).await;
    let failure = health.liveness().lines[0].failure.clone();
    assert_eq!(
        failure.as_deref(),
        Some("no progress for 63 s, 60 s allowed")
    );
}

#[tokio::test(start_paused = true)]
async fn a_slow_loop_that_gets_on_is_alive() {
    let health = Health::new();
    let heartbeat = health.heartbeat("reconciler", ALLOWED);
    heartbeat.busy();
    for _ in 0..10 {
        advance(ALLOWED).await;
        assert!(health.liveness().passed());
        heartbeat.beat();
    }
}

#[tokio::test(start_paused = true)]
async fn more_work_does_not_hide_that_old_work_is_stuck() {
    let health = Health::new();
    let heartbeat = health.heartbeat("reconciler", ALLOWED);
    for _ in 0..4 {
        heartbeat.busy();
        advance(ALLOWED / 3).await;
    }
    assert!(!health.liveness().passed());
}
