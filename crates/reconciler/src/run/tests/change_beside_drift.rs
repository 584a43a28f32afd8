//! A change that waits while one family is checked for external changes.

use std::collections::BTreeSet;

use super::*;

/// Failure story T444: another program had touched the IPv6 rules. The check that followed repaired
/// IPv6 only, but counted as the answer to a change of IPv4 that waited at that moment: clients were
/// sent to an endpoint that was gone until the periodic check, up to `syncPeriod` later.
#[test]
fn t444_a_change_is_programmed_although_another_program_touched_the_other_family() {
    let foreign = ExternalChange {
        families: BTreeSet::from([Family::Ipv6]),
        ..ExternalChange::possible()
    };
    // In whatever order the two arrive.
    for (change_at, drift_at) in [(7000, 7000), (7000, 6999), (6999, 7000), (7000, 7001)] {
        let story = Story::new().wants(0, web([8080]));
        let drifted = Command::Drifted(foreign.clone());
        let story = match change_at <= drift_at {
            true => story.wants(change_at, web([9090])).at(drift_at, drifted),
            false => story.at(drift_at, drifted).wants(change_at, web([9090])),
        };
        let kernel = story.kernel.clone();
        let families = Family::ALL.map(|family| {
            let backend = kernel.backend(family);
            Faulty::new(backend, |_| CallOutcome::Pass)
        });

        let reports = story.until_with_families(8000, families.into());

        let expected = FakeRules::render(&web([9090]), Family::Ipv4);
        assert_eq!(
            kernel.rules(Family::Ipv4),
            expected,
            "{:?}",
            syncs(&reports)
        );
        let of = |reason| {
            let syncs = syncs(&reports).into_iter();
            let syncs = syncs.filter(move |(_, of)| *of == reason);
            syncs.map(|(at, _)| at).collect::<Vec<u64>>()
        };
        assert_eq!(of(Reason::Drift), [drift_at]);
        // It is due as without the other program: a check takes no turn from it.
        assert_eq!(
            of(Reason::Changed),
            [change_at, change_at],
            "in each family"
        );
    }
}

/// T444: a program that touches the IPv6 rules every other second, and a `minSyncPeriod` of ten: each
/// check moved the change on by ten seconds.
#[test]
fn t444_checks_of_another_family_move_no_change_on() {
    let foreign = ExternalChange {
        families: BTreeSet::from([Family::Ipv6]),
        ..ExternalChange::possible()
    };
    let mut story = Story::new();
    story.settings.periods.min_sync_period = Duration::from_secs(10);
    story.settings.periods.sync_period = Duration::from_secs(3600);
    let mut story = story.wants(0, web([8080]));
    for drift in 1..30 {
        if drift == 3 {
            story = story.wants(5000, web([8080, 9090]));
        }
        story = story.at(drift * 2000, Command::Drifted(foreign.clone()));
    }
    let kernel = story.kernel.clone();
    let families = Family::ALL.map(|family| {
        let backend = kernel.backend(family);
        Faulty::new(backend, |_| CallOutcome::Pass)
    });

    let reports = story.until_with_families(60_000, families.into());

    let expected = FakeRules::render(&web([8080, 9090]), Family::Ipv4);
    assert_eq!(kernel.rules(Family::Ipv4), expected);
    let syncs = syncs(&reports);
    let changed = syncs.iter().find(|(_, reason)| *reason == Reason::Changed);
    let (at, _) = changed.expect("it is programmed");
    assert!(*at <= 15_000, "{syncs:?}");
}
