//! A loop that keeps the kernel free of Signpost's rules.

use std::num::NonZeroU64;

use super::*;

const WITHDRAWN: Settings = Settings {
    permission: Permission::Withdrawn,
    ..SETTINGS
};

#[test]
fn a_loop_that_withdraws_leaves_nothing_and_writes_nothing() {
    let story = Story::new()
        .wants(0, web([8080]))
        .at(1000, Command::Settings(WITHDRAWN))
        .wants(2000, web([8081]))
        .at(3000, Command::Drifted(ExternalChange::possible()));
    let kernel = story.kernel.clone();
    let reports = story.until(600_000);
    assert_eq!(syncs(&reports), [(0, Reason::Startup)]);
    let last = reports.last().expect("the withdrawal was reported");
    assert_eq!(last.activity, Activity::Withdrawn);
    assert!(last.families[0].programmed.is_none() && last.families[0].failing.is_none());
    assert_eq!(kernel.rules(Family::Ipv4), FakeRules::default());
}

/// What Signpost removed itself is not damage, and the time without rules is not latency.
#[test]
fn a_loop_that_comes_back_looks_first_and_programs_what_is_desired_by_then() {
    let story = Story::new()
        .wants(0, web([8080]))
        .at(1000, Command::Settings(WITHDRAWN))
        .wants(2000, web([8081]))
        .at(4000, Command::Settings(SETTINGS));
    let kernel = story.kernel.clone();
    let reports = story.until(5000);
    assert_eq!(
        syncs(&reports),
        [(0, Reason::Startup), (4000, Reason::Startup)]
    );
    let last = reports.last().expect("the sync was reported");
    assert_eq!(last.families[0].drifts, 0);
    assert!(reports.iter().all(|report| report.latencies.is_empty()));
    let held = kernel.rules(Family::Ipv4);
    assert_eq!(held, FakeRules::render(&web([8081]), Family::Ipv4));
}

/// A process that is killed before it has removed everything completes the removal after a restart.
#[test]
fn a_loop_that_starts_withdrawn_removes_what_is_there() {
    let before = Story::new().wants(0, web([8080]));
    let kernel = before.kernel.clone();
    before.until(100);
    let mut after = Story::new().wants(0, web([8080]));
    (after.kernel, after.settings) = (kernel.clone(), WITHDRAWN);
    let reports = after.until(60_000);
    assert_eq!(reports[0].activity, Activity::Withdrawn);
    assert_eq!(kernel.rules(Family::Ipv4), FakeRules::default());
}

#[test]
fn a_removal_that_fails_is_reported_and_tried_again() {
    let story = Story::new()
        .wants(0, web([8080]))
        .at(1000, Command::Settings(WITHDRAWN));
    let kernel = story.kernel.clone();
    let mut failures = 3;
    let backend = Faulty::new(kernel.backend(Family::Ipv4), move |call| match call {
        Call::Removal if failures > 0 => {
            failures -= 1;
            CallOutcome::Refuse(Recovery::Retry)
        }
        _ => CallOutcome::Pass,
    });
    let reports = story.until_with(2000, backend);
    let reported = reports.iter().filter(|r| r.activity == Activity::Withdrawn);
    let failing: Vec<bool> = reported.map(|r| r.families[0].failing.is_some()).collect();
    assert_eq!(failing, [true, true, true, false]);
    assert_eq!(kernel.rules(Family::Ipv4), FakeRules::default());
}

/// What connections need goes when they have ended, without a command, and nothing is looked at
/// after that.
#[test]
fn what_connections_need_is_looked_at_until_nothing_is_left() {
    let story = Story::new()
        .wants(0, web([8080]))
        .at(1000, Command::Settings(WITHDRAWN));
    let kernel = story.kernel.clone();
    kernel.outlive(2);
    let reports = story.until(600_000);
    assert_eq!(kernel.withdrawals(), 3);
    let withdrawn = reports.iter().filter(|r| r.activity == Activity::Withdrawn);
    let leftover = withdrawn.clone().map(|r| r.families[0].leftover);
    let one = Leftover::Connections(NonZeroU64::MIN);
    assert_eq!(leftover.collect::<Vec<_>>(), [one, one, Leftover::Nothing]);
    assert!(
        withdrawn
            .flat_map(|r| &r.families)
            .all(|f| f.failing.is_none())
    );
}
