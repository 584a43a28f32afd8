//! The status of a node, derived from the state of its parts.

mod api_service;
mod families;
mod handover;
mod other_programs;
mod unsupported;

use super::*;

use std::slice;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use backend::{Leftover, Recovery};
use crds::condition::{Status, status_of};
use crds::profile::mode::Mode as ProfileMode;
use crds::{ConfigHash, EffectiveConfig, NodeProxySpec};
use dataplane::{Config, FrontendKey, Mode, Node, Port, Protocol, ServiceKey};
use reconciler::{
    Activity, DriftByProgram, Failing, Pace, Quarantined, RepairBackoff, RepairedDrift,
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
        rejections: Arc::default(),
    }
}

fn programmed(family: Family, view: &View) -> FamilyStatus {
    FamilyStatus {
        programmed_since: Some(SystemTime::UNIX_EPOCH),
        last_receipt: Some(SystemTime::UNIX_EPOCH),
        last_success: Some(SystemTime::UNIX_EPOCH),
        programmed: view.desired.clone(),
        ..FamilyStatus::new(family)
    }
}

fn by_nftables() -> BTreeMap<Family, modes::ModeState> {
    let state = modes::ModeState {
        active_mode: Some(Mode::Nftables),
        ..modes::ModeState::default()
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
        repair_backoff: None,
        finished: Vec::new(),
        latencies: Vec::new(),
    }
}

/// A node in mode nftables without any problem.
fn facts<'a>(view: &'a View, report: Option<&'a Report>) -> Facts<'a> {
    static MODES: LazyLock<BTreeMap<Family, modes::ModeState>> = LazyLock::new(by_nftables);
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

/// Failure story T4: talos#8928.
#[test]
fn t4_a_mode_that_is_not_there_is_answered_and_the_effective_one_is_shown() {
    let mut view = view();
    Arc::make_mut(&mut view.effective).mode = ProfileMode::Ipvs;
    let config = Config {
        mode: Mode::Ipvs,
        ..Config::default()
    };
    view.desired = Some(Dataplane::new(Arc::new(Node::default()), Arc::new(config)));
    let both = Family::ALL.map(|family| programmed(family, &view));
    let state = modes::ModeState {
        active_mode: Some(Mode::Nftables),
        chosen: Some(Mode::Nftables),
        unusable: [(
            Mode::Ipvs,
            "the kernel has no IPVS: it needs module ip_vs".to_owned(),
        )]
        .into(),
        ..modes::ModeState::default()
    };
    let modes = Family::ALL.map(|family| (family, state.clone())).into();
    let report = report(both);
    let facts = Facts {
        modes: &modes,
        ..facts(&view, Some(&report))
    };
    let status = status(&facts, &NodeProxyStatus::default(), Timestamp::UNIX_EPOCH);
    assert_eq!(status.mode, Some(ProfileMode::Nftables));
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
    let state = modes::ModeState {
        active_mode: Some(Mode::Ipvs),
        limitations: vec![missing.to_owned()],
        ..modes::ModeState::default()
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
    let state = modes::ModeState {
        active_mode: Some(Mode::Iptables),
        chosen: Some(Mode::Nftables),
        stalled: [(Mode::Iptables, "the lock is held".to_owned())].into(),
        ..modes::ModeState::default()
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

/// T383: during a search for refused Services the node counted as programmed.
#[test]
fn t383_a_node_that_searches_for_refused_services_says_so() {
    let view = view();
    let mut both = Family::ALL.map(|family| programmed(family, &view));
    both[0].searched = 12;
    let status = say(&view, Some(&report(both)));
    assert_eq!(reported(&status, condition::READY).0, "True");
    let (degraded, reason, message) = reported(&status, condition::DEGRADED);
    assert_eq!((&*degraded, &*reason), ("True", "ServicesRejected"));
    assert!(message.contains("12 Services of a change"), "{message}");
    let (programmed, _, message) = reported(&status, condition::IPV4_PROGRAMMED);
    assert_eq!(programmed, "True");
    assert!(message.starts_with("all but 12 Services"), "{message}");
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
