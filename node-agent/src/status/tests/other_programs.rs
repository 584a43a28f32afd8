//! What a node reports about changes by other programs and about their rules.

use super::*;

#[test]
fn who_keeps_changing_the_rules_is_reported_once_and_who_did_it_last_afterwards() {
    let view = view();
    let actor = backend::Actor {
        program: "firewalld".to_owned(),
        process: 815,
    };
    let mut report = report(Family::ALL.map(|family| programmed(family, &view)));
    report.families[1].last_repaired_drift = Some(RepairedDrift {
        found: SystemTime::UNIX_EPOCH,
        actor: Some(actor.clone()),
        size: backend::Size {
            elements: 3,
            objects: 2,
        },
        repaired_after: std::time::Duration::from_millis(3),
    });
    for (family, seconds) in [(0, 7), (1, 9)] {
        report.families[family].drift_by_program = Arc::new([DriftByProgram {
            program: Some("firewalld".to_owned()),
            repairs: 2,
            last: SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds),
            size: backend::Size {
                elements: 3,
                objects: 2,
            },
        }]);
    }
    let drift = Drift {
        program: Some("firewalld".to_owned()),
        continues: false,
        repairs: 4,
        last_found: Time(Timestamp::from_second(9).expect("a time")),
        elements: 6,
        objects: 4,
    };
    assert_eq!(say(&view, Some(&report)).drift, slice::from_ref(&drift));
    let quiet = reported(&say(&view, Some(&report)), condition::RULES_CONTESTED);
    let expected = "last repaired at 1970-01-01T00:00:00Z: IPv6: firewalld (process 815) had changed \
         3 elements and 2 objects";
    assert_eq!(
        quiet,
        ("False".into(), "Undisturbed".into(), expected.into())
    );

    report.repair_backoff = Some(RepairBackoff {
        since: SystemTime::UNIX_EPOCH,
        repairs: 6,
        within: std::time::Duration::from_millis(1300),
        actor: Some(actor),
    });
    let status = say(&view, Some(&report));
    assert_eq!(
        status.drift,
        [Drift {
            continues: true,
            ..drift
        }]
    );
    let contested = reported(&status, condition::RULES_CONTESTED);
    let expected = "since 1970-01-01T00:00:00Z, firewalld (process 815) keeps changing the rules: \
         repaired 6 times within 1.3 s";
    assert_eq!(
        contested,
        ("True".into(), "RepairsHeldBack".into(), expected.into())
    );
    assert_eq!(reported(&status, condition::DEGRADED).1, "RepairsHeldBack");
    assert_eq!(
        reported(&status, condition::READY).0,
        "True",
        "the rules are there again"
    );
}

#[test]
fn what_is_reported_of_the_variants_of_iptables_does_not_outlive_its_truth() {
    let view = view();
    let by = |variant| {
        let state = modes::ModeState {
            active_mode: Some(Mode::Iptables),
            variant,
            ..modes::ModeState::default()
        };
        Family::ALL.map(|family| (family, state.clone())).into()
    };
    let say = |before: &NodeProxyStatus, sighting: &VariantScan, variant| {
        let facts = Facts {
            modes: &by(variant),
            variants: sighting,
            ..facts(&view, None)
        };
        let status = status(&facts, before, Timestamp::UNIX_EPOCH);
        let (_, reason, message) = reported(&status, condition::IPTABLES_SPLIT);
        (status, reason, message)
    };
    let refused = VariantScan::Refused("not permitted".to_owned());
    let (before, reason, message) = say(&NodeProxyStatus::default(), &refused, None);
    assert_eq!(reason, "VariantsUnreadable");
    assert!(message.contains("no variant is used yet"), "{message}");
    let (_, _, message) = say(&before, &refused, Some(Variant::Legacy));
    assert!(message.contains("are in variant legacy"), "{message}");

    // The counts of other programs' rules change all the time: the message keeps the first ones.
    let presence = |rules| Presence {
        offered: true,
        rules,
        ..Presence::default()
    };
    let both = |rules| {
        VariantScan::Seen(xtables::Found {
            nf_tables: presence(rules),
            legacy: presence(2),
        })
    };
    let (before, reason, first) = say(&before, &both(3), Some(Variant::NfTables));
    assert_eq!(reason, "BothVariantsInUse");
    let (_, _, later) = say(&before, &both(4), Some(Variant::NfTables));
    assert_eq!(first, later);
}
