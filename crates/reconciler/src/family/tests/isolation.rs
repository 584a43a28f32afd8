//! Services that the kernel refuses.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;

use dataplane::FrontendKey;

use super::*;

mod any_history;
mod fairness;
mod interrupted;
mod search;

/// The kernel refuses a Service with endpoints on this port.
const UNPROGRAMMABLE: u16 = 666;

fn is_unprogrammable(rules: &ServiceRules) -> bool {
    let targets = rules.frontends.iter().flat_map(|(_, f)| f.cluster.iter());
    targets
        .into_iter()
        .any(|target| target.port.get() == UNPROGRAMMABLE)
}

/// The same of an operation of a kernel that carries out one after the other.
fn is_refused(operation: &FakeOperation) -> bool {
    let FakeOperation::SetFrontend(_, frontend) = operation else {
        return false;
    };
    let mut targets = frontend.cluster.iter();
    targets.any(|target| target.port.get() == UNPROGRAMMABLE)
}

fn refusing(kernel: &FakeKernel) -> Faulty<FakeBackend> {
    Faulty::refusing(kernel.backend(IPV4), is_unprogrammable)
}

fn many(count: u8, unprogrammable: &[u8]) -> Dataplane {
    let services: Vec<_> = (1..=count)
        .map(|number| {
            let port = if unprogrammable.contains(&number) {
                UNPROGRAMMABLE
            } else {
                8080
            };
            service(&format!("shop/service-{number}"), number, &[port])
        })
        .collect();
    dataplane(&services)
}

fn quarantined<B: Backend>(family: &FamilyReconciler<B>) -> Vec<String> {
    let quarantined = family.status().quarantined;
    quarantined.iter().map(|q| q.service.to_string()).collect()
}

/// T25 (k/k#142068): a Service that cannot be programmed fails alone and is named; all others are
/// programmed.
#[test]
fn t25_a_service_that_cannot_be_programmed_fails_alone_and_is_named() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(refusing(&kernel));

    let sync = family.sync(&many(100, &[42]), Reason::Startup, &clock);

    let mut others = many(100, &[]);
    others.remove(&ServiceKey::new("shop", "service-42"));
    assert_held(&kernel, &others);
    assert_eq!(sync.outcome, Outcome::Committed);
    let text = sync.to_string();
    assert!(
        text.contains(
            "Service shop/service-42 is refused: failed to commit IPv4 rules: a fault was injected"
        ),
        "{text}"
    );
    assert_eq!(
        family.status().condition(),
        FamilyCondition::PartlyProgrammed
    );
}

/// T373: mode ipvs wrote a part of a change, of which the kernel refused an endpoint, read it and met the same
/// refusal, until the EndpointSlice was gone. No Service of the node got anything else.
#[test]
fn t373_a_service_of_which_the_kernel_takes_a_part_fails_alone_and_is_named() {
    for before in [many(0, &[]), many(99, &[])] {
        let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
        let backend = Faulty::new(kernel.backend(IPV4), |call| match call {
            Call::Commit { suspects, .. } if suspects.iter().any(|s| is_unprogrammable(s)) => {
                CallOutcome::RefusePart
            }
            _ => CallOutcome::Pass,
        });
        let mut family = FamilyReconciler::new(backend);
        family.sync(&before, Reason::Startup, &clock);

        let sync = family.sync(&many(100, &[42]), Reason::Changed, &clock);

        assert_eq!(sync.outcome, Outcome::Committed, "{sync}");
        assert_eq!(quarantined(&family), ["shop/service-42"], "{sync}");
        let mut others = many(100, &[]);
        let name = ServiceKey::new("shop", "service-42");
        match before.services().get(&name) {
            // It keeps what it had.
            Some(rules) => drop(others.set(Arc::clone(rules))),
            None => drop(others.remove(&name)),
        }
        assert_held(&kernel, &others);
    }
}

#[test]
fn a_service_that_becomes_unprogrammable_keeps_what_it_has() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(refusing(&kernel));
    family.sync(&many(20, &[]), Reason::Startup, &clock);

    family.sync(&many(20, &[7]), Reason::Changed, &clock);

    assert_held(&kernel, &many(20, &[]));
    assert_eq!(quarantined(&family), ["shop/service-7"]);
}

#[test]
fn a_refused_service_keeps_what_it_has_when_an_answer_is_lost() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(refusing(&kernel));
    family.sync(&many(20, &[]), Reason::Startup, &clock);
    family.sync(&many(20, &[7]), Reason::Changed, &clock);

    kernel.cut_after(1);
    family.sync(&many(30, &[7]), Reason::Changed, &clock);

    assert_held(&kernel, &many(30, &[]));
    assert_eq!(quarantined(&family), ["shop/service-7"]);
}

#[test]
fn a_refused_service_is_left_alone_until_it_changes() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let refusals = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&refusals);
    let backend = Faulty::refusing(kernel.backend(IPV4), move |rules| {
        let refused = is_unprogrammable(rules);
        count.fetch_add(usize::from(refused), Ordering::Relaxed);
        refused
    });
    let mut family = FamilyReconciler::new(backend);
    family.sync(&many(8, &[3]), Reason::Startup, &clock);
    let after_search = refusals.load(Ordering::Relaxed);

    let sync = family.sync(&many(9, &[3]), Reason::Changed, &clock);
    assert_eq!(sync.transactions, 1, "the new Service in one go");
    assert_eq!(refusals.load(Ordering::Relaxed), after_search);

    let sync = family.sync(&many(9, &[]), Reason::Changed, &clock);
    assert!(sync.quarantined.is_empty());
    assert_held(&kernel, &many(9, &[]));
}

#[test]
fn a_refused_service_that_is_deleted_is_forgotten() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(refusing(&kernel));
    family.sync(&many(8, &[8]), Reason::Startup, &clock);
    family.sync(&many(7, &[]), Reason::Changed, &clock);
    assert_eq!(family.status().condition(), FamilyCondition::Programmed);
    assert_held(&kernel, &many(7, &[]));
}

#[test]
fn the_timer_tries_refused_services_again() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let willing = Arc::new(AtomicBool::new(false));
    let script_willing = Arc::clone(&willing);
    let mut family = FamilyReconciler::new(Faulty::refusing(kernel.backend(IPV4), move |rules| {
        is_unprogrammable(rules) && !script_willing.load(Ordering::Relaxed)
    }));
    let desired = many(8, &[3]);
    family.sync(&desired, Reason::Startup, &clock);
    let since = family.status().quarantined[0].since;

    clock.advance(Duration::from_secs(30));
    family.sync(&desired, Reason::Timer, &clock);
    assert_eq!(family.status().quarantined[0].since, since, "all along");

    willing.store(true, Ordering::Relaxed);
    family.sync(&desired, Reason::Timer, &clock);
    assert_eq!(family.status().condition(), FamilyCondition::Programmed);
    assert_held(&kernel, &desired);
}

#[test]
fn several_refused_services_are_found_in_few_commits() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let tries = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tries);
    let backend = Faulty::new(kernel.backend(IPV4), move |call| {
        let Call::Commit { suspects, .. } = call else {
            return CallOutcome::Pass;
        };
        count.fetch_add(1, Ordering::Relaxed);
        if suspects.iter().any(|rules| is_unprogrammable(rules)) {
            CallOutcome::Refuse(Recovery::Isolate)
        } else {
            CallOutcome::Pass
        }
    });
    let mut family = FamilyReconciler::new(backend);
    let refused = [1, 57, 58, 200];

    family.sync(&many(200, &refused), Reason::Startup, &clock);

    let expected: BTreeSet<String> = refused.map(|n| format!("shop/service-{n}")).into();
    assert_eq!(BTreeSet::from_iter(quarantined(&family)), expected);
    // Four of 200: 2 x 4 x log2(200), plus the two before the search.
    let tries = tries.load(Ordering::Relaxed);
    assert!(tries <= 2 * 4 * 8 + 2, "{tries}");
}

#[test]
fn a_kernel_that_refuses_every_service_is_not_asked_about_each() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let tries = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tries);
    let backend = Faulty::new(kernel.backend(IPV4), move |call| match call {
        Call::Commit { suspects, .. } if !suspects.is_empty() => {
            count.fetch_add(1, Ordering::Relaxed);
            CallOutcome::Refuse(Recovery::Isolate)
        }
        _ => CallOutcome::Pass,
    });
    let mut family = FamilyReconciler::new(backend);
    let mut desired = dataplane(&[]);
    for number in 0..1000u32 {
        let rules = service("shop/service", 1, &[8080]);
        let name = ServiceKey::new("shop", format!("service-{number}"));
        let address = [10, 97, number.to_be_bytes()[2], number.to_be_bytes()[3]].into();
        let mut rules = ServiceRules::clone(&rules);
        rules.service = name;
        rules.cluster_ips = vec![address];
        rules.frontends.clear();
        desired.set(Arc::new(rules));
    }

    family.sync(&desired, Reason::Startup, &clock);

    assert_eq!(family.status().quarantined.len(), 1000);
    let tries = tries.load(Ordering::Relaxed);
    assert!(tries <= 520, "{tries}");
}

#[test]
fn a_removal_that_is_refused_is_named_and_the_rest_goes_on() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let stuck = Arc::new(AtomicBool::new(false));
    let script_stuck = Arc::clone(&stuck);
    let script_kernel = kernel.clone();
    let before = many(5, &[]);
    let address = FakeRules::render(&many(1, &[]), IPV4).cluster_ips;
    // Without the first Service's address in the desired state, the kernel accepts nothing.
    let backend = Faulty::new(kernel.backend(IPV4), move |call| match call {
        Call::Commit { suspects, size } if script_stuck.load(Ordering::Relaxed) => {
            let holds = script_kernel.rules(IPV4).cluster_ips.is_superset(&address);
            let removes = suspects.is_empty() && size.elements == 2;
            if holds && removes {
                CallOutcome::Refuse(Recovery::Isolate)
            } else {
                CallOutcome::Pass
            }
        }
        _ => CallOutcome::Pass,
    });
    let mut family = FamilyReconciler::new(backend);
    family.sync(&before, Reason::Startup, &clock);
    stuck.store(true, Ordering::Relaxed);
    let mut after = before.clone();
    after.remove(&ServiceKey::new("shop", "service-1"));

    let sync = family.sync(&after, Reason::Changed, &clock);

    assert_eq!(sync.outcome, Outcome::Unchanged);
    assert_eq!(quarantined(&family), ["shop/service-1"]);
    assert_held(&kernel, &before);
}

#[test]
fn old_rules_that_are_refused_too_do_not_stop_the_others() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let strict = Arc::new(AtomicBool::new(false));
    let script_strict = Arc::clone(&strict);
    let first = ServiceKey::new("shop", "service-1");
    let script_first = first.clone();
    let mut family = FamilyReconciler::new(Faulty::refusing(kernel.backend(IPV4), move |rules| {
        script_strict.load(Ordering::Relaxed) && rules.service == script_first
    }));
    family.sync(&many(5, &[]), Reason::Startup, &clock);
    strict.store(true, Ordering::Relaxed);
    kernel.tamper(IPV4, |rules| *rules = FakeRules::default());

    family.sync(&many(5, &[1]), Reason::Timer, &clock);

    let mut others = many(5, &[]);
    others.remove(&first);
    assert_held(&kernel, &others);
    assert_eq!(quarantined(&family), ["shop/service-1"]);
}

/// The owner of a load-balancer IP with endpoints on this port, and a Service of a tenant that
/// names the same address, at the owner's port and at another one.
fn owner_and_tenant(of_owner: u16) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let endpoints = |port: u16| {
        let endpoints = mk_endpoints().tcp("");
        let endpoints = endpoints.ready(&format!("10.0.1.5:{port}"), "node-1");
        let endpoints = endpoints.tcp("other");
        endpoints
            .ready(&format!("10.0.1.5:{port}"), "node-1")
            .build()
    };
    let owner = mk_service("shop/web").cluster_ip("10.96.0.10");
    let owner = owner.load_balancer_ip("192.0.2.7").port("", 80).build();
    let tenant = mk_service("attic/thief").cluster_ip("10.96.0.11");
    let tenant = tenant.external_ip("192.0.2.7").port("", 80);
    let tenant = tenant.port("other", 443).build();
    dataplane(&[
        Arc::new(compile(&owner, &endpoints(of_owner), &node, &config)),
        Arc::new(compile(&tenant, &endpoints(8080), &node, &config)),
    ])
}

/// The ports that the kernel serves at the contested address, and the Service that each leads to.
fn at_contested_address(family: &FamilyReconciler<Faulty<FakeBackend>>) -> Vec<(u16, String)> {
    let programmed = family.status().programmed.expect("a sync has succeeded");
    let frontends = programmed.frontends().sorted().into_iter();
    let at_address = frontends.filter_map(|(key, claims)| match key {
        FrontendKey::Address { address, port, .. } if address.to_string() == "192.0.2.7" => {
            Some((port.get(), claims.winner().0.to_string()))
        }
        _ => None,
    });
    at_address.collect()
}

/// Story T101: no Service gets the address of another one because the kernel refuses that one.
#[test]
fn t101_the_address_of_a_refused_service_goes_to_no_other() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(refusing(&kernel));

    family.sync(&owner_and_tenant(UNPROGRAMMABLE), Reason::Startup, &clock);
    assert_eq!(quarantined(&family), ["shop/web"]);
    assert_eq!(at_contested_address(&family), []);

    // Nor in a later sync, nor when the timer retries.
    for reason in [Reason::Changed, Reason::Timer] {
        family.sync(&owner_and_tenant(UNPROGRAMMABLE), reason, &clock);
        assert_eq!(at_contested_address(&family), [], "{reason:?}");
    }

    family.sync(&owner_and_tenant(8081), Reason::Changed, &clock);
    let owned = [(80, "shop/web".to_owned())];
    assert_eq!(at_contested_address(&family), owned);
    assert_held(&kernel, &owner_and_tenant(8081));
}

/// Story T101, if the owner was served before: it keeps what it has.
#[test]
fn t101_a_service_whose_update_is_refused_keeps_its_address() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(refusing(&kernel));
    family.sync(&owner_and_tenant(8081), Reason::Startup, &clock);

    family.sync(&owner_and_tenant(UNPROGRAMMABLE), Reason::Changed, &clock);

    assert_eq!(quarantined(&family), ["shop/web"]);
    assert_held(&kernel, &owner_and_tenant(8081));
}

/// Story T101, in reverse: a Service keeps what it has until its successor is programmed.
#[test]
fn t101_what_was_served_is_served_until_the_new_owner_is() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(refusing(&kernel));
    let mut tenant_alone = owner_and_tenant(8081);
    tenant_alone.remove(&ServiceKey::new("shop", "web"));
    family.sync(&tenant_alone, Reason::Startup, &clock);

    family.sync(&owner_and_tenant(UNPROGRAMMABLE), Reason::Changed, &clock);

    assert_eq!(quarantined(&family), ["shop/web"]);
    assert_held(&kernel, &tenant_alone);
}

#[test]
fn a_change_that_no_service_explains_is_a_failure() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = Faulty::new(kernel.backend(IPV4), |call| match call {
        Call::Commit { .. } => CallOutcome::Refuse(Recovery::Isolate),
        Call::Observe | Call::Removal => CallOutcome::Pass,
    });
    let mut families = Reconciler::new(vec![backend]);
    let syncs = families.sync(&many(5, &[]), Reason::Startup, &clock);
    assert!(!syncs[0].succeeded());
    assert!(syncs[0].quarantined.is_empty());
    assert_eq!(families.follow_up(), FollowUp::Retry { retries: 0 });
}
