mod change_beside_drift;
mod withdrawal;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use backend::{Actor, ExternalChange, Leftover, Recovery};
use dataplane::{Dataplane, Family, ServiceKey, compile};
use testkit::{
    Call, CallOutcome, FakeBackend, FakeKernel, FakeRules, Faulty, mk_config, mk_endpoints,
    mk_node, mk_service,
};

use super::{
    Activity, Command, CommandSource, Desired, LoopEvent, Permission, Received, Reply, Resync,
    RunningSync, Settings, command_receiver,
};
use crate::fake_clock::FakeClock;
use crate::{Clock, FamilyCondition, Periods, Reason, Reconciler, Report, Stamps, run};

/// Commands and the milliseconds at which they arrive. Waiting for a command advances the clock.
struct Script {
    clock: FakeClock,
    commands: VecDeque<(u64, Command)>,
}

impl CommandSource for Script {
    fn receive(&mut self, wait: Option<Duration>) -> Received {
        let now = self.clock.elapsed();
        let next = self
            .commands
            .front()
            .map(|(at, _)| Duration::from_millis(*at));
        match (next, wait.map(|wait| now + wait)) {
            (Some(next), until) if until.is_none_or(|until| next <= until) => {
                self.clock.advance(next.saturating_sub(now));
                let (_, command) = self.commands.pop_front().expect("there is a next one");
                Received::Command(command)
            }
            (_, Some(until)) => {
                self.clock.advance(until.saturating_sub(now));
                Received::Nothing
            }
            (None, None) => Received::Closed,
            (Some(_), None) => unreachable!("without an end, the next one is waited for"),
        }
    }
}

const SETTINGS: Settings = Settings {
    periods: Periods {
        min_sync_period: Duration::from_millis(100),
        sync_period: Duration::from_secs(30),
    },
    permission: Permission::Active,
};
const PAUSED: Settings = Settings {
    permission: Permission::Paused,
    ..SETTINGS
};

/// One Service with these endpoints.
fn web(ports: impl IntoIterator<Item = u16>) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let service = mk_service("shop/web").cluster_ip("10.96.0.10").port("", 80);
    let mut endpoints = mk_endpoints().tcp("");
    for port in ports {
        endpoints = endpoints.ready(&format!("10.0.1.5:{port}"), "node-1");
    }
    let rules = compile(&service.build(), &endpoints.build(), &node, &config);
    let mut dataplane = Dataplane::new(node, config);
    dataplane.set(Arc::new(rules));
    dataplane
}

/// The inputs of a loop under test: its clock, its kernel, its commands and its settings.
struct Story {
    clock: FakeClock,
    kernel: FakeKernel,
    commands: VecDeque<(u64, Command)>,
    settings: Settings,
}

impl Story {
    fn new() -> Story {
        Story {
            clock: FakeClock::new(),
            kernel: FakeKernel::new(),
            commands: VecDeque::new(),
            settings: SETTINGS,
        }
    }

    fn at(mut self, milliseconds: u64, command: Command) -> Story {
        self.commands.push_back((milliseconds, command));
        self
    }

    fn wants(self, milliseconds: u64, dataplane: Dataplane) -> Story {
        let stamps = Stamps {
            received_at: self.clock.at(Duration::from_millis(milliseconds)),
            compile: Duration::from_micros(10),
            triggers: Vec::new(),
        };
        self.at(
            milliseconds,
            Command::Desired(Desired { dataplane, stamps }),
        )
    }

    /// Runs the loop and stops it at this millisecond.
    fn until(self, end: u64) -> Vec<Report> {
        let backend = Faulty::new(self.kernel.backend(Family::Ipv4), |_| CallOutcome::Pass);
        self.until_with(end, backend)
    }

    fn until_with(self, end: u64, backend: Faulty<FakeBackend>) -> Vec<Report> {
        self.until_with_families(end, vec![backend])
    }

    fn until_with_families(self, end: u64, families: Vec<Faulty<FakeBackend>>) -> Vec<Report> {
        let story = self.at(end, Command::Stop);
        let mut reports = Vec::new();
        let mut command_source = Script {
            clock: story.clock.clone(),
            commands: story.commands,
        };
        let mut families = Reconciler::new(families);
        run(
            &mut families,
            story.settings,
            &mut command_source,
            &story.clock,
            |news| {
                if let LoopEvent::Report(report, _) = news {
                    reports.push(report);
                }
            },
        );
        reports
    }
}

/// When each sync began, in milliseconds, and why.
fn syncs(reports: &[Report]) -> Vec<(u64, Reason)> {
    let zero = FakeClock::new().wall_time();
    let finished = reports.iter().flat_map(|report| &report.finished);
    finished
        .map(|sync| {
            let since = sync.started.duration_since(zero).expect("time goes on");
            let since = u64::try_from(since.as_millis()).expect("a test is short");
            (since, sync.reason)
        })
        .collect()
}

/// T73 (kind#1707, k/k#138073): a hundred updates at once make two syncs, and an endpoint removed
/// by them is gone without delay.
#[test]
fn t73_a_burst_is_coalesced_and_the_first_removal_is_immediate() {
    let all = 8000..8200;
    let mut story = Story::new().wants(0, web(all.clone()));
    let kernel = story.kernel.clone();
    // The first adds, the others remove one after the other.
    story = story.wants(5000, web(7999..8200));
    for removed in 1..100u16 {
        story = story.wants(5000 + u64::from(removed) / 10, web(8000 + removed..8200));
    }
    let reports = story.until(6000);

    assert_eq!(
        syncs(&reports),
        [
            (0, Reason::Startup),
            (5000, Reason::Changed),
            (5001, Reason::Changed),
            (5101, Reason::Changed),
        ]
    );
    let held = kernel.rules(Family::Ipv4);
    assert_eq!(held, FakeRules::render(&web(8099..8200), Family::Ipv4));
}

#[test]
fn additions_in_a_burst_wait_for_min_sync_period() {
    let mut story = Story::new().wants(0, web(8000..8001));
    for added in 1..=100u16 {
        story = story.wants(5000 + u64::from(added), web(8000..8001 + added));
    }
    assert_eq!(
        syncs(&story.until(6000)),
        [
            (0, Reason::Startup),
            (5001, Reason::Changed),
            (5101, Reason::Changed),
        ]
    );
}

#[test]
fn a_failure_is_retried_without_another_change() {
    let story = Story::new().wants(0, web([8080]));
    let kernel = story.kernel.clone();
    let mut left = 3;
    let busy = Faulty::new(kernel.backend(Family::Ipv4), move |call| match call {
        Call::Commit { .. } if left > 0 => {
            left -= 1;
            CallOutcome::Refuse(Recovery::Retry)
        }
        _ => CallOutcome::Pass,
    });
    let reports = story.until_with(5000, busy);
    assert_eq!(
        syncs(&reports),
        [
            (0, Reason::Startup),
            (100, Reason::Retry),
            (200, Reason::Retry),
            (400, Reason::Retry),
        ]
    );
    let last = reports.last().expect("there were syncs");
    assert_eq!(last.families[0].condition(), FamilyCondition::Programmed);
}

#[test]
fn latency_counts_from_the_oldest_change_and_leaves_the_start_out() {
    let reports = Story::new()
        .wants(0, web([8080]))
        .wants(5000, web([8080, 8081]))
        .wants(5010, web([8080, 8081, 8082]))
        .wants(5020, web([8080, 8081, 8082, 8083]))
        .until(6000);
    let latencies: Vec<_> = reports
        .iter()
        .flat_map(|report| &report.latencies)
        .collect();
    let millis: Vec<u128> = latencies
        .iter()
        .map(|latency| latency.received_to_commit.as_millis())
        .collect();
    assert_eq!(millis, [0, 90], "the third change waited for less");
    assert_eq!(latencies[1].compile, Duration::from_micros(20));
}

/// T64 (k/k#82378): triggers from before the start are not latencies, and clocks that are ahead
/// never give a negative latency.
#[test]
fn a_trigger_in_the_future_counts_as_now() {
    let mut story = Story::new().wants(0, web([8080]));
    let stamps = |clock: &FakeClock| Stamps {
        received_at: clock.at(Duration::from_millis(5000)),
        compile: Duration::ZERO,
        triggers: vec![
            clock.wall_time() + Duration::from_millis(4000),
            clock.wall_time() + Duration::from_secs(3600),
        ],
    };
    let desired = Desired {
        dataplane: web([8081]),
        stamps: stamps(&story.clock),
    };
    story = story.at(5000, Command::Desired(desired));
    let reports = story.until(6000);
    let latency = reports.iter().flat_map(|report| &report.latencies).next();
    let latency = latency.expect("the second change was programmed");
    assert_eq!(
        latency.trigger_to_commit,
        [Duration::from_secs(1), Duration::ZERO]
    );
}

#[test]
fn a_paused_loop_keeps_what_is_programmed_and_says_so() {
    let story = Story::new()
        .wants(0, web([8080]))
        .at(1000, Command::Settings(PAUSED))
        .wants(2000, web([8081]))
        .at(3000, Command::Drifted(ExternalChange::possible()));
    let kernel = story.kernel.clone();
    let reports = story.until(600_000);
    assert_eq!(syncs(&reports), [(0, Reason::Startup)]);
    let last = reports.last().expect("the pause was reported");
    assert_eq!(last.activity, Activity::Paused);
    let held = kernel.rules(Family::Ipv4);
    assert_eq!(held, FakeRules::render(&web([8080]), Family::Ipv4));
}

#[test]
fn a_resumed_loop_programs_what_is_desired_by_then_at_once() {
    let story = Story::new()
        .wants(0, web([8080]))
        .at(1000, Command::Settings(PAUSED))
        .wants(2000, web([8081]))
        .wants(3000, web([8082]))
        .at(4000, Command::Settings(SETTINGS));
    let kernel = story.kernel.clone();
    let reports = story.until(5000);
    assert_eq!(
        syncs(&reports),
        [(0, Reason::Startup), (4000, Reason::Changed)]
    );
    let held = kernel.rules(Family::Ipv4);
    assert_eq!(held, FakeRules::render(&web([8082]), Family::Ipv4));
}

#[test]
fn a_loop_that_starts_paused_touches_nothing() {
    let mut story = Story::new().wants(0, web([8080]));
    story.settings = PAUSED;
    let kernel = story.kernel.clone();
    let reports = story.until(60_000);
    assert_eq!(reports[0].activity, Activity::Paused);
    assert_eq!((kernel.commits(), kernel.observations()), (0, 0));
}

/// A reply that stores the outcome.
fn reply() -> (Reply, Arc<Mutex<Option<Resync>>>) {
    let slot = Arc::new(Mutex::new(None));
    let other = Arc::clone(&slot);
    let reply = Reply::new(move |resync| {
        *other.lock().unwrap_or_else(PoisonError::into_inner) = Some(resync);
    });
    (reply, slot)
}

#[test]
fn a_resync_is_answered_with_what_it_found() {
    let (reply, answer) = reply();
    let story = Story::new()
        .wants(0, web([8080]))
        .at(50, Command::Resync(reply));
    story.until(1000);
    let answer = answer.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(Resync::Done(syncs)) = answer else {
        panic!("no answer: {answer:?}");
    };
    assert_eq!(syncs[0].reason, Reason::Requested);
}

#[test]
fn a_resync_of_a_paused_loop_is_answered_with_no() {
    let ((waiting, first), (late, second)) = (reply(), reply());
    let story = Story::new()
        .at(0, Command::Resync(waiting))
        .at(10, Command::Settings(PAUSED))
        .at(20, Command::Resync(late));
    story.until(1000);
    for answer in [first, second] {
        let answer = answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        assert!(matches!(answer, Some(Resync::Paused)), "{answer:?}");
    }
}

#[test]
fn drift_that_was_noticed_is_repaired_before_the_timer() {
    let story = Story::new()
        .wants(0, web([8080]))
        .at(7000, Command::Drifted(ExternalChange::possible()));
    let kernel = story.kernel.clone();
    let mut tampered = false;
    let script_kernel = kernel.clone();
    let backend = Faulty::new(kernel.backend(Family::Ipv4), move |call| {
        // The first read after the start is the check for drift: by then another program has
        // flushed.
        if matches!(call, Call::Observe) && script_kernel.commits() == 1 && !tampered {
            tampered = true;
            script_kernel.tamper(Family::Ipv4, |rules| *rules = FakeRules::default());
        }
        CallOutcome::Pass
    });
    let reports = story.until_with(8000, backend);
    assert_eq!(
        syncs(&reports),
        [(0, Reason::Startup), (7000, Reason::Drift)]
    );
    let held = kernel.rules(Family::Ipv4);
    assert_eq!(held, FakeRules::render(&web([8080]), Family::Ipv4));
    let last = reports.last().expect("there were syncs");
    assert_eq!(last.families[0].drifts, 1);
}

/// T38: a program flushes every 200 milliseconds for ten seconds. The report names it once, while
/// it lasts, and says that it is over without any further event.
#[test]
fn t38_a_contest_is_reported_while_it_lasts() {
    let mut story = Story::new().wants(0, web([8080]));
    let actor = Actor {
        program: "firewalld".to_owned(),
        process: 815,
    };
    for flush in 0..50 {
        let external_change = ExternalChange {
            families: Family::ALL.into(),
            actor: Some(actor.clone()),
        };
        story = story.at(1000 + 200 * flush, Command::Drifted(external_change));
    }
    let kernel = story.kernel.clone();
    let script_kernel = kernel.clone();
    let backend = Faulty::new(kernel.backend(Family::Ipv4), move |call| {
        if matches!(call, Call::Observe) && script_kernel.commits() > 0 {
            script_kernel.tamper(Family::Ipv4, |rules| *rules = FakeRules::default());
        }
        CallOutcome::Pass
    });
    let reports = story.until_with(29_000, backend);

    let repairs = reports.iter().flat_map(|report| &report.finished).count() - 1;
    assert!((6..12).contains(&repairs), "{repairs} repairs");
    let mut backoffs: Vec<_> = reports
        .iter()
        .map(|report| &report.repair_backoff)
        .collect();
    backoffs.dedup();
    let [None, Some(repair_backoff), None] = backoffs[..] else {
        panic!("{backoffs:?}");
    };
    assert_eq!(
        (repair_backoff.repairs, &repair_backoff.actor),
        (6, &Some(actor))
    );
}

/// A program flushed once, long ago. Lost notifications since then, again and again, do not mean
/// that a program keeps changing the rules.
#[test]
fn no_program_is_reported_to_contest_what_no_program_has_changed() {
    let flush = ExternalChange {
        families: Family::ALL.into(),
        actor: Some(Actor {
            program: "firewalld".to_owned(),
            process: 815,
        }),
    };
    let mut story = Story::new()
        .wants(0, web([8080]))
        .at(1000, Command::Drifted(flush));
    for missed in 0..20 {
        let command = Command::Drifted(ExternalChange::possible());
        story = story.at(100_000 + 1000 * missed, command);
    }
    let (kernel, clock) = (story.kernel.clone(), story.clock.clone());
    let backend = Faulty::new(story.kernel.backend(Family::Ipv4), move |call| {
        match call {
            Call::Observe if clock.elapsed() == Duration::from_secs(1) => {
                kernel.tamper(Family::Ipv4, |rules| *rules = FakeRules::default());
            }
            // Changes nothing, but makes drift possible.
            Call::Observe => kernel.tamper(Family::Ipv4, |_| ()),
            Call::Commit { .. } | Call::Removal => {}
        }
        CallOutcome::Pass
    });
    let reports = story.until_with(120_000, backend);
    let last = reports.last().expect("there were syncs");
    assert_eq!(last.families[0].drifts, 1);
    let looks = syncs(&reports);
    let looks = looks.iter().filter(|(_, reason)| *reason == Reason::Drift);
    assert_eq!(looks.count(), 21);
    assert!(reports.iter().all(|report| report.repair_backoff.is_none()));
}

/// While the loop is paused it repairs nothing, so no repair is delayed and no report says so.
#[test]
fn a_contest_ends_with_a_pause() {
    let mut story = Story::new().wants(0, web([8080]));
    for flush in 0..50 {
        let command = Command::Drifted(ExternalChange::possible());
        story = story.at(1000 + 200 * flush, command);
    }
    story = story.at(11_000, Command::Settings(PAUSED));
    let script_kernel = story.kernel.clone();
    let backend = Faulty::new(story.kernel.backend(Family::Ipv4), move |call| {
        if matches!(call, Call::Observe) && script_kernel.commits() > 0 {
            script_kernel.tamper(Family::Ipv4, |rules| *rules = FakeRules::default());
        }
        CallOutcome::Pass
    });
    let reports = story.until_with(600_000, backend);
    let (last, before) = reports.split_last().expect("there were syncs");
    let before = before.last().expect("there were syncs");
    assert!(before.repair_backoff.is_some());
    assert_eq!(
        (last.activity, &last.repair_backoff),
        (Activity::Paused, &None)
    );
}

#[test]
fn a_sync_is_reported_of_before_the_kernel_is_asked_anything_and_again_when_it_has_ended() {
    let (clock, kernel) = (FakeClock::new(), FakeKernel::new());
    let story = Story::new().wants(0, web([8080])).at(1000, Command::Stop);
    let mut command_source = Script {
        clock: clock.clone(),
        commands: story.commands,
    };
    let mut families = Reconciler::new(vec![kernel.backend(Family::Ipv4)]);
    let mut reported = Vec::new();
    run(
        &mut families,
        SETTINGS,
        &mut command_source,
        &clock,
        |news| {
            reported.push(match news {
                LoopEvent::Began(running_sync) => (Some(running_sync), kernel.observations()),
                LoopEvent::Report(..) => (None, kernel.observations()),
            });
        },
    );
    let began = RunningSync {
        reason: Reason::Startup,
        since: FakeClock::new().wall_time(),
    };
    assert_eq!(reported, [(Some(began), 0), (None, 1)]);
}

#[test]
fn nothing_is_written_before_anything_is_desired() {
    let story = Story::new().at(10, Command::Drifted(ExternalChange::possible()));
    let kernel = story.kernel.clone();
    assert!(story.until(100_000).is_empty());
    assert_eq!((kernel.commits(), kernel.observations()), (0, 0));
}

#[test]
fn the_loop_ends_when_no_sender_is_left() {
    let (clock, kernel) = (FakeClock::new(), FakeKernel::new());
    let (sender, mut receiver) = command_receiver();
    let stamps = Stamps {
        received_at: clock.now(),
        compile: Duration::ZERO,
        triggers: Vec::new(),
    };
    let dataplane = web([8080]);
    let command = Command::Desired(Desired { dataplane, stamps });
    sender.send(command);
    let mut sender = Some(sender);
    let mut families = Reconciler::new(vec![kernel.backend(Family::Ipv4)]);
    run(&mut families, SETTINGS, &mut receiver, &clock, |news| {
        if let LoopEvent::Report(report, _) = news
            && !report.finished.is_empty()
        {
            sender = None;
        }
    });
    assert_eq!(
        families.status()[0].condition(),
        FamilyCondition::Programmed
    );
    let service = ServiceKey::new("shop", "web");
    let programmed = families.status()[0].programmed.clone();
    assert!(programmed.is_some_and(|plane| plane.services().get(&service).is_some()));
}
