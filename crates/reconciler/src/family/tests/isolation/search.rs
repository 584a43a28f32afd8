//! The search for Services that the kernel refuses, beside the changes of others.

use dataplane::PartSize;

use super::*;

/// What the kernel is asked to take, in a test that counts.
type Count = Arc<AtomicUsize>;

/// A Service of which there may be thousands.
pub(super) fn numbered(name: &str, number: u16, port: u16) -> Arc<ServiceRules> {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let [high, low] = number.to_be_bytes();
    let address = format!("10.97.{high}.{low}");
    let service = mk_service(name).cluster_ip(&address).port("", 80).build();
    let target = format!("10.0.1.5:{port}");
    let endpoints = mk_endpoints().tcp("").ready(&target, "node-1").build();
    Arc::new(compile(&service, &endpoints, &node, &config))
}

/// `count` Services of one tenant, and two of others, which come before and after them by name.
pub(super) fn tenant_and_others(count: u16, of_tenant: u16, of_others: u16) -> Dataplane {
    let tenant = (0..count).map(|n| numbered(&format!("mmm/service-{n:04}"), n, of_tenant));
    dataplane(&tenant.chain(others(of_others)).collect::<Vec<_>>())
}

fn others(port: u16) -> impl Iterator<Item = Arc<ServiceRules>> {
    let others = [("aaa/web", 5000), ("zzz/web", 5001)];
    others
        .into_iter()
        .map(move |(name, number)| numbered(name, number, port))
}

/// Three Services in each of a hundred namespaces, and those of others.
fn tenants_and_others(of_tenants: u16, of_others: u16) -> Dataplane {
    let tenants = (0..300).map(|n| numbered(&format!("m{:03}/web-{n}", n / 3), n, of_tenants));
    dataplane(&tenants.chain(others(of_others)).collect::<Vec<_>>())
}

/// A backend whose commits take ten milliseconds, of which three are one part. Each of those that
/// contain a refused Service ends like `fate`.
pub(super) fn slow(
    backend: FakeBackend,
    clock: &FakeClock,
    fate: CallOutcome,
) -> Faulty<FakeBackend> {
    slow_in_turn(backend, clock, vec![fate])
}

/// The same, with one of `fates` after the other.
pub(super) fn slow_in_turn(
    backend: FakeBackend,
    clock: &FakeClock,
    fates: Vec<CallOutcome>,
) -> Faulty<FakeBackend> {
    let mut fates = fates.into_iter().cycle();
    let clock = clock.clone();
    let backend = backend.with_longest_part(Duration::from_millis(30));
    Faulty::new(backend, move |call| match call {
        Call::Commit { suspects, .. } => {
            clock.advance(Duration::from_millis(10));
            match suspects.iter().any(|rules| is_unprogrammable(rules)) {
                true => fates.next().unwrap_or(CallOutcome::Pass),
                false => CallOutcome::Pass,
            }
        }
        Call::Observe | Call::Removal => CallOutcome::Pass,
    })
}

const NEVER: CallOutcome = CallOutcome::Refuse(Recovery::Isolate);

/// T384: a tenant's Services, all refused, came first in the search and used up what one search may
/// try. Other Services that had changed in the same sync were held back with the rest, every time.
#[test]
fn t384_many_refused_services_hold_back_no_other() {
    type World = fn(u16, u16) -> Dataplane;
    let worlds: [World; 2] = [|a, b| tenant_and_others(300, a, b), tenants_and_others];
    for world in worlds {
        let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
        let mut family = FamilyReconciler::new(refusing(&kernel));
        family.sync(&world(8080, 8080), Reason::Startup, &clock);
        for (round, port) in (9090..9094).enumerate() {
            let desired = world(UNPROGRAMMABLE, port);
            let reason = [Reason::Changed, Reason::Timer][round % 2];
            family.sync(&desired, reason, &clock);
            assert_held(&kernel, &world(8080, port));
            finish(&mut family, &desired, &clock);
            assert_held(&kernel, &world(8080, port));
            let status = family.status();
            assert_eq!(status.condition(), FamilyCondition::PartlyProgrammed);
            assert_eq!(status.quarantined.len(), 300);
        }
    }
}

/// T384, at a start, and for Services of the same namespace.
#[test]
fn t384_services_among_many_refused_ones_are_all_served_in_the_end() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(refusing(&kernel));
    let among = (0..520u16).map(|n| {
        let port = [8080, UNPROGRAMMABLE][usize::from(n % 2)];
        numbered(&format!("mmm/service-{n:04}"), n, port)
    });
    let elsewhere = (520..600u16).map(|n| {
        let before_or_after = ["aa", "nn"][usize::from(n % 2)];
        numbered(&format!("{before_or_after}{}/web-{n}", n % 10), n, 8080)
    });
    let desired = dataplane(&among.chain(elsewhere).collect::<Vec<_>>());

    family.sync(&desired, Reason::Startup, &clock);
    finish(&mut family, &desired, &clock);
    let held = quarantined(&family);
    assert!(held.iter().all(|name| name.starts_with("mmm/")), "{held:?}");
    for _ in 0..2 {
        family.sync(&desired, Reason::Timer, &clock);
        finish(&mut family, &desired, &clock);
    }

    assert_eq!(quarantined(&family).len(), 260);
    assert_eq!(kernel.rules(IPV4).frontends.len(), 340);
}

/// T384: a Service that was refused before is tried apart from others, when it changes and when the
/// timer tries it again, and in few commits if it has not changed.
#[test]
fn t384_refused_services_are_no_part_of_others_changes() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let (mixed, refused) = (Count::default(), Count::default());
    let counts = (Arc::clone(&mixed), Arc::clone(&refused));
    let backend = Faulty::new(kernel.backend(IPV4), move |call| match call {
        Call::Commit { suspects, .. } if suspects.iter().any(|s| is_tenants(s)) => {
            let has_other = suspects.iter().any(|rules| !is_tenants(rules));
            counts
                .0
                .fetch_add(usize::from(has_other), Ordering::Relaxed);
            counts.1.fetch_add(1, Ordering::Relaxed);
            NEVER
        }
        _ => CallOutcome::Pass,
    });
    let mut family = FamilyReconciler::new(backend);
    family.sync(&tenant_and_others(50, 8080, 8080), Reason::Startup, &clock);
    let at_start = mixed.load(Ordering::Relaxed);
    assert!(at_start > 0);

    let changes = [(8081, 9090, Reason::Changed), (8081, 9091, Reason::Timer)];
    for (of_tenant, of_others, reason) in changes {
        refused.store(0, Ordering::Relaxed);
        let desired = tenant_and_others(50, of_tenant, of_others);
        family.sync(&desired, reason, &clock);

        assert_eq!(mixed.load(Ordering::Relaxed), at_start, "{reason}");
        assert_held(&kernel, &tenant_and_others(0, 0, of_others));
        assert_eq!(quarantined(&family).len(), 50);
    }
    assert!(refused.load(Ordering::Relaxed) <= 32);
}

fn is_tenants(rules: &ServiceRules) -> bool {
    &*rules.service.namespace == "mmm"
}

/// T384: a search takes no longer at a time than a part of a large change.
#[test]
fn t384_a_change_that_arrives_during_a_search_is_in_the_next_sync() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(slow(kernel.backend(IPV4), &clock, NEVER));
    family.sync(&tenant_and_others(0, 0, 8080), Reason::Startup, &clock);
    let desired = tenant_and_others(100, UNPROGRAMMABLE, 8080);
    let sync = family.sync(&desired, Reason::Changed, &clock);
    assert_eq!(sync.outcome, Outcome::Partial);
    assert!(sync.quarantined.is_empty(), "nothing is known yet: {sync}");

    let desired = tenant_and_others(100, UNPROGRAMMABLE, 9090);
    let sync = family.sync(&desired, Reason::Changed, &clock);
    assert!(sync.took <= Duration::from_millis(30), "{sync}");
    assert_held(&kernel, &tenant_and_others(0, 0, 9090));

    finish(&mut family, &desired, &clock);
    assert_eq!(quarantined(&family).len(), 100);
    assert_held(&kernel, &tenant_and_others(0, 0, 9090));
}

/// T384: a tenant with more refused Services than may be tried at a time uses up no other's attempts.
#[test]
fn t384_each_namespace_has_attempts_of_its_own() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(refusing(&kernel));
    let mut desired = tenant_and_others(600, UNPROGRAMMABLE, 8080);
    family.sync(&desired, Reason::Startup, &clock);
    assert!(!family.is_unfinished());
    for number in 600..620 {
        let port = if number == 607 { UNPROGRAMMABLE } else { 8080 };
        desired.set(numbered(&format!("bbb/web-{number}"), number, port));
    }

    family.sync(&desired, Reason::Changed, &clock);

    assert_eq!(kernel.rules(IPV4).frontends.len(), 2 + 19);
    assert_eq!(quarantined(&family).len(), 601);
}

/// T384: what is deleted, or repaired, while the search goes on is searched for no more.
#[test]
fn t384_suspects_that_are_deleted_or_changed_in_mid_search_are_done_with() {
    for limit in [4, 1000] {
        let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
        let mut family = FamilyReconciler::new(slow(kernel.backend(IPV4), &clock, NEVER));
        let mut before = tenant_and_others(0, 0, 8080);
        before.set(numbered("mmm/service-0007", 7, 8080));
        family.sync(&before, Reason::Startup, &clock);
        // After four of them the search has barely begun; after a thousand most wait for the timer.
        let all = tenant_and_others(700, UNPROGRAMMABLE, 8080);
        family.sync(&all, Reason::Changed, &clock);
        for _ in 0..limit {
            if family.is_unfinished() {
                family.sync(&all, Reason::Continued, &clock);
            }
        }
        assert_eq!(family.is_unfinished(), limit == 4);
        let mut desired = tenant_and_others(20, UNPROGRAMMABLE, 8080);
        for number in [3, 4] {
            desired.set(numbered(&format!("mmm/service-{number:04}"), number, 8080));
        }
        desired.remove(&ServiceKey::new("mmm", "service-0007"));

        family.sync(&desired, Reason::Changed, &clock);
        finish(&mut family, &desired, &clock);
        family.sync(&desired, Reason::Timer, &clock);
        finish(&mut family, &desired, &clock);

        let mut served = tenant_and_others(0, 0, 8080);
        for number in [3, 4] {
            served.set(numbered(&format!("mmm/service-{number:04}"), number, 8080));
        }
        assert_held(&kernel, &served);
        assert_eq!(quarantined(&family).len(), 17);
    }
}

/// T384: a search that is interrupted goes on.
#[test]
fn t384_a_failure_of_another_kind_in_mid_search_loses_no_suspect() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut number = 0;
    let backend = Faulty::new(kernel.backend(IPV4), move |call| match call {
        Call::Commit { suspects, .. } => {
            number += 1;
            match suspects.iter().any(|rules| is_unprogrammable(rules)) {
                _ if number % 5 == 4 => CallOutcome::Refuse(Recovery::Retry),
                _ if number % 5 == 3 => CallOutcome::Refuse(Recovery::Halt),
                true => NEVER,
                false => CallOutcome::Pass,
            }
        }
        Call::Observe | Call::Removal => CallOutcome::Pass,
    });
    let mut family = FamilyReconciler::new(backend);
    let desired = many(40, &[5, 17, 18]);
    let mut sync = family.sync(&desired, Reason::Startup, &clock);
    for _ in 0..100 {
        if sync.succeeded() {
            break;
        }
        assert!(family.status().programmed.is_none(), "it is not complete");
        sync = family.sync(&desired, Reason::Retry, &clock);
    }
    assert!(sync.succeeded(), "{sync}");
    assert_eq!(quarantined(&family).len(), 3, "{sync}");
    assert_eq!(kernel.rules(IPV4).frontends.len(), 37);
}

/// T384: another program empties the kernel, and the old rules of a Service that is held back are
/// refused, too: they are tried once, not again and again.
#[test]
fn t384_old_rules_that_are_refused_too_are_tried_once() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let (is_strict, tries) = (Arc::new(AtomicBool::new(false)), Count::default());
    let (script_strict, count) = (Arc::clone(&is_strict), Arc::clone(&tries));
    let backend = kernel.backend(IPV4).with_part_size(PartSize::new(8));
    let backend = Faulty::new(backend, move |call| match call {
        Call::Commit { suspects, .. } => {
            count.fetch_add(1, Ordering::Relaxed);
            let is_refused = |rules: &&ServiceRules| {
                let is_old = &*rules.service.name == "service-3";
                is_old && script_strict.load(Ordering::Relaxed) || is_unprogrammable(rules)
            };
            match suspects.iter().any(is_refused) {
                true => NEVER,
                false => CallOutcome::Pass,
            }
        }
        Call::Observe | Call::Removal => CallOutcome::Pass,
    });
    let mut family = FamilyReconciler::new(backend);
    family.sync(&many(30, &[]), Reason::Startup, &clock);
    finish(&mut family, &many(30, &[]), &clock);
    let desired = many(30, &[3]);
    family.sync(&desired, Reason::Changed, &clock);
    finish(&mut family, &desired, &clock);
    assert_held(&kernel, &many(30, &[]));

    is_strict.store(true, Ordering::Relaxed);
    let mut others = many(30, &[]);
    others.remove(&ServiceKey::new("shop", "service-3"));
    for _ in 0..3 {
        kernel.tamper(IPV4, |rules| *rules = FakeRules::default());
        tries.store(0, Ordering::Relaxed);
        family.sync(&desired, Reason::Timer, &clock);
        assert!(finish(&mut family, &desired, &clock) <= 30);
        let tries = tries.load(Ordering::Relaxed);
        assert!(tries <= 60, "{tries}");
        assert_held(&kernel, &others);
        assert_eq!(quarantined(&family), ["shop/service-3"]);
        let programmed = family.status().programmed;
        assert_eq!(programmed.map(|at| at.services().len()), Some(29));
    }
    let sync = family.sync(&desired, Reason::Changed, &clock);
    assert_eq!(sync.outcome, Outcome::Unchanged);
}

/// T386: after a refusal in the first part of a start, all that waited was a suspect, and groups of it
/// were committed whole. Nothing counts as programmed before the last part and the end of the search.
#[test]
fn t386_a_refusal_in_the_first_part_of_a_start_leaves_it_in_parts() {
    for fate in [NEVER, CallOutcome::RefusePart] {
        let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
        let backend = kernel.backend(IPV4).with_part_size(PartSize::new(8));
        let mut family = FamilyReconciler::new(slow(backend, &clock, fate));
        // By size and name, it is in the first part.
        let desired = many(100, &[1]);
        let (mut reason, mut before, mut largest, mut syncs) = (Reason::Startup, 0, 0, 0);
        while syncs == 0 || family.is_unfinished() {
            assert!(family.status().programmed.is_none() && !family.is_programmed());
            let sync = family.sync(&desired, reason, &clock);
            let now = kernel.rules(IPV4).frontends.len();
            largest = largest.max(now.saturating_sub(before));
            assert!(sync.took <= Duration::from_millis(70), "{sync}");
            (reason, before, syncs) = (Reason::Continued, now, syncs + 1);
            assert!(syncs < 1000, "it comes to an end");
        }
        assert!(
            largest <= 16,
            "a part is four frontends, and {largest} came"
        );
        assert_eq!(quarantined(&family), ["shop/service-1"]);
        assert_eq!(kernel.rules(IPV4).frontends.len(), 99);
        let programmed = family.status().programmed.expect("it is complete");
        assert_eq!(programmed.services().len(), 99);
    }
}

/// T386: a restart that meets a refusal publishes nothing as programmed that is only a part.
#[test]
fn t386_a_restart_that_meets_a_refusal_is_complete_only_after_the_search() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(kernel.backend(IPV4));
    family.sync(&many(40, &[]), Reason::Startup, &clock);

    let mut family = FamilyReconciler::new(slow(kernel.backend(IPV4), &clock, NEVER));
    let mut desired = many(80, &[7, 70]);
    let sync = family.sync(&desired, Reason::Startup, &clock);
    assert_eq!(sync.outcome, Outcome::Partial);
    let mut syncs = 0;
    while family.is_unfinished() {
        assert!(family.status().programmed.is_none() && !family.is_programmed());
        family.sync(&desired, Reason::Continued, &clock);
        syncs += 1;
        assert!(syncs < 100, "it comes to an end");
    }
    for number in [7, 70] {
        desired.remove(&ServiceKey::new("shop", format!("service-{number}")));
    }
    assert_held(&kernel, &desired);
    let programmed = family.status().programmed.expect("it is complete");
    assert_eq!(programmed.to_string(), desired.to_string());
}

/// T386: what was refused before and is accepted now is programmed in parts, too.
#[test]
fn t386_services_that_are_accepted_at_last_come_in_parts() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let willing = Arc::new(AtomicBool::new(false));
    let script_willing = Arc::clone(&willing);
    let backend = kernel.backend(IPV4).with_part_size(PartSize::new(8));
    let mut family = FamilyReconciler::new(Faulty::refusing(backend, move |rules| {
        is_unprogrammable(rules) && !script_willing.load(Ordering::Relaxed)
    }));
    let refused: Vec<u8> = (2..=30).collect();
    let desired = many(30, &refused);
    family.sync(&desired, Reason::Startup, &clock);
    finish(&mut family, &desired, &clock);
    assert_eq!(family.status().quarantined.len(), 29);

    willing.store(true, Ordering::Relaxed);
    let commits = kernel.commits();
    family.sync(&desired, Reason::Timer, &clock);
    finish(&mut family, &desired, &clock);
    assert!(kernel.commits() - commits >= 7);
    assert_held(&kernel, &desired);
    assert!(family.status().quarantined.is_empty());
}

/// T393: a kernel that carries out a part of what it refuses kept it after a search whose last attempt
/// was refused: until another sync, which nothing made due.
#[test]
fn t393_nothing_stays_of_what_was_refused_last() {
    // The first step is refused, or a group of the search.
    for refused in [&[9][..], &[1, 9], &[3, 4, 8, 9]] {
        let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
        let script_kernel = kernel.clone();
        let backend = Faulty::new(kernel.backend(IPV4), move |call| match call {
            Call::Commit { suspects, .. } if suspects.iter().any(|s| is_unprogrammable(s)) => {
                script_kernel.tamper(IPV4, |rules| *rules = FakeRules::default());
                CallOutcome::RefusePart
            }
            _ => CallOutcome::Pass,
        });
        let mut family = FamilyReconciler::new(backend);
        family.sync(&many(9, &[]), Reason::Startup, &clock);
        for reason in [Reason::Changed, Reason::Timer] {
            family.sync(&many(9, refused), reason, &clock);
            assert_held(&kernel, &many(9, &[]));
            assert_eq!(quarantined(&family).len(), refused.len());
        }
    }
}
