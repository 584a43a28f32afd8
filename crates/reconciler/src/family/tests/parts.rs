//! Changes that are larger than what one sync programs.

use dataplane::{Config, FrontendKey, PartSize, Protocol, Scheduler};

use super::*;

/// Two frontends with their endpoints.
const SIZE: PartSize = PartSize::new(4);

fn in_parts(kernel: &FakeKernel) -> FakeBackend {
    kernel.backend(IPV4).with_part_size(SIZE)
}

fn many(count: u8) -> Vec<Arc<ServiceRules>> {
    let names = (0..count).map(|number| (number, format!("shop/web-{number}")));
    names
        .map(|(number, name)| service(&name, number, &[8080]))
        .collect()
}

/// T85: a change that arrives during a large change waits for one part of it, not for all.
#[test]
fn t85_a_change_during_a_large_one_waits_for_one_part() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut families = Reconciler::new(vec![in_parts(&kernel)]);
    let mut services = many(10);
    families.sync(&dataplane(&services[..1]), Reason::Startup, &clock);

    let syncs = families.sync(&dataplane(&services), Reason::Changed, &clock);
    assert_eq!(syncs[0].outcome, Outcome::Partial);
    assert!(!syncs[0].succeeded());
    assert_eq!(families.follow_up(), FollowUp::Unfinished);
    assert_eq!(kernel.rules(IPV4).frontends.len(), 3);

    services.insert(0, service("zoo/last", 99, &[8080]));
    families.sync(&dataplane(&services), Reason::Changed, &clock);
    let mut outcomes = Vec::new();
    while families.follow_up() == FollowUp::Unfinished {
        let syncs = families.sync(&dataplane(&services), Reason::Continued, &clock);
        outcomes.push(syncs[0].outcome.clone());
    }
    assert_eq!(outcomes.last(), Some(&Outcome::Committed));
    assert_eq!(outcomes.len(), 3, "{outcomes:?}");
    assert_eq!(families.follow_up(), FollowUp::Settled);
    assert_held(&kernel, &dataplane(&services));
    assert_eq!(kernel.observations(), 1, "nothing was in doubt");
}

/// T94: a small change that arrives while a part of a large change is programmed is the next sync,
/// and the large change continues after it, however many small changes arrive.
#[test]
fn t94_a_small_change_goes_between_two_parts_of_a_large_one() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = kernel.backend(IPV4).with_part_size(PartSize::new(32));
    let mut family = FamilyReconciler::new(backend);
    let ports = [8080, 8081, 8082, 8083];
    let large = (1..21).map(|number| service(&format!("shop/web-{number}"), number, &ports));
    let mut services = many(1);
    family.sync(&dataplane(&services), Reason::Startup, &clock);
    services.extend(large);
    let mut written = Vec::new();
    for number in 100..104 {
        let before = kernel.rules(IPV4).frontends.len();
        family.sync(&dataplane(&services), Reason::Changed, &clock);
        assert!(family.is_unfinished());
        written.push(kernel.rules(IPV4).frontends.len() - before);
        services.push(service(&format!("zoo/{number}"), number, &[8080]));
    }
    // Six Services of five elements; one small Service; another small one and six; one small one.
    assert_eq!(written, [6, 1, 7, 1]);
}

/// A hundred Services, and one that is last by name and first by precedence, with endpoints on
/// these ports.
fn crowd(config: &Arc<Config>, ports: &[u16]) -> Dataplane {
    let node = mk_node(1).build();
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(config));
    let others = (0..100).map(|number| (format!("shop/web-{number}"), number, &[8080][..]));
    for (name, number, ports) in others.chain([("zoo/dns".to_owned(), 200, ports)]) {
        let service = mk_service(&name)
            .cluster_ip(&format!("10.96.0.{number}"))
            .external_ip(&format!("198.51.100.{number}"))
            .port("", 80);
        let service = match name.starts_with("zoo") {
            true => service.first().build(),
            false => service.build(),
        };
        let mut endpoints = mk_endpoints().tcp("");
        for port in ports {
            endpoints = endpoints.ready(&format!("10.0.2.5:{port}"), "node-2");
        }
        let rules = compile(&service, &endpoints.build(), &node, config);
        dataplane.set(Arc::new(rules));
    }
    dataplane
}

/// The ports of the endpoints of `zoo/dns` that the kernel sends packets to.
fn dns(kernel: &FakeKernel) -> Vec<u16> {
    let address = [10, 96, 0, 200].into();
    let targets = kernel.rules(IPV4).targets(&FrontendKey::Address {
        address,
        protocol: Protocol::Tcp,
        port: testkit::port(80),
    });
    targets.iter().map(|target| target.port.get()).collect()
}

/// T97: a start has parts, with the API server and DNS first, and the next part includes a removal
/// that arrives meanwhile. Before the last part nothing counts as programmed, or a takeover would
/// remove the other proxy's rules.
#[test]
fn t97_a_removal_during_a_start_waits_for_one_part() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(kernel.backend(IPV4).with_part_size(PartSize::new(64)));
    let config = mk_config().build();
    let sync = family.sync(&crowd(&config, &[8080, 8081]), Reason::Startup, &clock);
    assert_eq!(sync.outcome, Outcome::Partial);
    assert_eq!(dns(&kernel), [8080, 8081]);

    let desired = crowd(&config, &[8081]);
    family.sync(&desired, Reason::Changed, &clock);
    assert_eq!(dns(&kernel), [8081]);
    assert!(family.is_unfinished());
    assert!(family.status().programmed.is_none() && !family.is_programmed());

    assert!(finish(&mut family, &desired, &clock) > 2);
    assert_held(&kernel, &desired);
    assert!(family.status().programmed.is_some() && family.is_programmed());
    assert_eq!(kernel.observations(), 1, "nothing was in doubt");
}

/// T97: if the cost of a sync grows with what the kernel already holds, a start has fewer parts
/// than a change of Services. The first of them is small.
#[test]
fn t97_a_start_has_parts_of_its_own_size() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = kernel.backend(IPV4).with_part_size(PartSize::new(64));
    let mut family = FamilyReconciler::new(backend.with_rebuild_size(PartSize::new(100_000)));
    let config = mk_config().build();
    let desired = crowd(&config, &[8080]);
    let sync = family.sync(&desired, Reason::Startup, &clock);
    assert_eq!(sync.outcome, Outcome::Partial);
    assert_eq!(dns(&kernel), [8080]);
    assert_eq!(finish(&mut family, &desired, &clock), 1);

    let nothing = Dataplane::new(mk_node(1).build(), config);
    let sync = family.sync(&nothing, Reason::Changed, &clock);
    assert_eq!(sync.outcome, Outcome::Partial);
}

/// T97: the same for a removal that arrives during a change of configuration. Before the last part,
/// the configuration does not count as applied.
#[test]
fn t97_a_removal_during_a_change_of_configuration_waits_for_one_part() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(kernel.backend(IPV4).with_part_size(PartSize::new(48)));
    let changed = mk_config().ignore_external_ips();
    let changed = changed.scheduler(Scheduler::RoundRobin).build();
    let (old, new) = (mk_config().build(), changed);
    let before = crowd(&old, &[8080, 8081]);
    family.sync(&before, Reason::Startup, &clock);
    finish(&mut family, &before, &clock);

    let sync = family.sync(&crowd(&new, &[8080, 8081]), Reason::Changed, &clock);
    assert_eq!(sync.outcome, Outcome::Partial);
    let base = kernel.rules(IPV4).base.expect("it is programmed");
    assert_eq!(base.config, new);

    let desired = crowd(&new, &[8081]);
    family.sync(&desired, Reason::Changed, &clock);
    assert_eq!(dns(&kernel), [8081]);
    assert!(family.is_unfinished());
    let config = |family: &FamilyReconciler<_>| {
        Arc::clone(family.status().programmed.expect("one").config())
    };
    assert_eq!(config(&family), old);

    finish(&mut family, &desired, &clock);
    assert_held(&kernel, &desired);
    assert_eq!(config(&family), new);
}

/// T97: while an emptied kernel is refilled, what was programmed before still counts as programmed,
/// so none of its listeners closes. If a program empties the kernel again meanwhile, one sync
/// answers it and counts as a repair.
#[test]
fn t97_a_kernel_that_is_emptied_is_filled_in_parts_and_the_second_time_at_once() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut family = FamilyReconciler::new(kernel.backend(IPV4).with_part_size(PartSize::new(64)));
    let desired = crowd(&mk_config().build(), &[8080]);
    family.sync(&desired, Reason::Startup, &clock);
    finish(&mut family, &desired, &clock);
    let empty = || kernel.tamper(IPV4, |rules| *rules = FakeRules::default());
    let services =
        |family: &FamilyReconciler<_>| family.status().programmed.map(|at| at.services().len());

    empty();
    let sync = family.sync(&desired, Reason::Timer, &clock);
    assert_eq!(sync.outcome, Outcome::Partial);
    assert_eq!(sync.repaired_drift, None);
    assert_eq!(services(&family), Some(101));

    empty();
    let sync = family.sync(&desired, Reason::Timer, &clock);
    assert_eq!(sync.outcome, Outcome::Committed);
    assert!(sync.repaired_drift.is_some());
    assert_held(&kernel, &desired);
}

/// Rules that were read back are replaced at once: which Service they belong to is not known.
#[test]
fn a_restart_in_the_middle_of_a_large_change_completes_it() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let (one, desired) = (dataplane(&many(1)), dataplane(&many(7)));
    let mut before = FamilyReconciler::new(in_parts(&kernel));
    before.sync(&one, Reason::Startup, &clock);
    before.sync(&desired, Reason::Changed, &clock);
    assert_eq!(kernel.rules(IPV4).frontends.len(), 3);
    assert!(!before.answers(Reason::Retry));
    assert!(before.answers(Reason::Continued));

    let mut after = FamilyReconciler::new(in_parts(&kernel));
    let sync = after.sync(&desired, Reason::Startup, &clock);
    assert_eq!(sync.outcome, Outcome::Committed);
    assert_held(&kernel, &desired);
}

/// The search for the Service covers the part that was refused; the other parts follow.
#[test]
fn t25_a_service_that_is_refused_in_a_large_change_fails_alone() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let refused = "shop/web-3";
    let backend = Faulty::new(in_parts(&kernel), move |call| match call {
        Call::Commit { suspects, .. } if has(suspects, refused) => {
            CallOutcome::Refuse(Recovery::Isolate)
        }
        _ => CallOutcome::Pass,
    });
    let mut family = FamilyReconciler::new(backend);
    let (one, desired) = (dataplane(&many(1)), dataplane(&many(9)));
    let mut syncs = 1;
    family.sync(&one, Reason::Startup, &clock);
    family.sync(&desired, Reason::Changed, &clock);
    while family.is_unfinished() {
        family.sync(&desired, Reason::Continued, &clock);
        syncs += 1;
    }
    assert!(syncs <= 5, "{syncs}");
    let status = family.status();
    assert_eq!(status.condition(), FamilyCondition::PartlyProgrammed);
    assert_eq!(status.quarantined[0].service.to_string(), refused);
    assert_eq!(kernel.rules(IPV4).frontends.len(), 8);
}

#[test]
fn a_part_that_fails_is_tried_again_after_a_while_and_not_at_once() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let mut number = 0;
    let backend = Faulty::new(in_parts(&kernel), move |call| match call {
        Call::Commit { .. } => {
            number += 1;
            match number {
                3 => CallOutcome::Refuse(Recovery::Retry),
                _ => CallOutcome::Pass,
            }
        }
        Call::Observe | Call::Removal => CallOutcome::Pass,
    });
    let mut families = Reconciler::new(vec![backend]);
    let (one, desired) = (dataplane(&many(1)), dataplane(&many(6)));
    families.sync(&one, Reason::Startup, &clock);
    families.sync(&desired, Reason::Changed, &clock);
    families.sync(&desired, Reason::Continued, &clock);
    assert_eq!(families.follow_up(), FollowUp::Retry { retries: 0 });

    families.sync(&desired, Reason::Retry, &clock);
    assert_eq!(families.follow_up(), FollowUp::Unfinished);
    families.sync(&desired, Reason::Continued, &clock);
    assert_eq!(families.follow_up(), FollowUp::Settled);
    assert_held(&kernel, &desired);
}

/// T384: a check that the kernel answered again programmed a part. The rest was due at once, again and
/// again, and nothing answered.
#[test]
fn t384_what_a_check_after_a_halt_leaves_is_gone_on_with() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = failing(&kernel, CallOutcome::Refuse(Recovery::Halt), &[0]);
    let mut families = Reconciler::new(vec![backend.with_part_size(SIZE)]);
    let desired = dataplane(&many(10));
    families.sync(&desired, Reason::Startup, &clock);
    assert_eq!(families.follow_up(), FollowUp::Settled);

    families.sync(&desired, Reason::Timer, &clock);
    while families.follow_up() == FollowUp::Unfinished {
        let syncs = families.sync(&desired, Reason::Continued, &clock);
        assert_eq!(syncs.len(), 1);
    }
    assert_held(&kernel, &desired);
    assert!(families.families()[0].failing().is_none());
}

#[test]
fn nothing_is_unfinished_after_a_removal_that_fails() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = Faulty::new(in_parts(&kernel), |call| match call {
        Call::Removal => CallOutcome::Refuse(Recovery::Halt),
        Call::Observe | Call::Commit { .. } => CallOutcome::Pass,
    });
    let mut families = Reconciler::new(vec![backend]);
    families.sync(&dataplane(&many(10)), Reason::Startup, &clock);
    assert_eq!(families.follow_up(), FollowUp::Unfinished);

    let removed = families.commit_withdrawal(&clock);
    assert!(removed.is_err());
    assert_eq!(families.follow_up(), FollowUp::Settled);
}

/// T384: beside the rest of a large change in one family, another one that has failed is tried again.
#[test]
fn t384_a_family_that_fails_beside_an_unfinished_one_is_tried_again() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backends = Family::ALL.map(|family| {
        let backend = kernel.backend(family).with_part_size(SIZE);
        Faulty::new(backend, move |_| match family {
            Family::Ipv4 => CallOutcome::Pass,
            Family::Ipv6 => CallOutcome::Refuse(Recovery::Retry),
        })
    });
    let mut families = Reconciler::new(Vec::from(backends));
    families.sync(&dataplane(&many(10)), Reason::Startup, &clock);
    let both = FollowUp::UnfinishedAndRetry { retries: 0 };
    assert_eq!(families.follow_up(), both);
}

fn has(suspects: &[&ServiceRules], name: &str) -> bool {
    let mut rules = suspects.iter();
    rules.any(|rules| rules.service.to_string() == name)
}

/// T175: the first commit of mode iptables only opens the tables, and asks for them to be read.
#[test]
fn t175_a_start_whose_first_commit_changes_nothing_goes_in_parts_all_the_same() {
    let (kernel, clock) = (FakeKernel::new(), FakeClock::new());
    let backend = failing(&kernel, CallOutcome::Refuse(Recovery::Observe), &[0]);
    let mut family = FamilyReconciler::new(backend.with_part_size(SIZE));
    let sync = family.sync(&dataplane(&many(10)), Reason::Startup, &clock);
    assert_eq!(sync.outcome, Outcome::Partial);
    assert!(kernel.rules(IPV4).frontends.len() < 10);
}
