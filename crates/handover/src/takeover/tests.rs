use std::collections::{BTreeMap, BTreeSet};

use axum::Router;
use crds::NodeProxyStatus;
use crds::profile::handover::Handover;
use dataplane::Dataplane;
use foreign_proxy::RulesWriter;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use modes::{ModeState, VariantScan};
use tempfile::TempDir;
use tokio::sync::watch;

use super::*;
use crate::{Agent, HandbackMark, NodeView};

/// An agent that has this report and status, and keeps them whatever is posted.
#[derive(Debug)]
struct UnchangingAgent {
    serving_state: ServingState,
    report: watch::Sender<Option<Arc<Report>>>,
    status: watch::Sender<Arc<NodeProxyStatus>>,
    scan: watch::Sender<ForeignProxyScan>,
}

impl Agent for UnchangingAgent {
    fn view(&self) -> Option<NodeView> {
        None
    }

    fn desired_handover(&self) -> Handover {
        Handover::Manual
    }

    fn profile_name(&self) -> Option<String> {
        None
    }

    fn modes(&self) -> BTreeMap<Family, ModeState> {
        BTreeMap::new()
    }

    fn variants(&self) -> VariantScan {
        VariantScan::default()
    }

    fn report(&self) -> watch::Receiver<Option<Arc<Report>>> {
        self.report.subscribe()
    }

    fn status(&self) -> watch::Receiver<Arc<NodeProxyStatus>> {
        self.status.subscribe()
    }

    fn scan(&self) -> watch::Receiver<ForeignProxyScan> {
        self.scan.subscribe()
    }

    fn post_scan(&self, _: ForeignProxyScan) {}

    fn rules_writer(&self) -> RulesWriter {
        RulesWriter::default()
    }

    fn serving_state(&self) -> ServingState {
        self.serving_state
    }

    fn post_serving_state(&self, _: ServingState) {}

    fn post_refusal(&self, _: Option<String>) {}
}

/// A node whose agent reports `activity`, or has not reported, and that is not ready.
fn server(activity: Option<Activity>, serving_state: ServingState) -> (Server, TempDir) {
    // A report about no family has none that is not programmed.
    server_of(activity, serving_state, Vec::new())
}

/// The same with these families in the report.
fn server_of(
    activity: Option<Activity>,
    serving_state: ServingState,
    families: Vec<FamilyStatus>,
) -> (Server, TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let report = activity.map(|activity| {
        Arc::new(Report {
            activity,
            families,
            repair_backoff: None,
            finished: Vec::new(),
            latencies: Vec::new(),
        })
    });
    let status = NodeProxyStatus {
        conditions: vec![Condition {
            type_: condition::READY.to_owned(),
            status: "False".to_owned(),
            reason: "CommitFailed".to_owned(),
            message: "IPv4: failed to commit".to_owned(),
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            observed_generation: None,
        }],
        ..NodeProxyStatus::default()
    };
    let agent = UnchangingAgent {
        serving_state,
        report: watch::Sender::new(report),
        status: watch::Sender::new(Arc::new(status)),
        scan: watch::Sender::new(ForeignProxyScan::None),
    };
    let mark = HandbackMark::within(directory.path(), "node-1");
    let lock = Lock {
        path: directory.path().join("xtables.lock"),
        patience: Duration::ZERO,
    };
    let agent = Arc::new(agent);
    let server = Server::within(directory.path(), agent, mark, Router::new(), lock);
    (server, directory)
}

/// Failure story T431.
#[tokio::test(start_paused = true)]
async fn t431_force_removes_no_rules_of_kube_proxy_while_signposts_are_not_programmed() {
    for (activity, effort, expected) in [
        (Some(Activity::Waiting), WarningPolicy::Forced, Ok(())),
        (
            Some(Activity::Waiting),
            WarningPolicy::Careful,
            Err(Ending::Failed),
        ),
        (
            Some(Activity::Withdrawn),
            WarningPolicy::Forced,
            Err(Ending::Failed),
        ),
        (None, WarningPolicy::Forced, Err(Ending::Failed)),
    ] {
        let (server, _directory) = server(activity, ServingState::HandedBack);
        let mut caller = Caller::default();
        let resumed = server.resume(&Found::default(), effort, &mut caller).await;
        assert_eq!(resumed, expected, "{activity:?}, {effort:?}");
        assert!(caller.refusal().contains("CommitFailed"));
    }
}

/// Failure story T431: a node that was not handed back.
#[test]
fn t431_rules_that_were_never_programmed_are_an_obstacle() {
    let weight = |activity| {
        let (server, _directory) = server(activity, ServingState::Serving);
        readiness(&server, ServingState::Serving, &Found::default()).weight
    };
    assert_eq!(weight(Some(Activity::Waiting)), Severity::Warning);
    assert_eq!(weight(None), Severity::Obstacle);
}

/// Failure story T431: kube-proxy serves IPv4 alone, and Signpost's rules for IPv6 fail.
#[tokio::test(start_paused = true)]
async fn t431_force_takes_over_where_kube_proxy_has_no_rules_in_the_family_that_fails() {
    let both = [Family::Ipv4, Family::Ipv6];
    for (programmed, of_kube_proxy, is_allowed) in [
        (&both[..1], &both[..1], true),
        (&both[..1], &both[..], false),
        (&both[1..], &both[..1], false),
        (&[][..], &both[..1], false),
        (&[][..], &[][..], false),
    ] {
        let families = Family::ALL.map(|family| status(family, programmed.contains(&family)));
        let rules = BTreeSet::from_iter(of_kube_proxy.iter().copied());
        let rules = (!rules.is_empty()).then_some((Mode::Nftables, rules));
        let found = Found {
            rules: BTreeMap::from_iter(rules),
            ..Found::default()
        };
        let case = format!("{programmed:?} of {of_kube_proxy:?}");
        let (server, _directory) = server_of(
            Some(Activity::Waiting),
            ServingState::Serving,
            families.clone().into(),
        );
        let weight = readiness(&server, ServingState::Serving, &found).weight;
        let expected = match is_allowed {
            true => Severity::Warning,
            false => Severity::Obstacle,
        };
        assert_eq!(weight, expected, "{case}");
        let (server, _directory) = server_of(
            Some(Activity::Waiting),
            ServingState::HandedBack,
            families.into(),
        );
        for effort in [WarningPolicy::Forced, WarningPolicy::Careful] {
            let mut caller = Caller::default();
            let resumed = server.resume(&found, effort, &mut caller).await;
            let is_forced = is_allowed && effort == WarningPolicy::Forced;
            assert_eq!(resumed.is_ok(), is_forced, "{case}, {effort:?}");
        }
    }
}

/// A family whose rules are in the kernel or have failed.
fn status(family: Family, is_programmed: bool) -> FamilyStatus {
    FamilyStatus {
        programmed: is_programmed.then(Dataplane::default),
        ..FamilyStatus::new(family)
    }
}

#[test]
fn what_to_stop_is_named_and_not_for_a_daemon_set_alone() {
    let text = stop_first("kube-proxy answers at 127.0.0.1:10256");
    for words in [
        "kube-proxy answers at 127.0.0.1:10256: stop kube-proxy first\n",
        "kubectl -n kube-system patch daemonset kube-proxy",
        "RKE2",
        "docs/migrate.md",
    ] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
}
