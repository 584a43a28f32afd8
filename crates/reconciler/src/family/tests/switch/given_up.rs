//! Modes that fail for good before it is known which mode serves.

use super::*;

/// Lets another agent start where mode ipvs serves, and replace that mode slowly: there are periodic
/// checks between the parts. Asserts that every Service which does not change is served all the time,
/// and that only its new rules are left in the end.
#[track_caller]
fn restart_and_replace_ipvs(desired: &Dataplane, script: fn(Mode, &Call<'_>) -> CallOutcome) {
    let mut world = World::without_faults();
    let before = in_mode(IPVS, &[8080; 20]);
    world.finish(&before);
    world.family = start(&world.kernels, script);

    let unchanged = stable(&before, std::slice::from_ref(desired));
    let (mut reason, mut parts) = (Reason::Startup, 0);
    loop {
        let sync = world.sync(desired, reason);
        let held = world.kernels.each_ref().map(|kernel| kernel.rules(IPV4));
        for (key, targets) in &unchanged {
            let serves = held.iter().any(|rules| rules.targets(key) == *targets);
            assert!(serves, "{key} after {sync}, part {parts}");
        }
        if sync.succeeded() {
            break;
        }
        world.clock.advance(Duration::from_secs(5));
        (reason, parts) = (Reason::Timer, parts + 1);
    }
    assert!(parts > 5, "{parts}");
    assert_eq!(world.family.active_mode(), Some(NFTABLES));

    // Rules that no change reaches would lead to endpoints of the past.
    world.clock.advance(Duration::from_secs(10));
    world.sync(desired, Reason::Timer);
    assert_eq!(world.holding(), [NFTABLES]);
    world.assert_serves(NFTABLES, desired);
}

/// T395: the first parts of the new mode were taken for the rules that serve, because no others were
/// known. Those that did serve went before the new ones were complete.
#[test]
fn t395_rules_that_cannot_be_read_stay_until_others_are_complete() {
    for desired in [IPVS, NFTABLES] {
        restart_and_replace_ipvs(&in_mode(desired, &[8080; 20]), |mode, call| match call {
            Call::Observe if mode == IPVS => CallOutcome::Refuse(Recovery::Halt),
            _ => CallOutcome::Pass,
        });
    }
}

/// T395: the same where they can be read, and those of another mode could not be at first.
#[test]
fn t395_rules_that_cannot_be_changed_stay_until_others_are_complete() {
    static READS: AtomicUsize = AtomicUsize::new(0);
    let mut ports = [8080; 20];
    ports[19] = 8081;
    restart_and_replace_ipvs(&in_mode(IPVS, &ports), |mode, call| match call {
        Call::Commit { .. } if mode == IPVS => CallOutcome::Refuse(Recovery::Halt),
        Call::Observe if mode == IPTABLES && READS.fetch_add(1, Ordering::Relaxed) == 0 => {
            CallOutcome::Refuse(Recovery::Observe)
        }
        _ => CallOutcome::Pass,
    });
}

/// T396: the Services of a mode that was given up while it served counted as not programmed until its
/// replacement was complete.
#[test]
fn t396_what_serves_counts_as_programmed_until_its_replacement_is_complete() {
    static FAILS: AtomicBool = AtomicBool::new(false);
    let mut world = World::new(|mode, call| match call {
        Call::Commit { .. } if mode == IPVS && FAILS.load(Ordering::Relaxed) => {
            CallOutcome::Refuse(Recovery::Halt)
        }
        _ => CallOutcome::Pass,
    });
    let before = in_mode(IPVS, &[8080; 9]);
    world.finish(&before);
    FAILS.store(true, Ordering::Relaxed);

    let after = in_mode(IPVS, &[8081; 10]);
    let services = |world: &World| {
        let programmed = world.family.status().programmed;
        programmed.map(|programmed| programmed.services().len())
    };
    world.sync(&after, Reason::Changed);
    assert_eq!(world.holding(), [NFTABLES, IPVS]);
    while world.family.is_unfinished() {
        assert_eq!(services(&world), Some(9), "mode ipvs serves them");
        world.sync(&after, Reason::Continued);
    }
    assert_eq!(services(&world), Some(10));
    assert_eq!(world.holding(), [NFTABLES]);
}
