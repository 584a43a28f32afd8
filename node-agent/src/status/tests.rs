//! The status of a node, derived from the state of its parts.

mod api_service;
mod handover;
mod unsupported;

use super::*;

use std::slice;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use backend::{Recovery, Remains};
use crds::condition::{Status, status_of};
use crds::profile::mechanism::Mode;
use crds::{ConfigHash, EffectiveConfig, NodeProxySpec};
use dataplane::{Config, FrontendKey, Mechanism, Node, Port, Protocol, ServiceKey};
use reconciler::{
    Activity, DriftByProgram, Failing, Pace, Quarantined, RecentSyncs, RepairBackoff, RepairedDrift,
};
use xtables::{Presence, Variant};

use crate::api_service::ApiServiceState;
use crate::engine::{Configuration, SourceHealth};
use source::Assignment;

fn view() -> View {
    view_of(EffectiveConfig::default())
}

fn view_of(effective: EffectiveConfig) -> View {
    let assignment = Assignment {
        generation: Some(3),
        spec: NodeProxySpec {
            profile_name: "default".to_owned(),
            config_hash: ConfigHash::of(&effective),
            config: effective.clone(),
            ..NodeProxySpec::default()
        },
        reason: String::new(),
        unreadable: Vec::new(),
    };
    View {
        missing: Vec::new(),
        configuration: Configuration::Assigned(Arc::new(assignment)),
        hash: ConfigHash::of(&effective),
        effective: Arc::new(effective),
        source: SourceHealth::default(),
        lifecycle: catalog::NodeLifecycle::Staying,
        desired: Some(Dataplane::new(
            Arc::new(Node::default()),
            Arc::new(Config::default()),
        )),
        endpoints: 0,
        rejections: Arc::new([]),
    }
}

fn programmed(family: Family, view: &View) -> FamilyStatus {
    FamilyStatus {
        family,
        programmed_since: Some(SystemTime::UNIX_EPOCH),
        last_receipt: Some(SystemTime::UNIX_EPOCH),
        last_success: Some(SystemTime::UNIX_EPOCH),
        failing: None,
        pace: Pace::Ordinary,
        drifts: 0,
        last_repaired_drift: None,
        drift_by_program: Arc::default(),
        quarantined: Vec::new(),
        unsupported_fields: Arc::new([]),
        programmed: view.desired.clone(),
        syncs: RecentSyncs::default(),
        remains: backend::Remains::Nothing,
    }
}

fn by_nftables() -> BTreeMap<Family, modes::MechanismState> {
    let state = modes::MechanismState {
        active_mode: Some(Mechanism::Nftables),
        ..modes::MechanismState::default()
    };
    Family::ALL.map(|family| (family, state.clone())).into()
}

fn failing(mut family: FamilyStatus, recovery: Recovery) -> FamilyStatus {
    family.failing = Some(Failing {
        since: SystemTime::UNIX_EPOCH,
        syncs: 2,
        retries: 1,
        error: "failed to commit: no such device".to_owned(),
        recovery,
    });
    family
}

fn report(families: [FamilyStatus; 2]) -> Report {
    Report {
        activity: Activity::Waiting,
        families: families.into(),
        contest: None,
        finished: Vec::new(),
        latencies: Vec::new(),
    }
}

/// A node in mode nftables without any problem.
fn facts<'a>(view: &'a View, report: Option<&'a Report>) -> Facts<'a> {
    static MODES: LazyLock<BTreeMap<Family, modes::MechanismState>> = LazyLock::new(by_nftables);
    static CONNECTIONS: LazyLock<conntrack::ConntrackState> = LazyLock::new(Default::default);
    static CROWDED_NOWHERE: BTreeSet<FrontendKey> = BTreeSet::new();
    static NOT_SERVED: LazyLock<NotServed> = LazyLock::new(Default::default);
    Facts {
        view,
        report,
        running_sync: None,
        elements: 0,
        modes: &MODES,
        variants: &VariantScan::None,
        latency: None,
        connections: &CONNECTIONS,
        not_relayed: &[],
        full_affinity_maps: &CROWDED_NOWHERE,
        not_served: &NOT_SERVED,
        serving_state: ServingState::Serving,
        scan: &ForeignProxyScan::None,
        handover_refusal: None,
        api_service: &ApiServiceState::Unchecked,
        kernel: "6.18",
    }
}

fn say(view: &View, report: Option<&Report>) -> NodeProxyStatus {
    let facts = facts(view, report);
    status(&facts, &NodeProxyStatus::default(), Timestamp::UNIX_EPOCH)
}

/// The status, reason and message of one condition.
fn reported(status: &NodeProxyStatus, kind: &str) -> (String, String, String) {
    let condition = status.conditions.iter().find(|c| c.type_ == kind);
    let condition = condition.expect("it is there from the beginning");
    (
        condition.status.clone(),
        condition.reason.clone(),
        condition.message.clone(),
    )
}

#[test]
fn a_node_that_serves_everything_is_ready_and_has_applied_its_configuration() {
    let view = view();
    let both = Family::ALL.map(|family| programmed(family, &view));
    let status = say(&view, Some(&report(both)));
    assert_eq!(reported(&status, condition::READY).0, "True");
    assert_eq!(reported(&status, condition::DEGRADED).0, "False");
    assert_eq!(reported(&status, condition::PROGRESSING).1, "Settled");
    assert_eq!(status.observed_generation, Some(3));
    assert_eq!(status.applied_hash, Some(view.hash.clone()));
    let generations = status.conditions.iter().map(|c| c.observed_generation);
    assert!(
        generations
            .into_iter()
            .all(|generation| generation == Some(3))
    );
}

/// Failure story T56: kubernetes#83263.
#[test]
fn t56_a_node_that_has_never_synced_is_not_ready_and_says_what_it_waits_for() {
    let mut view = view();
    view.missing = vec!["list of Services".to_owned()];
    view.desired = None;
    let status = say(&view, None);
    let (ready, reason, message) = reported(&status, condition::READY);
    assert_eq!((ready.as_str(), reason.as_str()), ("False", "ListsPending"));
    assert_eq!(message, "waiting for the list of Services");
    assert_eq!(status.applied_hash, None);
    assert_eq!(status.mode, None);
}

#[test]
fn listed_but_not_programmed_is_starting() {
    let view = view();
    let never = Family::ALL.map(|family| FamilyStatus {
        programmed_since: None,
        programmed: None,
        ..programmed(family, &view)
    });
    let status = say(&view, Some(&report(never)));
    assert_eq!(reported(&status, condition::READY).1, "Starting");
    assert_eq!(reported(&status, condition::IPV4_PROGRAMMED).0, "Unknown");
}

/// Failure story T58: kubernetes#133694.
#[test]
fn t58_one_broken_family_is_distinguished_from_the_other() {
    let view = view();
    let [ipv4, ipv6] = Family::ALL.map(|family| programmed(family, &view));
    let status = say(&view, Some(&report([ipv4, failing(ipv6, Recovery::Retry)])));
    assert_eq!(reported(&status, condition::READY).1, "PartiallyProgrammed");
    assert_eq!(reported(&status, condition::IPV4_PROGRAMMED).0, "True");
    let (programmed, reason, message) = reported(&status, condition::IPV6_PROGRAMMED);
    assert_eq!(
        (programmed.as_str(), reason.as_str()),
        ("False", "CommitFailed")
    );
    assert_eq!(message, "IPv6: failed to commit: no such device");
}

/// A node whose kernel lacks IPv6, with or without an IPv6 address.
fn without_ipv6(address: Option<std::net::Ipv6Addr>) -> (View, Report) {
    let mut view = view();
    let node = Node {
        ipv6: address,
        ..Node::default()
    };
    view.desired = Some(Dataplane::new(Arc::new(node), Arc::new(Config::default())));
    let [ipv4, ipv6] = Family::ALL.map(|family| programmed(family, &view));
    let never = FamilyStatus {
        programmed_since: None,
        last_receipt: None,
        last_success: None,
        programmed: None,
        ..ipv6
    };
    let report = report([ipv4, failing(never, Recovery::Halt)]);
    (view, report)
}

/// Failure story T84.
#[test]
fn t84_a_family_that_the_kernel_lacks_and_no_service_needs_is_reported_and_the_node_is_ready() {
    let (view, report) = without_ipv6(None);
    let status = say(&view, Some(&report));
    let (ready, reason, message) = reported(&status, condition::READY);
    assert_eq!((ready.as_str(), reason.as_str()), ("True", "Programmed"));
    assert_eq!(
        message,
        "programmed without one address family: IPv6: failed to commit: no such device"
    );
    let (programmed, reason, _) = reported(&status, condition::IPV6_PROGRAMMED);
    assert_eq!(
        (programmed.as_str(), reason.as_str()),
        ("False", "KernelUnsupported")
    );
    assert_eq!(reported(&status, condition::DEGRADED).0, "False");
    assert_eq!(reported(&status, condition::PROGRESSING).1, "Settled");
    assert_eq!(status.applied_hash, Some(view.hash.clone()));
    assert_eq!(status.rejections.total, 0);
}

/// Failure story T84: Services that need the family are always named. If the node could be reached
/// through that family, it is not ready.
#[test]
fn t84_services_that_want_a_family_that_the_kernel_lacks_are_named() {
    for (address, ready) in [
        (None, "True"),
        (Some(std::net::Ipv6Addr::LOCALHOST), "False"),
    ] {
        let (view, report) = without_ipv6(address);
        let mut desired = Dataplane::default();
        let service = testkit::mk_service("shop/web").cluster_ip("fd00::1");
        let service = service.port("http", 80).build();
        let endpoints = testkit::mk_endpoints().build();
        let rules = dataplane::compile(&service, &endpoints, desired.node(), desired.config());
        desired.set(rules.into());
        let mut not_served = NotServed::default();
        not_served.follow(&[Family::Ipv6], Some(&desired));
        let facts = Facts {
            not_served: &not_served,
            ..facts(&view, Some(&report))
        };
        let before = NodeProxyStatus::default();
        let status = status(&facts, &before, Timestamp::UNIX_EPOCH);
        assert_eq!(reported(&status, condition::READY).0, ready);
        assert_eq!(status.rejections.total, 1);
        let first = &status.rejections.first[0];
        assert_eq!(
            (&*first.object, &*first.field),
            ("Service shop/web", "spec.ipFamilies")
        );
        let expected = "not served: IPv6: failed to commit: no such device";
        assert_eq!(first.message, expected);
        assert_eq!(status.applied_hash, Some(view.hash.clone()));
    }
}

#[test]
fn a_kernel_that_cannot_is_distinguished_from_one_that_would_not() {
    let view = view();
    let both = Family::ALL.map(|f| failing(programmed(f, &view), Recovery::Halt));
    let status = say(&view, Some(&report(both)));
    assert_eq!(reported(&status, condition::READY).1, "KernelUnsupported");
    assert_eq!(
        reported(&status, condition::DEGRADED).1,
        "KernelUnsupported"
    );
}

/// Failure story T25: kubernetes#142068.
#[test]
fn t25_a_service_that_the_kernel_refuses_is_named_and_the_node_is_ready() {
    let view = view();
    let [mut ipv4, ipv6] = Family::ALL.map(|family| programmed(family, &view));
    ipv4.quarantined.push(Quarantined {
        service: ServiceKey::new("shop", "cart"),
        error: "invalid argument".to_owned(),
        since: SystemTime::UNIX_EPOCH,
    });
    let status = say(&view, Some(&report([ipv4, ipv6])));
    assert_eq!(reported(&status, condition::READY).0, "True");
    let (degraded, reason, message) = reported(&status, condition::DEGRADED);
    assert_eq!(
        (degraded.as_str(), reason.as_str()),
        ("True", "ServicesRejected")
    );
    assert!(message.contains("shop/cart"), "{message}");
    assert_eq!(status.rejections.total, 1);
    assert_eq!(status.rejections.first[0].object, "Service shop/cart");
}

/// Failure story T4: talos#8928.
#[test]
fn t4_a_mode_that_is_not_there_is_answered_and_the_effective_one_is_shown() {
    let mut view = view();
    Arc::make_mut(&mut view.effective).mode = Mode::Ipvs;
    let config = Config {
        mechanism: Mechanism::Ipvs,
        ..Config::default()
    };
    view.desired = Some(Dataplane::new(Arc::new(Node::default()), Arc::new(config)));
    let both = Family::ALL.map(|family| programmed(family, &view));
    let state = modes::MechanismState {
        active_mode: Some(Mechanism::Nftables),
        chosen: Some(Mechanism::Nftables),
        unusable: [(
            Mechanism::Ipvs,
            "the kernel has no IPVS: it needs module ip_vs".to_owned(),
        )]
        .into(),
        ..modes::MechanismState::default()
    };
    let modes = Family::ALL.map(|family| (family, state.clone())).into();
    let report = report(both);
    let facts = Facts {
        modes: &modes,
        ..facts(&view, Some(&report))
    };
    let status = status(&facts, &NodeProxyStatus::default(), Timestamp::UNIX_EPOCH);
    assert_eq!(status.mode, Some(Mode::Nftables));
    let (unsupported, reason, message) = reported(&status, condition::FEATURES_HONOURED);
    assert_eq!(
        (unsupported.as_str(), reason.as_str()),
        ("False", "ModeNotHonoured")
    );
    for part in ["mode ipvs", "nftables is used", "module ip_vs"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(
        status_of(&status.conditions, condition::READY),
        Status::True
    );
}

/// A mode that works with a disadvantage reports it.
#[test]
fn a_setting_that_could_not_be_written_is_named() {
    let view = view();
    let missing = "/proc/sys/net/ipv4/vs/run_estimation could not be set to 0";
    let state = modes::MechanismState {
        active_mode: Some(Mechanism::Ipvs),
        limitations: vec![missing.to_owned()],
        ..modes::MechanismState::default()
    };
    let modes = Family::ALL.map(|family| (family, state.clone())).into();
    let facts = Facts {
        modes: &modes,
        ..facts(&view, None)
    };
    let status = status(&facts, &NodeProxyStatus::default(), Timestamp::UNIX_EPOCH);
    let (unsupported, reason, message) = reported(&status, condition::FEATURES_HONOURED);
    assert_eq!((&*unsupported, &*reason), ("False", "FieldNotHonoured"));
    assert_eq!(message, format!("mode: {missing}"));
}

/// During a switch the sync succeeds as long as the new mode can be written, so the condition of
/// its family does not show that changes are late.
#[test]
fn a_mode_that_serves_and_cannot_follow_changes_degrades_the_node() {
    let view = view();
    let state = modes::MechanismState {
        active_mode: Some(Mechanism::Iptables),
        chosen: Some(Mechanism::Nftables),
        stalled: [(Mechanism::Iptables, "the lock is held".to_owned())].into(),
        ..modes::MechanismState::default()
    };
    let report = report(Family::ALL.map(|family| programmed(family, &view)));
    let facts = Facts {
        modes: &[(Family::Ipv4, state)].into(),
        ..facts(&view, Some(&report))
    };
    let status = status(&facts, &NodeProxyStatus::default(), Timestamp::UNIX_EPOCH);
    let (degraded, reason, message) = reported(&status, condition::DEGRADED);
    assert_eq!((&*degraded, &*reason), ("True", "CommitFailed"));
    let expected = "changes do not reach the rules of mode iptables, which serve IPv4 until the \
                    next mode is complete: the lock is held";
    assert_eq!(message, expected);
}

/// The message named one family only, and not the mode that serves meanwhile.
#[test]
fn all_failures_of_a_node_are_in_one_message() {
    let view = view();
    let state = modes::MechanismState {
        stalled: [(Mechanism::Iptables, "the lock is held".to_owned())].into(),
        ..modes::MechanismState::default()
    };
    let both = Family::ALL.map(|family| failing(programmed(family, &view), Recovery::Retry));
    let report = report(both);
    let facts = Facts {
        modes: &[(Family::Ipv4, state)].into(),
        ..facts(&view, Some(&report))
    };
    let status = status(&facts, &NodeProxyStatus::default(), Timestamp::UNIX_EPOCH);
    let (_, _, message) = reported(&status, condition::DEGRADED);
    for part in ["IPv4: failed", "IPv6: failed", "the lock is held"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_configuration_counts_as_applied_once_the_kernel_carries_it_out() {
    let view = view();
    let older = Dataplane::new(Arc::new(Node::default()), Arc::new(Config::default()));
    let before = Family::ALL.map(|family| FamilyStatus {
        programmed: Some(older.clone()),
        ..programmed(family, &view)
    });
    let status = say(&view, Some(&report(before)));
    assert_eq!(status.applied_hash, None);
    assert_eq!(reported(&status, condition::PROGRESSING).1, "Applying");
}

fn say_at(
    view: &View,
    report: &Report,
    running_sync: Option<RunningSync>,
    now: SystemTime,
) -> NodeProxyStatus {
    let facts = Facts {
        running_sync,
        ..facts(view, Some(report))
    };
    let now = Timestamp::try_from(now).expect("a time");
    status(&facts, &NodeProxyStatus::default(), now)
}

/// Failure story T57: kubernetes#83263.
#[test]
fn t57_a_sync_of_five_minutes_is_slow_and_the_node_is_ready_before_and_after_it() {
    let view = view();
    let seconds = |count| SystemTime::UNIX_EPOCH + Duration::from_secs(count);
    let both = Family::ALL.map(|family| programmed(family, &view));
    let before = report(both.clone());
    let running = RunningSync {
        reason: reconciler::Reason::Changed,
        since: seconds(1000),
    };
    let say_running = |now| say_at(&view, &before, Some(running), seconds(now));
    for (now, expected) in [(1005, "Settled"), (1030, "Slow"), (1300, "Slow")] {
        let status = say_running(now);
        let (_, reason, message) = reported(&status, condition::PROGRESSING);
        assert_eq!(reason, expected, "after {} s: {message}", now - 1000);
        assert_eq!(reported(&status, condition::READY).0, "True");
    }
    let earlier = reported(&say_running(1030), condition::PROGRESSING);
    let later = reported(&say_running(1300), condition::PROGRESSING);
    assert_eq!(
        earlier, later,
        "another message is another write to the API"
    );

    let [ipv4, mut ipv6] = both;
    ipv6.pace = Pace::Slow {
        took: Duration::from_secs(300),
    };
    let status = say_at(&view, &report([ipv4, ipv6]), None, seconds(1300));
    let (ready, reason, message) = reported(&status, condition::READY);
    assert_eq!((ready.as_str(), reason.as_str()), ("True", "Slow"));
    assert!(message.contains("IPv6 took 300 s"), "{message}");
    assert_eq!(reported(&status, condition::DEGRADED).0, "False");
}

#[test]
fn a_node_that_hears_nothing_is_ready_for_a_while_and_then_no_longer() {
    let mut view = view();
    let since = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    view.source.stale = Some((since, "connection refused".to_owned()));
    let both = report(Family::ALL.map(|family| programmed(family, &view)));
    let after = |seconds| say_at(&view, &both, None, since + Duration::from_secs(seconds));
    assert_eq!(reported(&after(100), condition::READY).0, "True");
    assert_eq!(reported(&after(100), condition::DEGRADED).1, "SourceStale");
    let (ready, reason, message) = reported(&after(121), condition::READY);
    assert_eq!((ready.as_str(), reason.as_str()), ("False", "SourceStale"));
    assert!(message.contains("connection refused"), "{message}");
}

#[test]
fn a_manifest_that_cannot_be_read_is_named() {
    let mut view = view();
    view.source.unreadable = Some(vec!["web.yaml line 7: no such field".to_owned()]);
    let both = Family::ALL.map(|family| programmed(family, &view));
    let status = say(&view, Some(&report(both)));
    let (parsed, _, message) = reported(&status, condition::MANIFESTS_PARSED);
    assert_eq!(parsed, "False");
    assert_eq!(message, "web.yaml line 7: no such field");
    assert_eq!(
        reported(&status, condition::DEGRADED).1,
        "ManifestsUnreadable"
    );
    assert_eq!(reported(&status, condition::READY).0, "True");
}

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

    report.contest = Some(RepairBackoff {
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
        let state = modes::MechanismState {
            active_mode: Some(Mechanism::Iptables),
            variant,
            ..modes::MechanismState::default()
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
