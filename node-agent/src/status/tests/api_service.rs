//! New connections through the programmed rules.

use super::*;

/// Failure story T184.
#[test]
fn t184_connections_that_fail_through_programmed_rules_degrade_a_ready_node() {
    let mut view = view();
    let report = report(Family::ALL.map(|family| programmed(family, &view)));
    let failing = ApiServiceState::Unreachable(
        ([10, 96, 0, 1], 443).into(),
        "no answer within 1 s".to_owned(),
    );
    let say = |view: &View, serving_state| {
        let facts = Facts {
            api_service: &failing,
            serving_state,
            ..facts(view, Some(&report))
        };
        let before = NodeProxyStatus::default();
        let status = status(&facts, &before, Timestamp::UNIX_EPOCH);
        let of = |kind| {
            let (status, reason, _) = reported(&status, kind);
            format!("{status}/{reason}")
        };
        [
            condition::READY,
            condition::DEGRADED,
            condition::API_SERVICE_REACHABLE,
        ]
        .map(of)
    };
    assert_eq!(
        say(&view, ServingState::Serving),
        [
            "True/Programmed",
            "True/ConnectionFailed",
            "False/ConnectionFailed"
        ]
    );
    // Neither tells anything about Signpost's rules.
    assert_eq!(
        say(&view, ServingState::HandedBack)[2],
        "Unknown/NotChecked"
    );
    view.source.stale = Some((SystemTime::UNIX_EPOCH, "refused".to_owned()));
    assert_eq!(
        say(&view, ServingState::Serving)[1..],
        ["True/SourceStale", "Unknown/NotChecked"]
    );
}

/// Failure story T184. The proof of the configuration before was reported for the next one.
#[test]
fn t184_a_connection_with_the_configuration_before_proves_nothing_about_this_one() {
    let view = view();
    let report = report(Family::ALL.map(|family| programmed(family, &view)));
    let say = |config: &ConfigHash| {
        let reachable = ApiServiceState::Reachable(([10, 96, 0, 1], 443).into(), config.clone());
        let facts = Facts {
            api_service: &reachable,
            ..facts(&view, Some(&report))
        };
        let before = NodeProxyStatus::default();
        let status = status(&facts, &before, Timestamp::UNIX_EPOCH);
        reported(&status, condition::API_SERVICE_REACHABLE).0
    };
    assert_eq!(say(&view.hash), "True");
    let other = EffectiveConfig {
        mode: ProfileMode::Ipvs,
        ..EffectiveConfig::default()
    };
    assert_eq!(say(&ConfigHash::of(&other)), "Unknown");
}
