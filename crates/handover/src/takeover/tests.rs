use std::collections::BTreeMap;

use axum::Router;
use crds::NodeProxyStatus;
use crds::profile::handover::Handover;
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
    let directory = tempfile::tempdir().expect("a directory");
    // A report about no family has none that is not programmed.
    let report = activity.map(|activity| {
        Arc::new(Report {
            activity,
            families: Vec::new(),
            contest: None,
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
        let resumed = server.resume(effort, &mut caller).await;
        assert_eq!(resumed, expected, "{activity:?}, {effort:?}");
        assert!(caller.refusal().contains("CommitFailed"));
    }
}

/// Failure story T431: a node that was not handed back.
#[test]
fn t431_rules_that_were_never_programmed_are_an_obstacle() {
    let weight = |activity| {
        let (server, _directory) = server(activity, ServingState::Serving);
        readiness(&server, ServingState::Serving).weight
    };
    assert_eq!(weight(Some(Activity::Waiting)), Severity::Warning);
    assert_eq!(weight(None), Severity::Obstacle);
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
