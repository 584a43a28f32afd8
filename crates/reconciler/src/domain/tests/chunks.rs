//! Changes that are larger than one round programs.

use dataplane::ChunkSize;

use super::*;

/// Two frontends with their endpoints.
const SIZE: ChunkSize = ChunkSize::new(4);

fn chunked(kernel: &FakeKernel) -> FakeBackend {
    kernel.backend(IPV4).with_chunk_size(SIZE)
}

fn many(count: u8) -> Vec<Arc<ServiceRules>> {
    let names = (0..count).map(|number| (number, format!("shop/web-{number}")));
    names
        .map(|(number, name)| service(&name, number, &[8080]))
        .collect()
}

/// T85: what comes while a large change is under way waits for one part of it, not for all.
#[test]
fn t85_a_change_during_a_large_one_waits_for_one_part() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut families = Reconciler::new(vec![chunked(&kernel)]);
    let mut services = many(10);
    families.round(&dataplane(&services[..1]), Reason::Startup, &clock);

    let rounds = families.round(&dataplane(&services), Reason::Changed, &clock);
    assert_eq!(rounds[0].outcome, Outcome::Partial);
    assert!(!rounds[0].succeeded());
    assert_eq!(families.sequel(), Sequel::Unfinished);
    assert_eq!(kernel.rules(IPV4).frontends.len(), 3);

    services.insert(0, service("zoo/last", 99, &[8080]));
    families.round(&dataplane(&services), Reason::Changed, &clock);
    let mut outcomes = Vec::new();
    while families.sequel() == Sequel::Unfinished {
        let rounds = families.round(&dataplane(&services), Reason::Continued, &clock);
        outcomes.push(rounds[0].outcome.clone());
    }
    assert_eq!(outcomes.last(), Some(&Outcome::Committed));
    assert_eq!(outcomes.len(), 3, "{outcomes:?}");
    assert_eq!(families.sequel(), Sequel::Settled);
    assert_held(&kernel, &dataplane(&services));
    assert_eq!(kernel.observations(), 1, "nothing was in doubt");
}

/// T94: what is small and comes while a part of a large change is under way is the next round, and the
/// rest goes on behind it however many small ones come.
#[test]
fn t94_a_small_change_goes_between_two_parts_of_a_large_one() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = kernel.backend(IPV4).with_chunk_size(ChunkSize::new(32));
    let mut domain = Domain::new(backend);
    let ports = [8080, 8081, 8082, 8083];
    let large = (1..21).map(|number| service(&format!("shop/web-{number}"), number, &ports));
    let mut services = many(1);
    domain.round(&dataplane(&services), Reason::Startup, &clock);
    services.extend(large);
    let mut written = Vec::new();
    for number in 100..104 {
        let before = kernel.rules(IPV4).frontends.len();
        domain.round(&dataplane(&services), Reason::Changed, &clock);
        assert!(domain.is_unfinished());
        written.push(kernel.rules(IPV4).frontends.len() - before);
        services.push(service(&format!("zoo/{number}"), number, &[8080]));
    }
    // Six Services of five; one small one; another and six; one.
    assert_eq!(written, [6, 1, 7, 1]);
}

/// Nobody is served before it is over, and it is over soonest in one round.
#[test]
fn a_start_is_one_round() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut domain = Domain::new(chunked(&kernel));
    let desired = dataplane(&many(5));
    let round = domain.round(&desired, Reason::Startup, &clock);
    assert_eq!(round.outcome, Outcome::Committed);
    assert_held(&kernel, &desired);
}

/// Rules that were read are replaced at once: which of them are a Service's is not known.
#[test]
fn a_restart_in_the_middle_of_a_large_change_completes_it() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let (one, desired) = (dataplane(&many(1)), dataplane(&many(7)));
    let mut before = Domain::new(chunked(&kernel));
    before.round(&one, Reason::Startup, &clock);
    before.round(&desired, Reason::Changed, &clock);
    assert_eq!(kernel.rules(IPV4).frontends.len(), 3);
    assert!(!before.answers(Reason::Retry));
    assert!(before.answers(Reason::Continued));

    let mut after = Domain::new(chunked(&kernel));
    let round = after.round(&desired, Reason::Startup, &clock);
    assert_eq!(round.outcome, Outcome::Committed);
    assert_held(&kernel, &desired);
}

/// The Service is looked for in the whole change; the rest of it is programmed in the same round.
#[test]
fn t25_a_service_that_is_refused_in_a_large_change_fails_alone() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let refused = "shop/web-3";
    let backend = Faulty::new(chunked(&kernel), move |call| match call {
        Call::Commit { suspects, .. } if has(suspects, refused) => Fate::Refuse(Recovery::Isolate),
        _ => Fate::Pass,
    });
    let mut domain = Domain::new(backend);
    let (one, desired) = (dataplane(&many(1)), dataplane(&many(9)));
    let mut rounds = 1;
    domain.round(&one, Reason::Startup, &clock);
    domain.round(&desired, Reason::Changed, &clock);
    while domain.is_unfinished() {
        domain.round(&desired, Reason::Continued, &clock);
        rounds += 1;
    }
    assert!(rounds <= 5, "{rounds}");
    let status = domain.status();
    assert_eq!(status.standing(), Standing::PartlyProgrammed);
    assert_eq!(status.quarantined[0].service.to_string(), refused);
    assert_eq!(kernel.rules(IPV4).frontends.len(), 8);
}

#[test]
fn a_part_that_fails_is_tried_again_after_a_while_and_not_at_once() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut number = 0;
    let backend = Faulty::new(chunked(&kernel), move |call| match call {
        Call::Commit { .. } => {
            number += 1;
            match number {
                3 => Fate::Refuse(Recovery::Retry),
                _ => Fate::Pass,
            }
        }
        Call::Observe | Call::Removal => Fate::Pass,
    });
    let mut families = Reconciler::new(vec![backend]);
    let (one, desired) = (dataplane(&many(1)), dataplane(&many(6)));
    families.round(&one, Reason::Startup, &clock);
    families.round(&desired, Reason::Changed, &clock);
    families.round(&desired, Reason::Continued, &clock);
    assert_eq!(families.sequel(), Sequel::Retry { retries: 0 });

    families.round(&desired, Reason::Retry, &clock);
    assert_eq!(families.sequel(), Sequel::Unfinished);
    families.round(&desired, Reason::Continued, &clock);
    assert_eq!(families.sequel(), Sequel::Settled);
    assert_held(&kernel, &desired);
}

fn has(suspects: &[&ServiceRules], name: &str) -> bool {
    let mut rules = suspects.iter();
    rules.any(|rules| rules.service.to_string() == name)
}
