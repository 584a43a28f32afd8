use std::time::{Duration, Instant};

use backend::{Actor, Size};

use super::{FollowUp, Periods, Schedule, Urgency};
use crate::fake_clock::FakeClock;
use crate::{Clock, Reason, RepairedDrift};

const PERIODS: Periods = Periods {
    min_sync_period: Duration::from_millis(100),
    sync_period: Duration::from_secs(30),
};
const RETRY: FollowUp = FollowUp::Retry { retries: 0 };

/// An event for a schedule; times are in milliseconds.
#[derive(Debug, Clone, Copy)]
enum Event {
    Changed,
    LostEndpoints,
    Drifted,
    Requested,
    Starts(Reason),
    Ends(FollowUp),
    MinSyncPeriod(u64),
    SyncPeriod(u64),
    CheckPeriod(Option<u64>),
}

/// The millisecond of an event, the event, and when and why the next sync is due after it.
type Line = (u64, Event, Option<(u64, Reason)>);

/// Plays `story`: after each event, checks when and why the next sync is due.
#[track_caller]
fn play(story: &[Line]) {
    let clock = FakeClock::new();
    let at = |milliseconds| clock.at(Duration::from_millis(milliseconds));
    let mut schedule = Schedule::new(PERIODS);
    let mut periods = PERIODS;
    for (line, (time, event, expected)) in story.iter().enumerate() {
        let now: Instant = at(*time);
        match *event {
            Event::Changed => schedule.changed(now, Urgency::Ordinary),
            Event::LostEndpoints => schedule.changed(now, Urgency::Urgent),
            Event::Drifted => schedule.drifted(now),
            Event::Requested => schedule.requested(now),
            Event::Starts(reason) => assert_eq!(
                schedule.start(now),
                Some(reason),
                "line {line}: {time} {event:?}"
            ),
            Event::Ends(follow_up) => schedule.finish(now, follow_up, &[]),
            Event::MinSyncPeriod(period) => {
                periods.min_sync_period = Duration::from_millis(period);
                schedule.set_periods(periods);
            }
            Event::SyncPeriod(period) => {
                periods.sync_period = Duration::from_millis(period);
                schedule.set_periods(periods);
            }
            Event::CheckPeriod(period) => {
                schedule.set_check_period(period.map(Duration::from_millis));
            }
        }
        let due = schedule.due().map(|due| (due.at, due.reason));
        let expected = expected.map(|(time, reason)| (at(time), reason));
        let elapsed = |(at, reason): (Instant, Reason)| (at - clock.at(Duration::ZERO), reason);
        assert_eq!(
            due.map(elapsed),
            expected.map(elapsed),
            "line {line}: {time} {event:?}"
        );
    }
}

use Event::{
    Changed, CheckPeriod, Drifted, Ends, LostEndpoints, MinSyncPeriod, Requested, Starts,
    SyncPeriod,
};
use FollowUp::{Settled, Unfinished};
use Reason as For;

/// The first sync of a process, from 0 to 10 milliseconds.
const STARTUP: [Line; 3] = [
    (0, Changed, Some((0, For::Startup))),
    (0, Starts(For::Startup), None),
    (10, Ends(Settled), Some((30_010, For::Timer))),
];

#[track_caller]
fn play_after_startup(story: &[Line]) {
    let mut whole = STARTUP.to_vec();
    whole.extend(story);
    play(&whole);
}

#[test]
fn nothing_is_due_before_something_is_desired() {
    play(&[
        (0, Requested, None),
        (5, Drifted, None),
        (7, Changed, Some((7, For::Startup))),
    ]);
}

#[test]
fn the_first_change_after_quiet_is_answered_at_once() {
    play_after_startup(&[
        (5000, Changed, Some((5000, For::Changed))),
        (5000, Starts(For::Changed), None),
        (5002, Ends(Settled), Some((30_010, For::Timer))),
    ]);
}

/// T85: the rest of a large change follows without a pause, together with what arrived meanwhile.
#[test]
fn t85_a_large_change_is_gone_on_with_at_once() {
    play_after_startup(&[
        (5000, Changed, Some((5000, For::Changed))),
        (5000, Starts(For::Changed), None),
        (5040, Ends(Unfinished), Some((5040, For::Continued))),
        (5040, Starts(For::Continued), None),
        (5050, Changed, None),
        (5080, Ends(Unfinished), Some((5080, For::Changed))),
        (5080, Starts(For::Changed), None),
        (5120, Ends(Settled), Some((30_010, For::Timer))),
    ]);
}

/// T384: neither the periodic check, nor a request, nor the check that notices what nothing announces
/// waits until a search for refused Services has ended.
#[test]
fn t384_a_check_and_a_request_go_between_the_parts_of_a_search() {
    play_after_startup(&[
        (29_900, Changed, Some((29_900, For::Changed))),
        (29_900, Starts(For::Changed), None),
        (30_000, Ends(Unfinished), Some((30_000, For::Continued))),
        (30_000, Starts(For::Continued), None),
        (30_020, Ends(Unfinished), Some((30_020, For::Timer))),
        (30_020, Starts(For::Timer), None),
        (30_040, Ends(Unfinished), Some((30_040, For::Continued))),
        (30_040, Starts(For::Continued), None),
        (30_045, Requested, None),
        (30_060, Ends(Unfinished), Some((30_060, For::Requested))),
        (30_060, Starts(For::Requested), None),
        (30_080, CheckPeriod(Some(1000)), None),
        (30_080, Ends(Unfinished), Some((30_080, For::Continued))),
        (30_080, Starts(For::Continued), None),
        (31_100, Ends(Unfinished), Some((31_100, For::Drift))),
        (31_100, Starts(For::Drift), None),
        (31_110, Ends(Unfinished), Some((31_110, For::Continued))),
    ]);
}

/// T384: a family that has failed is tried again as if there were no search in the other one.
#[test]
fn t384_a_search_in_one_family_does_not_delay_the_retry_of_another() {
    let both = |retries| Ends(FollowUp::UnfinishedAndRetry { retries });
    play_after_startup(&[
        (5000, Changed, Some((5000, For::Changed))),
        (5000, Starts(For::Changed), None),
        (5040, both(0), Some((5040, For::Continued))),
        (5040, Starts(For::Continued), None),
        (5060, both(0), Some((5060, For::Continued))),
        (5060, Starts(For::Continued), None),
        (5100, both(0), Some((5100, For::Retry))),
        (5100, Starts(For::Retry), None),
        (5110, both(1), Some((5110, For::Continued))),
        (5110, Starts(For::Continued), None),
        (
            5120,
            Ends(FollowUp::Retry { retries: 1 }),
            Some((5220, For::Retry)),
        ),
    ]);
}

/// k/k#138073: measured from start to start, a period shorter than a sync would be no pause at
/// all.
#[test]
fn min_sync_period_runs_from_the_end_of_a_sync_to_the_start_of_the_next() {
    play_after_startup(&[
        (5000, Changed, Some((5000, For::Changed))),
        (5000, Starts(For::Changed), None),
        (5300, Changed, None),
        (5700, Ends(Settled), Some((5800, For::Changed))),
        (5750, Changed, Some((5800, For::Changed))),
        (5800, Starts(For::Changed), None),
        (5801, Ends(Settled), Some((30_010, For::Timer))),
        (5950, Changed, Some((5950, For::Changed))),
    ]);
}

#[test]
fn after_a_sync_that_took_long_others_have_the_kernel_for_as_long_but_not_for_ever() {
    play(&[
        (0, MinSyncPeriod(1), None),
        (0, Changed, Some((0, For::Startup))),
        (0, Starts(For::Startup), None),
        (3000, Ends(Settled), Some((33_000, For::Timer))),
        (3001, Changed, Some((3100, For::Changed))),
        (3100, Starts(For::Changed), None),
        (3140, Ends(Settled), Some((33_000, For::Timer))),
        (3150, Changed, Some((3180, For::Changed))),
        (3150, MinSyncPeriod(0), Some((3150, For::Changed))),
    ]);
}

#[test]
fn a_change_that_arrives_during_a_sync_is_not_lost() {
    play_after_startup(&[
        (5000, Changed, Some((5000, For::Changed))),
        (5000, Starts(For::Changed), None),
        (5001, Changed, None),
        (5002, Ends(RETRY), Some((5102, For::Changed))),
    ]);
}

#[test]
fn a_failed_sync_is_tried_again_ever_more_rarely() {
    let mut story = vec![
        (0, MinSyncPeriod(0), None),
        (0, SyncPeriod(3_600_000), None),
        (0, Changed, Some((0, For::Startup))),
        (0, Starts(For::Startup), None),
    ];
    let mut now = 0;
    for (retries, delay) in (0..).zip([50, 100, 200, 400, 800, 1600, 3200, 6400, 12_800]) {
        let due = (now + delay, For::Retry);
        story.push((now, Ends(FollowUp::Retry { retries }), Some(due)));
        story.push((now + delay, Starts(For::Retry), None));
        now += delay;
    }
    play(&story);
}

/// A mode that announces no changes is checked sooner, unless a sync has failed.
#[test]
fn what_is_not_announced_is_checked_for_sooner() {
    play(&[
        (0, Changed, Some((0, For::Startup))),
        (0, Starts(For::Startup), None),
        (0, Ends(Settled), Some((30_000, For::Timer))),
        (0, CheckPeriod(Some(2000)), Some((2000, For::Drift))),
        (900, Changed, Some((900, For::Changed))),
        (900, Starts(For::Changed), None),
        // That sync did not check.
        (1000, Ends(Settled), Some((2000, For::Drift))),
        (2000, Starts(For::Drift), None),
        (2100, Ends(Settled), Some((4100, For::Drift))),
        (4100, Starts(For::Drift), None),
        (4100, Ends(RETRY), Some((4200, For::Retry))),
        (4200, CheckPeriod(None), Some((4200, For::Retry))),
    ]);
}

#[test]
fn attempts_are_never_further_apart_than_sync_period() {
    play(&[
        (0, SyncPeriod(1000), None),
        (0, Changed, Some((0, For::Startup))),
        (0, Starts(For::Startup), None),
        (0, Ends(Settled), Some((1000, For::Timer))),
        (900, Changed, Some((900, For::Changed))),
        (900, Starts(For::Changed), None),
        (
            900,
            Ends(FollowUp::Retry { retries: 40 }),
            Some((1000, For::Timer)),
        ),
        (1000, Starts(For::Timer), None),
        (
            1000,
            Ends(FollowUp::Retry { retries: 40 }),
            Some((2000, For::Timer)),
        ),
    ]);
}

#[test]
fn a_change_does_not_wait_for_a_retry() {
    play_after_startup(&[
        (5000, Changed, Some((5000, For::Changed))),
        (5000, Starts(For::Changed), None),
        (
            5000,
            Ends(FollowUp::Retry { retries: 5 }),
            Some((6600, For::Retry)),
        ),
        (5050, Changed, Some((5100, For::Changed))),
        (5100, Starts(For::Changed), None),
    ]);
}

#[test]
fn a_retry_keeps_min_sync_period() {
    play_after_startup(&[
        (11, MinSyncPeriod(10_000), Some((30_010, For::Timer))),
        (20_000, Changed, Some((20_000, For::Changed))),
        (20_000, Starts(For::Changed), None),
        (20_005, Ends(RETRY), Some((30_005, For::Retry))),
    ]);
}

#[test]
fn the_periodic_check_is_not_put_off_by_changes() {
    let mut story = Vec::new();
    for time in [10_000, 20_000, 30_000] {
        story.push((time, Changed, Some((time, For::Changed))));
        story.push((time, Starts(For::Changed), None));
        let timer = 30_010.max(time + 1 + 100);
        story.push((time + 1, Ends(Settled), Some((timer, For::Timer))));
    }
    story.push((30_101, Starts(For::Timer), None));
    story.push((30_102, Ends(Settled), Some((60_102, For::Timer))));
    play_after_startup(&story);
}

#[test]
fn periods_can_be_changed_while_something_waits() {
    play_after_startup(&[
        (50, Changed, Some((110, For::Changed))),
        (60, MinSyncPeriod(20), Some((50, For::Changed))),
        (60, MinSyncPeriod(5000), Some((5010, For::Changed))),
        (70, SyncPeriod(1000), Some((5010, For::Timer))),
    ]);
}

#[test]
fn a_lost_endpoint_does_not_wait_but_a_further_one_does() {
    play_after_startup(&[
        (5000, Changed, Some((5000, For::Changed))),
        (5000, Starts(For::Changed), None),
        (5001, Ends(Settled), Some((30_010, For::Timer))),
        (5002, Changed, Some((5101, For::Changed))),
        (5003, LostEndpoints, Some((5002, For::Changed))),
        (5003, Starts(For::Changed), None),
        (5004, Ends(Settled), Some((30_010, For::Timer))),
        (5005, LostEndpoints, Some((5104, For::Changed))),
        (5104, Starts(For::Changed), None),
        (5105, Ends(Settled), Some((30_010, For::Timer))),
        (5106, LostEndpoints, Some((5106, For::Changed))),
    ]);
}

/// T85: the parts of a large change did not wait either, but do not count as urgent changes.
#[test]
fn t85_a_lost_endpoint_does_not_wait_after_the_last_part_of_a_large_change() {
    play_after_startup(&[
        (5000, Changed, Some((5000, For::Changed))),
        (5000, Starts(For::Changed), None),
        (5040, Ends(Unfinished), Some((5040, For::Continued))),
        (5040, Starts(For::Continued), None),
        (5080, Ends(Settled), Some((30_010, For::Timer))),
        (5081, LostEndpoints, Some((5081, For::Changed))),
        (5081, Starts(For::Changed), None),
        (5082, Ends(Settled), Some((30_010, For::Timer))),
        (5083, LostEndpoints, Some((5182, For::Changed))),
    ]);
}

#[test]
fn one_sync_answers_everything_that_is_due() {
    play_after_startup(&[
        (20, Changed, Some((110, For::Changed))),
        (30, Requested, Some((110, For::Requested))),
        (110, Drifted, Some((110, For::Requested))),
        (110, Starts(For::Requested), None),
        (120, Ends(Settled), Some((30_120, For::Timer))),
    ]);
}

#[test]
fn a_request_is_not_answered_by_a_sync_that_does_not_look() {
    play_after_startup(&[
        (20, LostEndpoints, Some((20, For::Changed))),
        (20, Requested, Some((20, For::Changed))),
        (21, Starts(For::Changed), None),
        (22, Ends(Settled), Some((122, For::Requested))),
    ]);
}

/// A change by another program.
fn repaired_drift(actor: Option<&str>) -> RepairedDrift {
    RepairedDrift {
        found: FakeClock::new().wall_time(),
        actor: actor.map(|program| Actor {
            program: program.to_owned(),
            process: 815,
        }),
        size: Size::default(),
        repaired_after: Duration::ZERO,
    }
}

/// Simulates a program that changes the kernel every `every` milliseconds, from `from` to `until`,
/// and syncs of 10 milliseconds; returns when the syncs began.
fn repairs(
    schedule: &mut Schedule,
    clock: &FakeClock,
    every: u64,
    from: u64,
    until: u64,
) -> Vec<u64> {
    looks(
        schedule,
        clock,
        every,
        from,
        until,
        &[&repaired_drift(None)],
    )
}

/// The same, with syncs that each find `found`.
fn looks(
    schedule: &mut Schedule,
    clock: &FakeClock,
    every: u64,
    from: u64,
    until: u64,
    found: &[&RepairedDrift],
) -> Vec<u64> {
    let at = |milliseconds| clock.at(Duration::from_millis(milliseconds));
    let mut repairs = Vec::new();
    let mut now = from;
    while now < until {
        if (now - from).is_multiple_of(every) {
            schedule.drifted(at(now));
        }
        if schedule.due().is_some_and(|due| due.at <= at(now)) {
            schedule.start(at(now));
            repairs.push(now);
            now += 10;
            schedule.finish(at(now), Settled, found);
        } else {
            now += 10;
        }
    }
    repairs
}

fn started() -> (Schedule, FakeClock) {
    let clock = FakeClock::new();
    let mut schedule = Schedule::new(Periods {
        min_sync_period: Duration::from_secs(1),
        sync_period: Duration::from_secs(3600),
    });
    schedule.changed(clock.now(), Urgency::Ordinary);
    schedule.start(clock.now());
    schedule.finish(clock.now(), Settled, &[]);
    (schedule, clock)
}

/// T38: a program flushes every 200 milliseconds for half a minute. The first repairs run at once,
/// whatever `minSyncPeriod` is; later ones become rarer, down to one every few seconds.
#[test]
fn t38_repairs_that_are_undone_again_and_again_are_held_back() {
    let (mut schedule, clock) = started();
    let repairs = repairs(&mut schedule, &clock, 200, 100, 30_100);
    let apart: Vec<u64> = repairs.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(repairs[..5], [100, 300, 500, 700, 900]);
    assert!(
        apart[4..].is_sorted() && apart[4..].iter().all(|apart| (200..=4300).contains(apart)),
        "{repairs:?}"
    );
    assert!(repairs.len() < 20, "{repairs:?}");
    assert!(schedule.held_back().is_some());
}

#[test]
fn after_quiet_repairs_are_made_at_once_again() {
    let (mut schedule, clock) = started();
    let last = repairs(&mut schedule, &clock, 200, 100, 30_100);
    let last = last.last().expect("there were repairs") + 10;
    // What was noticed during the last wait is still repaired.
    let late = repairs(&mut schedule, &clock, 1_000_000, 30_100, 36_000);
    assert_eq!(late.len(), 1, "{late:?}, after {last}");
    let quiet = clock.at(Duration::from_millis(late[0] + 10_010));
    assert_eq!(schedule.calm_at(), Some(quiet));
    schedule.calm(quiet);
    assert!(schedule.held_back().is_none());
    assert_eq!(
        repairs(&mut schedule, &clock, 1_000_000, 60_000, 60_100),
        [60_000]
    );
}

/// Lost notifications, again and again: each time a check is due, but no program has changed
/// anything, and repairs are not delayed.
#[test]
fn looks_that_find_nothing_are_no_repairs() {
    let (mut schedule, clock) = started();
    let looks = looks(&mut schedule, &clock, 500, 500, 20_000, &[]);
    let expected: Vec<u64> = (500..20_000).step_by(500).collect();
    assert_eq!(looks, expected);
    assert!(schedule.held_back().is_none());
    let repairs = repairs(&mut schedule, &clock, 200, 20_000, 20_900);
    assert_eq!(repairs, [20_000, 20_200, 20_400, 20_600, 20_800]);
}

/// However fast a program rewrites existing rules.
#[test]
fn looks_that_find_nothing_take_a_quarter_of_the_time_at_most() {
    let (mut schedule, clock) = started();
    let looks = looks(&mut schedule, &clock, 10, 0, 400, &[]);
    let expected: Vec<u64> = (0..400).step_by(40).collect();
    assert_eq!(looks, expected);
}

#[test]
fn a_streak_of_repairs_names_only_whom_it_is_about() {
    let (mut schedule, clock) = started();
    let (firewalld, unnamed) = (repaired_drift(Some("firewalld")), repaired_drift(None));
    looks(&mut schedule, &clock, 200, 100, 200, &[&firewalld]);
    repairs(&mut schedule, &clock, 200, 60_000, 65_000);
    let series = schedule.held_back().expect("they are held back");
    assert_eq!(
        series.actor, None,
        "the change of another program was long ago"
    );
    looks(
        &mut schedule,
        &clock,
        200,
        65_000,
        70_000,
        &[&firewalld, &unnamed],
    );
    repairs(&mut schedule, &clock, 200, 70_000, 75_000);
    let series = schedule.held_back().expect("they are held back");
    assert_eq!(series.actor, firewalld.actor);
}

#[test]
fn repairs_that_are_far_apart_are_never_held_back() {
    let (mut schedule, clock) = started();
    let repairs = repairs(&mut schedule, &clock, 11_000, 11_000, 300_000);
    let expected: Vec<u64> = (11_000..300_000).step_by(11_000).collect();
    assert_eq!(repairs, expected);
}
