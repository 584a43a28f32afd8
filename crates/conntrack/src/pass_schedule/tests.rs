use super::*;

use std::sync::Arc;

use dataplane::{Endpoints, Service, compile};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use crate::PassError;

const MILLISECOND: Duration = Duration::from_millis(1);

fn dns_at(endpoints: &[&str]) -> Dataplane {
    with_dns(
        Dataplane::new(mk_node(1).build(), mk_config().build()),
        endpoints,
    )
}

fn web_at(endpoint: &str) -> Dataplane {
    let service = mk_service("shop/web").cluster_ip("10.96.0.10");
    let endpoints = mk_endpoints().tcp("http").ready(endpoint, "node-1");
    let without = Dataplane::new(mk_node(1).build(), mk_config().build());
    with(
        without,
        &service.port("http", 80).build(),
        &endpoints.build(),
    )
}

fn with_dns(dataplane: Dataplane, endpoints: &[&str]) -> Dataplane {
    let service = mk_service("kube-system/dns").cluster_ip("10.96.0.53");
    let list = mk_endpoints().udp("dns");
    let list = endpoints.iter().fold(list, |l, at| l.ready(at, "node-1"));
    with(dataplane, &service.udp("dns", 53).build(), &list.build())
}

fn with(mut dataplane: Dataplane, service: &Service, endpoints: &Endpoints) -> Dataplane {
    let rules = compile(service, endpoints, dataplane.node(), dataplane.config());
    dataplane.set(Arc::new(rules));
    dataplane
}

fn failed() -> Outcome {
    let source = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
    Outcome::Failed(PassError::Observe(
        netlink::conntrack::ObserveError::Refused { source },
    ))
}

fn learn(pass_schedule: &mut PassSchedule, programmed: Dataplane, now: Instant) {
    pass_schedule.learn(ProgrammedState::Programmed(programmed), now);
}

/// An agenda with these endpoints whose first pass is complete.
fn cleaned_at(endpoints: &[&str], now: &mut Instant) -> PassSchedule {
    let mut pass_schedule = PassSchedule::new(Family::Ipv4);
    learn(&mut pass_schedule, dns_at(endpoints), *now);
    start(&mut pass_schedule, now).expect("a first pass");
    pass_schedule.finish(&Outcome::Complete, MILLISECOND, *now);
    pass_schedule
}

/// Advances `now` until a pass is due, and starts it.
fn start(pass_schedule: &mut PassSchedule, now: &mut Instant) -> Option<StaleFlows> {
    *now = pass_schedule.due()?.max(*now);
    pass_schedule.start(*now)
}

#[test]
fn the_first_pass_looks_at_everything_and_the_next_at_what_changed() {
    let mut now = Instant::now();
    let mut pass_schedule = PassSchedule::new(Family::Ipv4);
    assert_eq!(pass_schedule.due(), None, "nothing is programmed yet");
    let both = dns_at(&["10.0.1.5:53", "10.0.1.6:53"]);
    learn(&mut pass_schedule, both.clone(), now);
    let first = start(&mut pass_schedule, &mut now).expect("a first pass");
    assert_eq!(first.filters().count(), 3);
    pass_schedule.finish(&Outcome::Complete, MILLISECOND, now);
    assert_eq!(pass_schedule.due(), None);

    learn(&mut pass_schedule, both, now);
    assert!(
        start(&mut pass_schedule, &mut now).is_none(),
        "nothing changed"
    );
    learn(&mut pass_schedule, dns_at(&["10.0.1.6:53"]), now);
    let second = start(&mut pass_schedule, &mut now).expect("an endpoint is gone");
    assert_eq!(second.filters().count(), 1);
}

/// Failure story T19: kubernetes#112604. After any failure, the next pass searches again.
#[test]
fn t19_a_pass_that_failed_is_made_up_for_whatever_came_since() {
    let mut now = Instant::now();
    let mut pass_schedule = PassSchedule::new(Family::Ipv4);
    learn(
        &mut pass_schedule,
        dns_at(&["10.0.1.5:53", "10.0.1.6:53"]),
        now,
    );
    start(&mut pass_schedule, &mut now).expect("a first pass");
    pass_schedule.finish(&Outcome::Complete, MILLISECOND, now);

    learn(&mut pass_schedule, dns_at(&["10.0.1.6:53"]), now);
    start(&mut pass_schedule, &mut now).expect("an endpoint is gone");
    let mut pauses = Vec::new();
    pass_schedule.finish(&failed(), MILLISECOND, now);
    // Meanwhile an endpoint is added, which alone would not require a pass.
    learn(
        &mut pass_schedule,
        dns_at(&["10.0.1.6:53", "10.0.1.7:53"]),
        now,
    );
    for _ in 0..8 {
        let before = now;
        let again = start(&mut pass_schedule, &mut now).expect("it is tried again");
        assert_eq!(again.filters().count(), 1);
        pauses.push((now - before).as_secs());
        pass_schedule.finish(&failed(), MILLISECOND, now);
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    start(&mut pass_schedule, &mut now).expect("it is tried again");
    pass_schedule.finish(&Outcome::Complete, MILLISECOND, now);
    assert_eq!(pass_schedule.due(), None);
}

/// Failure story T39: kubernetes#125467. A resolver waits for seconds; its next try must reach a
/// server that is alive.
#[test]
fn t39_after_quiet_the_first_pass_for_udp_is_at_once() {
    let mut now = Instant::now();
    let mut pass_schedule = cleaned_at(&["10.0.1.5:53", "10.0.1.6:53"], &mut now);
    now += 100 * MILLISECOND;
    let changed = now;
    learn(&mut pass_schedule, dns_at(&["10.0.1.6:53"]), now);
    start(&mut pass_schedule, &mut now).expect("an endpoint is gone");
    assert!(now - changed <= 10 * MILLISECOND, "{:?}", now - changed);
}

/// During a storm of changes, a client whose server is gone waits for the pause: with a table of
/// the default size, about a quarter of a second.
#[test]
fn t39_in_a_storm_a_pass_for_udp_waits_for_the_pause_alone() {
    let mut now = Instant::now();
    let took = 5 * MILLISECOND;
    let mut pass_schedule = cleaned_at(&["10.0.1.5:53"], &mut now);
    for host in 6..100 {
        let changed = now;
        learn(
            &mut pass_schedule,
            dns_at(&[&format!("10.0.1.{host}:53")]),
            now,
        );
        start(&mut pass_schedule, &mut now).expect("its endpoint was replaced");
        let waited = now - changed;
        assert!(waited <= 250 * MILLISECOND, "{waited:?}");
        now += took;
        pass_schedule.finish(&Outcome::Complete, took, now);
    }
}

/// Failure story T44: kubernetes#101607. A SYN is retransmitted a second after the first: by then
/// its flow must be gone, and many changes must have shared the pass.
#[test]
fn t44_connections_that_were_never_answered_are_looked_at_before_they_are_tried_again() {
    let mut now = Instant::now();
    let mut pass_schedule = PassSchedule::new(Family::Ipv4);
    learn(&mut pass_schedule, web_at("10.0.1.4:80"), now);
    start(&mut pass_schedule, &mut now).expect("a first pass");
    pass_schedule.finish(&Outcome::Complete, MILLISECOND, now);
    let changed = now + 100 * MILLISECOND;
    for change in 0..50 {
        now = changed + 10 * MILLISECOND * change;
        learn(
            &mut pass_schedule,
            web_at(&format!("10.0.1.{}:80", 5 + change)),
            now,
        );
        assert!(
            pass_schedule.start(now).is_none(),
            "a pass after {:?}",
            now - changed
        );
    }
    let pass = start(&mut pass_schedule, &mut now).expect("its endpoint was replaced");
    assert_eq!(pass.filters().count(), 1);
    assert!(now - changed <= 800 * MILLISECOND, "{:?}", now - changed);
}

#[test]
fn what_changes_over_udp_does_not_wait_for_what_changed_over_tcp() {
    let mut now = Instant::now();
    let mut pass_schedule = PassSchedule::new(Family::Ipv4);
    let both = |web: &str, dns: &str| with_dns(web_at(web), &[dns]);
    learn(&mut pass_schedule, both("10.0.1.5:80", "10.0.1.5:53"), now);
    start(&mut pass_schedule, &mut now).expect("a first pass");
    pass_schedule.finish(&Outcome::Complete, MILLISECOND, now);
    now += 100 * MILLISECOND;
    learn(&mut pass_schedule, both("10.0.1.6:80", "10.0.1.5:53"), now);
    now += 100 * MILLISECOND;
    let changed = now;
    learn(&mut pass_schedule, both("10.0.1.6:80", "10.0.1.6:53"), now);
    let pass = start(&mut pass_schedule, &mut now).expect("both endpoints were replaced");
    assert!(now - changed <= 10 * MILLISECOND, "{:?}", now - changed);
    assert_eq!(pass.filters().count(), 2, "both are looked at");
}

/// Failure story T41: kubernetes#129982. A large table must not use up a CPU, however often
/// endpoints change.
#[test]
fn t41_passes_take_a_tenth_of_a_cpu_at_most() {
    assert!(share_of_cpu(700 * MILLISECOND) <= 0.1);
    assert!(share_of_cpu(100 * MILLISECOND) <= 0.1);
}

#[test]
fn t41_passes_of_a_table_that_is_not_large_take_a_fiftieth_of_a_cpu_at_most() {
    assert!(share_of_cpu(5 * MILLISECOND) <= 0.02);
}

/// A client of a dead endpoint waits for the next pass; a large table must not make it wait for
/// half a minute.
#[test]
fn t39_a_pause_is_short_as_long_as_passes_are() {
    for took in [1, 20, 50, 100].map(|milliseconds| milliseconds * MILLISECOND) {
        let mut now = Instant::now();
        let mut pass_schedule = cleaned_at(&["10.0.1.5:53"], &mut now);
        learn(&mut pass_schedule, dns_at(&["10.0.1.6:53"]), now);
        start(&mut pass_schedule, &mut now).expect("its endpoint was replaced");
        pass_schedule.finish(&Outcome::Complete, took, now);
        let changed = now;
        learn(&mut pass_schedule, dns_at(&["10.0.1.7:53"]), now);
        start(&mut pass_schedule, &mut now).expect("its endpoint was replaced again");
        assert!(
            now - changed <= Duration::from_secs(1),
            "{:?}",
            now - changed
        );
    }
}

/// The share of a CPU that passes of this duration take when there is always something to do.
fn share_of_cpu(took: Duration) -> f64 {
    let mut now = Instant::now();
    let mut pass_schedule = PassSchedule::new(Family::Ipv4);
    let (begin, mut busy) = (now, Duration::ZERO);
    for round in 0..20 {
        let endpoint = format!("10.0.1.{}:53", 2 + round);
        learn(&mut pass_schedule, dns_at(&[&endpoint]), now);
        start(&mut pass_schedule, &mut now).expect("its endpoint was replaced");
        now += took;
        busy += took;
        let outcome = match round % 2 {
            0 => Outcome::Complete,
            _ => Outcome::BudgetSpent,
        };
        pass_schedule.finish(&outcome, took, now);
    }
    let idle_until = pass_schedule.due().expect("the budget was spent");
    busy.as_secs_f64() / (idle_until - begin).as_secs_f64()
}

/// Failure story T39, kubernetes#125467, in another form: an endpoint that a client was sent to is
/// removed again before any pass, and everything is as it was before.
#[test]
fn t39_a_change_that_is_taken_back_before_its_pass_is_looked_at() {
    let (one, other) = (["10.0.1.5:53"], ["10.0.1.6:53"]);
    let mut now = Instant::now();

    let mut settling = cleaned_at(&one, &mut now);
    learn(&mut settling, dns_at(&other), now);
    learn(&mut settling, dns_at(&one), now);
    let pass = start(&mut settling, &mut now).expect("before it settled");
    assert_eq!(pass.filters().count(), 1);

    let mut failing = cleaned_at(&one, &mut now);
    learn(&mut failing, dns_at(&other), now);
    start(&mut failing, &mut now).expect("an endpoint is gone");
    failing.finish(&failed(), MILLISECOND, now);
    learn(&mut failing, dns_at(&one), now);
    let pass = start(&mut failing, &mut now).expect("after its pass failed");
    assert_eq!(pass.filters().count(), 1);
    failing.finish(&Outcome::Complete, MILLISECOND, now);
    assert_eq!(failing.due(), None);
}

/// Failure story T30: spatiumddi#382. After a repair the rules are as before, but flows created
/// meanwhile are not.
#[test]
fn t30_after_a_time_of_which_nothing_is_known_everything_is_looked_at() {
    let endpoints = ["10.0.1.5:53"];
    let mut now = Instant::now();
    let mut pass_schedule = cleaned_at(&endpoints, &mut now);
    pass_schedule.learn(ProgrammedState::Unknown, now);
    learn(&mut pass_schedule, dns_at(&endpoints), now);
    let pass = start(&mut pass_schedule, &mut now).expect("the same is programmed again");
    assert_eq!(pass.filters().count(), 3);
}

/// After a commit that took effect in part, the rules are unknown. Flows created by them must not
/// be judged by the previous dataplane.
#[test]
fn nothing_is_looked_at_while_it_is_not_known_what_is_programmed() {
    let endpoints = ["10.0.1.5:53"];
    let mut now = Instant::now();
    let mut pass_schedule = cleaned_at(&endpoints, &mut now);
    learn(&mut pass_schedule, dns_at(&[]), now);
    pass_schedule.learn(ProgrammedState::Unknown, now);
    assert_eq!(pass_schedule.due(), None);
    learn(&mut pass_schedule, dns_at(&endpoints), now);
    let pass = start(&mut pass_schedule, &mut now).expect("it is known again");
    pass_schedule.finish(&Outcome::Overtaken, MILLISECOND, now);
    assert_eq!(pass.filters().count(), 3);
    let again = start(&mut pass_schedule, &mut now).expect("it did not come to its end");
    assert_eq!(again.filters().count(), 3);
}
