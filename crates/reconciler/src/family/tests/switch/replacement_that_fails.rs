//! The mode that serves while another one, which is to replace it, fails again and again.

use super::*;

/// T450: while the replacement failed, each of its attempts brought the mode that serves one part of a
/// large change, and attempts become rare.
#[test]
fn t450_the_mode_that_serves_gets_all_of_a_large_change_between_attempts_of_its_replacement() {
    static TRIES: AtomicUsize = AtomicUsize::new(0);
    let (kernels, clock) = (MODES.map(|_| FakeKernel::new()), FakeClock::new());
    let family = start(&kernels, |mode, call| match call {
        Call::Commit { .. } if mode == IPTABLES => {
            TRIES.fetch_add(1, Ordering::Relaxed);
            CallOutcome::Refuse(Recovery::Retry)
        }
        _ => CallOutcome::Pass,
    });
    let mut families = Reconciler::of(vec![family]);
    let before = in_mode(NFTABLES, &[8080; 12]);
    let served = |desired: &Dataplane| {
        let rules = kernels[0].rules(IPV4);
        let desired = FakeRules::render(desired, IPV4);
        let mut keys = desired.frontends.keys();
        keys.all(|key| rules.targets(key) == desired.targets(key))
    };
    families.sync(&before, Reason::Startup, &clock);
    while families.follow_up() == FollowUp::Unfinished {
        families.sync(&before, Reason::Continued, &clock);
    }
    assert!(served(&before));

    let after = in_mode(IPTABLES, &[8081; 12]);
    families.sync(&after, Reason::Changed, &clock);
    let mut retries = 0;
    for ports in [8081, 8082] {
        let after = in_mode(IPTABLES, &[ports; 12]);
        let mut parts = 1;
        families.sync(&after, Reason::Retry, &clock);
        retries += 1;
        assert_eq!(
            families.families()[0].failing().map(|it| it.syncs),
            Some(retries + 1)
        );
        let tries = TRIES.load(Ordering::Relaxed);
        while families.follow_up() == (FollowUp::UnfinishedAndRetry { retries }) {
            let syncs = families.sync(&after, Reason::Continued, &clock);
            assert_eq!(syncs[0].outcome, Outcome::Partial);
            parts += 1;
        }
        assert!(served(&after), "after {parts} parts");
        assert!(parts >= 3, "{parts}");
        // It has waited for its turn, and has it now.
        assert_eq!(TRIES.load(Ordering::Relaxed), tries);
        assert_eq!(families.follow_up(), FollowUp::Retry { retries });
    }
    assert_eq!(families.families()[0].active_mode(), Some(NFTABLES));
}

/// T450: the search for refused Services stalled in the same way.
#[test]
fn t450_a_search_in_the_mode_that_serves_goes_on_between_attempts_of_its_replacement() {
    let clock = FakeClock::new();
    let kernels = MODES.map(|_| FakeKernel::new());
    let mut modes = MODES.into_iter().zip(&kernels).map(|(mode, kernel)| {
        let clock = clock.clone();
        let backend = kernel
            .backend(IPV4)
            .with_longest_part(Duration::from_millis(30));
        let backend = Faulty::new(backend, move |call| match (mode, call) {
            (IPTABLES, Call::Commit { .. }) => CallOutcome::Refuse(Recovery::Retry),
            (NFTABLES, Call::Commit { suspects, .. }) => {
                clock.advance(Duration::from_millis(10));
                let targets = suspects.iter().flat_map(|rules| &rules.frontends);
                let mut targets = targets.flat_map(|(_, frontend)| frontend.cluster.iter());
                match targets.any(|target| target.port.get() == 666) {
                    true => CallOutcome::Refuse(Recovery::Isolate),
                    false => CallOutcome::Pass,
                }
            }
            _ => CallOutcome::Pass,
        });
        (mode, backend)
    });
    let first = modes.next().expect("there are three");
    let mut family = FamilyReconciler::with_modes(first, modes.collect());
    let before = in_mode(NFTABLES, &[8080; 20]);
    family.sync(&before, Reason::Startup, &clock);
    finish(&mut family, &before, &clock);

    let mut ports = [8081; 20];
    ports[3] = 666;
    family.sync(&in_mode(IPTABLES, &ports), Reason::Changed, &clock);
    assert!(family.is_unfinished());
    finish(&mut family, &in_mode(IPTABLES, &ports), &clock);
    ports[3] = 8080;
    let held = FakeRules::render(&in_mode(IPTABLES, &ports), IPV4);
    assert_eq!(kernels[0].rules(IPV4), held);
    assert_eq!(family.failing().map(|it| it.syncs), Some(1));
}

/// T450: in a mode that notices changes only by checks, each check was an attempt of the replacement.
#[test]
fn t450_a_check_of_the_mode_that_serves_is_no_attempt_of_its_replacement() {
    static TRIES: AtomicUsize = AtomicUsize::new(0);
    let (kernels, clock) = (MODES.map(|_| FakeKernel::new()), FakeClock::new());
    let mut family = start(&kernels, |mode, call| match call {
        Call::Commit { .. } if mode == IPTABLES => {
            TRIES.fetch_add(1, Ordering::Relaxed);
            CallOutcome::Refuse(Recovery::Retry)
        }
        _ => CallOutcome::Pass,
    });
    let before = in_mode(NFTABLES, &[8080]);
    family.sync(&before, Reason::Startup, &clock);
    finish(&mut family, &before, &clock);
    let after = in_mode(IPTABLES, &[8080]);
    family.sync(&after, Reason::Changed, &clock);
    let tries = TRIES.load(Ordering::Relaxed);
    assert!(tries > 0);

    family.sync(&after, Reason::Drift, &clock);
    assert_eq!(TRIES.load(Ordering::Relaxed), tries);
    assert_eq!(family.failing().map(|it| it.syncs), Some(1));
    family.sync(&after, Reason::Retry, &clock);
    assert!(TRIES.load(Ordering::Relaxed) > tries);
}

/// T457: what counts as programmed looked as if the kernel still held it.
#[test]
fn t457_what_was_programmed_before_a_switch_is_not_said_to_be_what_serves() {
    static FAILS: AtomicBool = AtomicBool::new(true);
    let mut world = World::new(|mode, call| match call {
        Call::Commit { .. } if mode == IPTABLES && FAILS.load(Ordering::Relaxed) => {
            CallOutcome::Refuse(Recovery::Retry)
        }
        _ => CallOutcome::Pass,
    });
    let before = in_mode(NFTABLES, &[8080; 2]);
    world.finish(&before);
    assert!(!world.family.status().is_switching);

    let after = in_mode(IPTABLES, &[8081; 2]);
    world.finish(&after);
    world.assert_serves(NFTABLES, &after);
    let external_change = ExternalChange {
        families: [IPV4].into(),
        actor: None,
    };
    world.family.disturb(&external_change, world.clock.now());
    let sync = world.sync(&after, Reason::Drift);
    assert!(matches!(sync.outcome, Outcome::Failed(_)), "{sync}");
    let status = world.family.status();
    let programmed = status.programmed.as_ref().map(Dataplane::to_string);
    assert_eq!(programmed, Some(before.to_string()));
    assert!(status.is_switching);

    FAILS.store(false, Ordering::Relaxed);
    world.finish(&after);
    let status = world.family.status();
    let programmed = status.programmed.as_ref().map(Dataplane::to_string);
    assert_eq!(programmed, Some(after.to_string()));
    assert!(!status.is_switching);
}
