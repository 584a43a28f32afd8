use super::*;

use std::sync::Arc;

use dataplane::compile;
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use crate::PassError;

const MILLISECOND: Duration = Duration::from_millis(1);

fn dns_at(endpoints: &[&str]) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let service = mk_service("kube-system/dns")
        .cluster_ip("10.96.0.53")
        .udp("dns", 53)
        .build();
    let list = mk_endpoints().udp("dns");
    let list = endpoints.iter().fold(list, |l, at| l.ready(at, "node-1"));
    let rules = compile(&service, &list.build(), &node, &config);
    let mut dataplane = Dataplane::new(node, config);
    dataplane.set(Arc::new(rules));
    dataplane
}

fn failed() -> Outcome {
    let source = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
    Outcome::Failed(PassError::Observe(
        netlink::conntrack::ObserveError::Refused { source },
    ))
}

fn learn(agenda: &mut Agenda, programmed: Dataplane, now: Instant) {
    agenda.learn(Knowledge::Programmed(programmed), now);
}

/// An agenda whose first pass is over, with these endpoints.
fn cleaned_at(endpoints: &[&str], now: &mut Instant) -> Agenda {
    let mut agenda = Agenda::new(Family::Ipv4);
    learn(&mut agenda, dns_at(endpoints), *now);
    start(&mut agenda, now).expect("a first pass");
    agenda.finish(&Outcome::Complete, MILLISECOND, *now);
    agenda
}

/// Lets time pass until something is due, and starts it.
fn start(agenda: &mut Agenda, now: &mut Instant) -> Option<Watchlist> {
    *now = agenda.due()?.max(*now);
    agenda.start(*now)
}

#[test]
fn the_first_pass_looks_at_everything_and_the_next_at_what_changed() {
    let mut now = Instant::now();
    let mut agenda = Agenda::new(Family::Ipv4);
    assert_eq!(agenda.due(), None, "nothing is programmed yet");
    let both = dns_at(&["10.0.1.5:53", "10.0.1.6:53"]);
    learn(&mut agenda, both.clone(), now);
    let first = start(&mut agenda, &mut now).expect("a first pass");
    assert_eq!(first.filters().count(), 3);
    agenda.finish(&Outcome::Complete, MILLISECOND, now);
    assert_eq!(agenda.due(), None);

    learn(&mut agenda, both, now);
    assert!(start(&mut agenda, &mut now).is_none(), "nothing changed");
    learn(&mut agenda, dns_at(&["10.0.1.6:53"]), now);
    let second = start(&mut agenda, &mut now).expect("an endpoint is gone");
    assert_eq!(second.filters().count(), 1);
}

/// Failure story T19: kubernetes#112604. Whatever fails, or is skipped over, is looked for again.
#[test]
fn t19_a_pass_that_failed_is_made_up_for_whatever_came_since() {
    let mut now = Instant::now();
    let mut agenda = Agenda::new(Family::Ipv4);
    learn(&mut agenda, dns_at(&["10.0.1.5:53", "10.0.1.6:53"]), now);
    start(&mut agenda, &mut now).expect("a first pass");
    agenda.finish(&Outcome::Complete, MILLISECOND, now);

    learn(&mut agenda, dns_at(&["10.0.1.6:53"]), now);
    start(&mut agenda, &mut now).expect("an endpoint is gone");
    let mut pauses = Vec::new();
    agenda.finish(&failed(), MILLISECOND, now);
    // An endpoint comes meanwhile, for which alone nothing would be looked at.
    learn(&mut agenda, dns_at(&["10.0.1.6:53", "10.0.1.7:53"]), now);
    for _ in 0..8 {
        let before = now;
        let again = start(&mut agenda, &mut now).expect("it is tried again");
        assert_eq!(again.filters().count(), 1);
        pauses.push((now - before).as_secs());
        agenda.finish(&failed(), MILLISECOND, now);
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    start(&mut agenda, &mut now).expect("it is tried again");
    agenda.finish(&Outcome::Complete, MILLISECOND, now);
    assert_eq!(agenda.due(), None);
}

/// Failure story T41: kubernetes#129982. A large table must not take a CPU, however often
/// endpoints change.
#[test]
fn t41_passes_take_a_tenth_of_a_cpu_at_most() {
    let mut now = Instant::now();
    let mut agenda = Agenda::new(Family::Ipv4);
    let (begin, mut busy) = (now, Duration::ZERO);
    let took = Duration::from_millis(700);
    for round in 0..20 {
        let endpoint = format!("10.0.1.{}:53", 2 + round);
        learn(&mut agenda, dns_at(&[&endpoint]), now);
        start(&mut agenda, &mut now).expect("its endpoint was replaced");
        now += took;
        busy += took;
        let outcome = match round % 2 {
            0 => Outcome::Complete,
            _ => Outcome::BudgetSpent,
        };
        agenda.finish(&outcome, took, now);
    }
    let idle_until = agenda.due().expect("the budget was spent");
    assert!(busy * 10 <= idle_until - begin);
}

/// Failure story T39, kubernetes#125467, in disguise: an endpoint that a client was sent to is gone
/// again before anybody has looked, and everything is as it was.
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

/// Failure story T30: spatiumddi#382. What was repaired is as it was; flows that were made meanwhile
/// are not.
#[test]
fn t30_after_a_time_of_which_nothing_is_known_everything_is_looked_at() {
    let endpoints = ["10.0.1.5:53"];
    let mut now = Instant::now();
    let mut agenda = cleaned_at(&endpoints, &mut now);
    agenda.learn(Knowledge::Unknown, now);
    learn(&mut agenda, dns_at(&endpoints), now);
    let pass = start(&mut agenda, &mut now).expect("the same is programmed again");
    assert_eq!(pass.filters().count(), 3);
}

/// Of a commit that took effect by half nobody knows the rules, and flows that were made by them
/// are not to be judged by those before.
#[test]
fn nothing_is_looked_at_while_it_is_not_known_what_is_programmed() {
    let endpoints = ["10.0.1.5:53"];
    let mut now = Instant::now();
    let mut agenda = cleaned_at(&endpoints, &mut now);
    learn(&mut agenda, dns_at(&[]), now);
    agenda.learn(Knowledge::Unknown, now);
    assert_eq!(agenda.due(), None);
    learn(&mut agenda, dns_at(&endpoints), now);
    let pass = start(&mut agenda, &mut now).expect("it is known again");
    agenda.finish(&Outcome::Overtaken, MILLISECOND, now);
    assert_eq!(pass.filters().count(), 3);
    let again = start(&mut agenda, &mut now).expect("it did not come to its end");
    assert_eq!(again.filters().count(), 3);
}
