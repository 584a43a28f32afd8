//! Which proxy serves the node, and which one the profile asks for.

use std::num::NonZeroU64;

use super::*;

/// A node whose profile asks for `handover`.
fn view_with(handover: Handover) -> View {
    view_of(EffectiveConfig {
        handover,
        ..EffectiveConfig::default()
    })
}

/// The reconciler's report once Signpost's rules are removed.
fn withdrawn(view: &View) -> Report {
    let families = Family::ALL.map(|family| FamilyStatus {
        programmed: None,
        programmed_since: None,
        ..programmed(family, view)
    });
    Report {
        activity: Activity::Withdrawn,
        ..report(families)
    }
}

fn seen(mode: Option<foreign_proxy::Mode>) -> ForeignProxyScan {
    let families = BTreeSet::from(Family::ALL);
    let rules = mode.map(|mode| (mode, families));
    ForeignProxyScan::Seen(
        foreign_proxy::Found {
            rules: rules.into_iter().collect(),
            ..foreign_proxy::Found::default()
        },
        foreign_proxy::process::KubeProxy::Silent,
    )
}

#[test]
fn a_node_that_was_handed_back_is_not_ready_and_says_who_serves() {
    let view = view();
    let report = withdrawn(&view);
    let say = |report: &Report, scan: &ForeignProxyScan| {
        let facts = Facts {
            serving_state: ServingState::HandedBack,
            scan,
            ..facts(&view, Some(report))
        };
        status(&facts, &NodeProxyStatus::default(), Timestamp::UNIX_EPOCH)
    };
    let reported_of = |scan: &ForeignProxyScan| {
        let status = say(&report, scan);
        for kind in [
            condition::READY,
            condition::PROGRESSING,
            condition::IPV6_PROGRAMMED,
        ] {
            let (status, reason, _) = reported(&status, kind);
            assert_eq!((&*status, &*reason), ("False", "HandedBack"), "{kind}");
        }
        reported(&status, condition::READY).2
    };
    assert!(reported_of(&ForeignProxyScan::None).contains("Signpost serves no Service here"));
    let nothing = ForeignProxyScan::Seen(
        foreign_proxy::Found::default(),
        foreign_proxy::process::KubeProxy::Silent,
    );
    assert!(reported_of(&nothing).contains("no proxy serves"));

    let mut stuck = report.clone();
    stuck.families[0] = failing(stuck.families[0].clone(), Recovery::Retry);
    let status = say(&stuck, &ForeignProxyScan::None);
    assert!(
        reported(&status, condition::READY)
            .2
            .contains("still in the kernel: IPv4: failed to commit")
    );
}

#[test]
fn t171_a_takeover_that_the_profile_asks_for_counts_as_applied_once_it_is_done() {
    let view = view_with(Handover::Takeover);
    let report = report(Family::ALL.map(|family| programmed(family, &view)));
    let say = |scan: &ForeignProxyScan, refusal: Option<&str>| {
        let facts = Facts {
            scan,
            handover_refusal: refusal,
            ..facts(&view, Some(&report))
        };
        status(&facts, &NodeProxyStatus::default(), Timestamp::UNIX_EPOCH)
    };
    let kube_proxy = seen(Some(foreign_proxy::Mode::Nftables));
    let before = say(&kube_proxy, None);
    assert_eq!(before.applied_hash, None);
    assert_eq!(
        reported(&before, condition::PROGRESSING).1,
        "HandoverPending"
    );
    assert_eq!(
        reported(&before, condition::READY).0,
        "True",
        "it serves beside kube-proxy"
    );
    assert_eq!(reported(&before, condition::DEGRADED).0, "False");

    let refused = say(
        &kube_proxy,
        Some("kube-proxy answers: stop kube-proxy first"),
    );
    assert_eq!(refused.applied_hash, None);
    let (status, reason, message) = reported(&refused, condition::DEGRADED);
    assert_eq!((&*status, &*reason), ("True", "HandoverRefused"));
    assert_eq!(message, "kube-proxy answers: stop kube-proxy first");

    // The refusal of an earlier attempt does not count once the handover is complete.
    let done = say(
        &seen(None),
        Some("kube-proxy answers: stop kube-proxy first"),
    );
    assert_eq!(done.applied_hash, Some(view.hash.clone()));
    assert_eq!(reported(&done, condition::PROGRESSING).1, "Settled");
    assert_eq!(reported(&done, condition::DEGRADED).0, "False");
}

/// Failure story T277: connections outlive a handback from mode ipvs, and nothing in the status of the
/// node says so.
#[test]
fn t277_connections_that_outlive_a_handback_are_counted_in_the_status() {
    let view = view();
    let mut report = withdrawn(&view);
    let message = |report: &Report| {
        let facts = Facts {
            serving_state: ServingState::HandedBack,
            ..facts(&view, Some(report))
        };
        let status = status(&facts, &NodeProxyStatus::default(), Timestamp::UNIX_EPOCH);
        reported(&status, condition::READY).2
    };
    let nothing = message(&report);
    assert!(!nothing.contains("connection"), "{nothing}");
    for family in &mut report.families {
        family.leftover = Leftover::Connections(NonZeroU64::MIN.saturating_add(2));
    }
    let six = message(&report);
    assert!(six.starts_with(&nothing), "{six}");
    assert!(
        six.contains("6 connections of mode ipvs go on until they end"),
        "{six}"
    );
}

#[test]
fn t171_a_node_is_ready_once_it_is_handed_back_as_the_profile_asks() {
    let view = view_with(Handover::Handback);
    let withdrawn = withdrawn(&view);
    let serving = report(Family::ALL.map(|family| programmed(family, &view)));
    let kube_proxy = seen(Some(foreign_proxy::Mode::Nftables));
    let say = |report: &Report, serving_state, scan: &ForeignProxyScan| {
        let facts = Facts {
            scan,
            serving_state,
            ..facts(&view, Some(report))
        };
        status(&facts, &NodeProxyStatus::default(), Timestamp::UNIX_EPOCH)
    };
    let before = say(&serving, ServingState::Serving, &kube_proxy);
    assert_eq!(before.applied_hash, None);
    assert_eq!(
        reported(&before, condition::PROGRESSING).1,
        "HandoverPending"
    );

    let done = say(&withdrawn, ServingState::HandedBack, &kube_proxy);
    assert_eq!(done.applied_hash, Some(view.hash.clone()));
    let (status, reason, _) = reported(&done, condition::READY);
    assert_eq!((&*status, &*reason), ("True", "HandedBack"));
    assert_eq!(reported(&done, condition::PROGRESSING).0, "False");

    let unserved = say(&withdrawn, ServingState::HandedBack, &seen(None));
    assert_eq!(
        reported(&unserved, condition::READY).0,
        "False",
        "no proxy serves it"
    );
}
