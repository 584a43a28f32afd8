//! When the status is composed and written.

mod restarts;

use super::difference::{Difference, difference};
use super::*;
use crate::engine::{Engine, MissingAssignment, View, ViewSender, assigned};
use crate::programmed::Programmed;
use crds::condition::Status;
use crds::node_proxy::drift::Drift;
use crds::node_proxy::{ConntrackFill, Counts};
use http::{Request, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::client::Body;
use runtime::Health;
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::mpsc;
use tower::service_fn;

#[test]
fn t134_failures_are_followed_by_ever_longer_pauses_that_differ_from_node_to_node() {
    let longest: Vec<u64> = (0..6)
        .map(|failures| pause_after(failures).as_secs())
        .collect();
    assert_eq!(longest, [3, 6, 12, 24, 30, 30]);
    assert_eq!(pause_after(u32::MAX), LONGEST_RETRY);
    let pause = pause_after(3);
    assert_eq!(spread(pause, 0.0), Duration::from_secs(12));
    assert_eq!(spread(pause, 0.5), Duration::from_secs(18));
    assert!(spread(pause, 0.999) < Duration::from_secs(24));
}

#[test]
fn figures_alone_are_no_reason_to_hurry() {
    let before = NodeProxyStatus::default();
    let counted = NodeProxyStatus {
        counts: Counts {
            services: 7,
            ..Counts::default()
        },
        ..before.clone()
    };
    assert_eq!(difference(&before, &before), Difference::None);
    assert_eq!(difference(&before, &counted), Difference::Figures);
    let filled = NodeProxyStatus {
        conntrack: Some(ConntrackFill { entries: 7, max: 9 }),
        ..before.clone()
    };
    assert_eq!(difference(&before, &filled), Difference::None);
    // The program that changed the rules is reported with the condition that says so.
    let disturbed = NodeProxyStatus {
        drift: vec![Drift {
            program: Some("nft".to_owned()),
            continues: false,
            repairs: 1,
            last_found: Time(Timestamp::UNIX_EPOCH),
            elements: 3,
            objects: 1,
        }],
        ..before.clone()
    };
    assert_eq!(difference(&before, &disturbed), Difference::None);
    let observed = NodeProxyStatus {
        observed_generation: Some(2),
        ..counted
    };
    assert_eq!(difference(&before, &observed), Difference::Meaning);
}
/// With 5,000 nodes that is 33 writes a second under churn, however often Services change.
#[tokio::test(start_paused = true)]
async fn under_steady_churn_figures_are_written_every_150_seconds_and_after_quiet_within_a_minute()
{
    let server =
        service_fn(|_: Request<Body>| async { Ok::<_, kube::Error>(Response::new(Body::empty())) });
    let destination = Destination::Api(Box::new(Api::all(Client::new(server, "default"))));
    let before = Arc::new(NodeProxyStatus::default());
    let mut counted = NodeProxyStatus::default();
    counted.counts.services = 7;
    let written = Deadline::now();
    let due = |after: u64| {
        let mut last = Last::Written(Written {
            in_api: Value::Null,
            status: Arc::clone(&before),
            renewed_since: None,
            at: written,
            is_provisional: false,
            idle: IDLE.mul_f64(1.1),
            differs_since: None,
            source_differs_since: None,
        });
        let now = written + Duration::from_secs(after);
        let due = last.due(&counted, None, &destination, &Value::Null, now);
        (due.expect("a write") - written).as_secs()
    };
    assert_eq!(due(1), 150);
    assert_eq!(due(89), 150);
    assert_eq!(due(250), 310);
}

/// A ready node that follows the API server, or has lost it, since `second` of the epoch.
fn following(is_stale: bool, second: i64) -> NodeProxyStatus {
    let at = Timestamp::from_second(second).expect("a time of this century");
    let (synced, degraded, reachable) = match is_stale {
        false => (
            (Status::True, condition::reason::LISTS_COMPLETE),
            (Status::False, condition::reason::AS_EXPECTED),
            (Status::True, condition::reason::CONNECTED),
        ),
        true => (
            (Status::False, condition::reason::SOURCE_STALE),
            (Status::True, condition::reason::SOURCE_STALE),
            (Status::Unknown, condition::reason::NOT_CHECKED),
        ),
    };
    let mut status = ready("True", "Programmed", 1000);
    for (kind, (is, reason)) in [
        (condition::SOURCE_SYNCED, synced),
        (condition::DEGRADED, degraded),
        (condition::API_SERVICE_REACHABLE, reachable),
    ] {
        let finding = condition::Finding::new(kind, is, reason, String::new());
        condition::set_condition(&mut status.conditions, finding, at);
    }
    status
}

/// When the API server restarted, all agents wrote that they had lost it, and a second later that
/// it was back.
#[tokio::test(start_paused = true)]
async fn a_loss_of_the_api_server_is_written_within_half_a_minute_and_not_at_all_once_it_is_over() {
    let mut seconds = Vec::new();
    for _ in 0..50 {
        let writes = write_after(
            NodeProxyStatus::default(),
            vec![(1, following(false, 1000)), (60, following(true, 1060))],
        );
        let [(1, ..), (second, ..)] = writes.await[..] else {
            panic!("two writes are expected");
        };
        seconds.push(second);
    }
    seconds.sort_unstable();
    assert!((60..70).contains(&seconds[0]), "{seconds:?}");
    assert!((80..=91).contains(&seconds[49]), "{seconds:?}");

    let restart = [(1, 1000, false), (60, 1060, true), (61, 1061, false)];
    let reports = restart.map(|(at, since, is_stale)| (at, following(is_stale, since)));
    let mut wrote = 0;
    for _ in 0..200 {
        let writes = write_after(NodeProxyStatus::default(), reports.to_vec());
        wrote += usize::from(writes.await.len() > 1);
    }
    // One in thirty, whose time is within the second.
    assert!(wrote < 20, "{wrote} of 200 nodes wrote");
}

#[test]
fn what_differs_besides_the_api_server_is_written_at_once() {
    let (fresh, stale) = (following(false, 1000), following(true, 1060));
    let with = |status: &NodeProxyStatus, kind, is, reason| {
        let mut status = status.clone();
        let finding = condition::Finding::new(kind, is, reason, String::new());
        condition::set_condition(&mut status.conditions, finding, Timestamp::UNIX_EPOCH);
        status
    };
    assert_eq!(difference(&fresh, &stale), Difference::Source);
    assert_eq!(difference(&stale, &fresh), Difference::Source);
    assert_eq!(
        difference(&fresh, &following(false, 1061)),
        Difference::None
    );
    let failing = condition::reason::CONNECTION_FAILED;
    let failing = with(&fresh, condition::DEGRADED, Status::True, failing);
    assert_eq!(difference(&stale, &failing), Difference::Meaning);
    let unready = condition::reason::SOURCE_STALE;
    let unready = with(&stale, condition::READY, Status::False, unready);
    assert_eq!(difference(&fresh, &unready), Difference::Meaning);
    let unchecked = condition::reason::NOT_CHECKED;
    let unchecked = with(
        &fresh,
        condition::API_SERVICE_REACHABLE,
        Status::Unknown,
        unchecked,
    );
    assert_eq!(difference(&unchecked, &fresh), Difference::Meaning);
    let mut observed = stale.clone();
    observed.observed_generation = Some(2);
    assert_eq!(difference(&fresh, &observed), Difference::Meaning);
}

/// The other tasks, whose values the reporter reads.
struct Posts {
    views: ViewSender,
    status: watch::Sender<Arc<NodeProxyStatus>>,
    renewed_since: watch::Sender<Option<Deadline>>,
    in_api: watch::Sender<Value>,
}

impl Posts {
    fn new() -> Posts {
        Posts {
            views: ViewSender::new(),
            status: watch::Sender::new(Arc::default()),
            renewed_since: watch::Sender::new(None),
            in_api: watch::Sender::new(Value::Null),
        }
    }

    fn status(&self, status: NodeProxyStatus) {
        post(&self.status, Arc::new(status));
    }

    fn renewed_since(&self, renewed_since: Option<Deadline>) {
        post(&self.renewed_since, renewed_since);
    }
}

/// Starts the reporter of node-1.
fn start_reporter(client: Client) -> (Posts, tokio::task::JoinHandle<()>, CancellationToken) {
    let (posts, stop) = (Posts::new(), CancellationToken::new());
    let inputs = ReportInputs {
        status: posts.status.subscribe(),
        applied_config: posts.views.applied_config(),
        renewed_since: posts.renewed_since.subscribe(),
        in_api: posts.in_api.subscribe(),
    };
    let reporting = tokio::spawn(report(
        Destination::Api(Box::new(Api::all(client))),
        "node-1".to_owned(),
        inputs,
        stop.clone(),
    ));
    (posts, reporting, stop)
}

/// Without its NodeProxy an agent asks once, and writes when the watch delivers one.
#[tokio::test(start_paused = true)]
async fn t134_an_agent_without_a_nodeproxy_waits_for_its_watch_and_writes_nothing() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let server = service_fn(move |_: Request<Body>| {
        let (code, answer) = match counted.fetch_add(1, Ordering::Relaxed) {
            0 => (
                404,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}),
            ),
            _ => (
                200,
                json!(NodeProxy::new("node-1", crds::NodeProxySpec::default())),
            ),
        };
        let answer = Response::builder()
            .status(code)
            .body(Body::from(answer.to_string().into_bytes()));
        async { answer }
    });
    let (posts, reporting, stop) = start_reporter(Client::new(server, "default"));
    for minute in 0..30 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        posts.status(NodeProxyStatus {
            observed_generation: Some(minute),
            ..NodeProxyStatus::default()
        });
    }
    assert_eq!(requests.load(Ordering::Relaxed), 1);
    let mut engine = Engine::new("node-1", None, MissingAssignment::MayEnd);
    engine.apply(assigned(), Instant::now());
    posts.views.post(engine.view());
    tokio::time::sleep(Duration::from_secs(60)).await;
    // It reads the object, and writes its status.
    assert_eq!(requests.load(Ordering::Relaxed), 3);
    stop.cancel();
    reporting.await.expect("it ends when it is stopped");
}

/// A status with one condition, Ready, since `second` of the epoch.
fn ready(status: &str, reason: &str, second: i64) -> NodeProxyStatus {
    let at = Timestamp::from_second(second).expect("a time of this century");
    NodeProxyStatus {
        conditions: vec![k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition {
            type_: condition::READY.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(at),
        }],
        ..NodeProxyStatus::default()
    }
}

/// The report of an agent that was ready since second 1000, and has ended that long ago.
fn ready_before(ended: Duration) -> NodeProxyStatus {
    NodeProxyStatus {
        last_sync_time: Some(Time(Timestamp::now() - ended)),
        ..ready("True", "Programmed", 1000)
    }
}

/// Runs the reporter of an agent whose node has `earlier` in its NodeProxy; `reports` are posted at
/// these seconds. Returns the second, status and transition of condition Ready in each write.
async fn write_after(
    earlier: impl serde::Serialize,
    reports: Vec<(u64, NodeProxyStatus)>,
) -> Vec<(u64, String, i64)> {
    let mut object = json!(NodeProxy::new("node-1", crds::NodeProxySpec::default()));
    object["status"] = json!(earlier);
    let object = Arc::new(serde_json::to_vec(&object).expect("it is JSON"));
    let start = Deadline::now();
    let (written, mut writes) = tokio::sync::mpsc::unbounded_channel();
    let server = service_fn(move |request: Request<Body>| {
        let (object, written) = (Arc::clone(&object), written.clone());
        async move {
            let mut answer = object.to_vec();
            if request.method() == http::Method::PATCH {
                let replaced = json!(NodeProxy::new("node-1", crds::NodeProxySpec::default()));
                answer = replaced.to_string().into_bytes();
                let body = request.into_body().collect_bytes().await?;
                let patch: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
                let status = serde_json::from_value(patch["status"].clone());
                let status: NodeProxyStatus = status.expect("a status");
                let condition = status.conditions.first().expect("a condition");
                let second = condition.last_transition_time.0.as_second();
                let at = (Deadline::now() - start).as_secs();
                let said = (at, condition.status.clone(), second);
                written.send(said).expect("the test listens");
            }
            Ok::<_, kube::Error>(Response::new(Body::from(answer)))
        }
    });
    let (posts, reporting, stop) = start_reporter(Client::new(server, "default"));
    for (second, status) in reports {
        tokio::time::sleep_until(start + Duration::from_secs(second)).await;
        posts.status(status);
    }
    tokio::time::sleep_until(start + Duration::from_secs(120)).await;
    stop.cancel();
    reporting.await.expect("it ends when it is stopped");
    let mut all = Vec::new();
    while let Ok(write) = writes.try_recv() {
        all.push(write);
    }
    all
}

/// A fleet of 5,000 nodes at rest made 17 writes a second, which said nothing.
#[tokio::test(start_paused = true)]
async fn t263_an_agent_with_a_lease_writes_nothing_while_nothing_changes() {
    let writes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&writes);
    let server = service_fn(move |request: Request<Body>| {
        let is_write = request.method() == http::Method::PATCH;
        counted.fetch_add(usize::from(is_write), Ordering::Relaxed);
        let mut object = json!(NodeProxy::new("node-1", crds::NodeProxySpec::default()));
        object["status"] = json!({"mode": "nftables"});
        async move { Ok::<_, kube::Error>(Response::new(Body::from(object.to_string().into_bytes()))) }
    });
    let (posts, reporting, stop) = start_reporter(Client::new(server, "default"));
    let written_in = async |minutes: u64| {
        writes.store(0, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(60 * minutes)).await;
        writes.load(Ordering::Relaxed)
    };
    let in_api = |status| posts.in_api.send_replace(status);
    let heartbeat = Some(Deadline::now());
    posts.renewed_since(heartbeat);
    in_api(json!({"mode": "nftables"}));
    let synced = |second| NodeProxyStatus {
        last_sync_time: Timestamp::from_second(second).ok().map(Time),
        ..ready("True", "Programmed", 5000)
    };
    posts.status(synced(5000));
    assert_eq!(written_in(1).await, 1);
    for sync in 0..180 {
        posts.status(synced(5060 + sync * 60));
        posts.renewed_since(heartbeat);
        assert_eq!(written_in(1).await, 0, "it is at rest");
    }
    // Another client, or a database that was restored, changes the status.
    in_api(json!({"mode": "ipvs"}));
    assert_eq!(written_in(4).await, 1, "it restores what it wrote");
    in_api(json!({"mode": "nftables"}));
    assert_eq!(written_in(60).await, 0);
    // The Lease is refused from now on, so that the status alone shows that the agent is alive.
    posts.renewed_since(None);
    let alive = written_in(60).await;
    assert!((11..=14).contains(&alive), "{alive} writes in an hour");
    stop.cancel();
    reporting.await.expect("it ends when it is stopped");
}

/// The statuses that a reporter writes, as they come, where the API has `before`.
fn start_recorded(before: &NodeProxyStatus) -> (Posts, mpsc::UnboundedReceiver<NodeProxyStatus>) {
    let mut object = json!(NodeProxy::new("node-1", crds::NodeProxySpec::default()));
    object["status"] = json!(before);
    let (written, writes) = mpsc::unbounded_channel();
    let server = service_fn(move |request: Request<Body>| {
        let (mut object, written) = (object.clone(), written.clone());
        async move {
            if request.method() == http::Method::PATCH {
                let body = request.into_body().collect_bytes().await?;
                let patch: Value = serde_json::from_slice(&body).expect("JSON");
                object["status"] = patch["status"].clone();
                let status = serde_json::from_value(patch["status"].clone());
                written
                    .send(status.expect("a status"))
                    .expect("the test listens");
            }
            Ok::<_, kube::Error>(Response::new(Body::from(object.to_string().into_bytes())))
        }
    });
    let (posts, ..) = start_reporter(Client::new(server, "default"));
    (posts, writes)
}

/// Failure story T274. What the earlier report stood in for was written once, and at rest never again: a
/// condition that the agent does not have stayed in the API for as long as nothing else changed.
#[tokio::test(start_paused = true)]
async fn t274_what_an_earlier_report_stood_in_for_is_corrected_at_rest() {
    let mut before = ready_before(Duration::from_secs(9));
    before.heartbeat = Some(Heartbeat::Lease);
    let split = condition::Finding::new(
        condition::IPTABLES_SPLIT,
        Status::True,
        condition::reason::CONNECTED,
        String::new(),
    );
    condition::set_condition(&mut before.conditions, split, Timestamp::UNIX_EPOCH);
    let (posts, mut writes) = start_recorded(&before);
    posts.renewed_since(Some(Deadline::now()));
    posts.status(ready("True", "Programmed", 5000));
    let has_it = |status: &NodeProxyStatus| {
        let mut conditions = status.conditions.iter();
        conditions.any(|it| it.type_ == condition::IPTABLES_SPLIT)
    };
    let watched = |status: &NodeProxyStatus| posts.in_api.send_replace(json!(status));
    let first = writes.recv().await.expect("it is written");
    watched(&first);
    assert!(has_it(&first), "it stands in");
    let within = tokio::time::timeout(Duration::from_secs(400), writes.recv()).await;
    let second = within.expect("it is corrected").expect("it is written");
    watched(&second);
    assert!(!has_it(&second), "{second:?}");
    let third = tokio::time::timeout(Duration::from_secs(3600), writes.recv()).await;
    assert!(third.is_err(), "it is at rest: {third:?}");
}

/// Failure story T296. The definitions are replaced after the agents: a field that they lacked stayed
/// away from an idle node until something else changed.
#[tokio::test(start_paused = true)]
async fn t296_a_field_that_the_definition_lacked_is_written_once_it_has_it() {
    let is_known = Arc::new(AtomicBool::new(false));
    let (knows, (written, mut writes)) = (Arc::clone(&is_known), mpsc::unbounded_channel());
    let server = service_fn(move |request: Request<Body>| {
        let (is_known, written) = (knows.load(Ordering::Relaxed), written.clone());
        async move {
            let mut object = json!(NodeProxy::new("node-1", crds::NodeProxySpec::default()));
            let mut code = 200;
            if request.method() == http::Method::PATCH {
                let is_rehearsal = request
                    .uri()
                    .query()
                    .is_some_and(|it| it.contains("dryRun"));
                let body = request.into_body().collect_bytes().await?;
                let mut status =
                    serde_json::from_slice::<Value>(&body).expect("JSON")["status"].take();
                let fields = status.as_object_mut().expect("a status");
                if !is_known && fields.remove("agentVersion").is_some() && !is_rehearsal {
                    code = 500;
                    object = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code});
                } else {
                    object["status"] = status.clone();
                }
                if code == 200 && !is_rehearsal {
                    written.send(status).expect("the test listens");
                }
            }
            let body = Body::from(object.to_string().into_bytes());
            let answer = Response::builder()
                .status(code)
                .body(body)
                .expect("an answer");
            Ok::<_, kube::Error>(answer)
        }
    });
    let (posts, ..) = start_reporter(Client::new(server, "default"));
    let watched = |status: &Value| posts.in_api.send_replace(status.clone());
    let has_it = |status: &Value| status["agentVersion"] == "0.2.0";
    posts.renewed_since(Some(Deadline::now()));
    posts.status(NodeProxyStatus {
        agent_version: Some("0.2.0".to_owned()),
        ..ready("True", "Programmed", 5000)
    });
    let first = writes.recv().await.expect("it is written");
    watched(&first);
    assert!(!has_it(&first), "the definition lacks it: {first}");
    let within = tokio::time::timeout(Duration::from_secs(400), writes.recv());
    let again = within
        .await
        .expect("it is tried again")
        .expect("it is written");
    watched(&again);
    assert!(!has_it(&again), "{again}");
    is_known.store(true, Ordering::Relaxed);
    let within = tokio::time::timeout(Duration::from_secs(400), writes.recv());
    let last = within
        .await
        .expect("it is tried again")
        .expect("it is written");
    watched(&last);
    assert!(has_it(&last), "{last}");
    let rest = tokio::time::timeout(Duration::from_secs(3600), writes.recv()).await;
    assert!(rest.is_err(), "it is at rest: {rest:?}");
}

/// Inputs of which only the view ever changes.
fn inputs(views: &ViewSender) -> ComposeInputs {
    fn unchanging<T: Default>() -> watch::Receiver<T> {
        watch::channel(T::default()).1
    }
    ComposeInputs {
        view: views.view(),
        programmed: Arc::new(Programmed::new()),
        report: unchanging(),
        not_relayed: unchanging(),
        full_affinity_maps: unchanging(),
        conntrack: unchanging(),
        serving_state: unchanging(),
        scan: unchanging(),
        variants: unchanging(),
        handover_refusal: unchanging(),
        api_service: unchanging(),
        kernel: String::new(),
    }
}

/// At a hundred changes a second, the status is composed ten times a second, and finally contains
/// the last of them.
#[tokio::test(start_paused = true)]
async fn a_burst_is_taken_in_together_and_the_last_of_it_is_never_lost() {
    let views = ViewSender::new();
    let composed = watch::Sender::new(Arc::<NodeProxyStatus>::default());
    let post = |endpoints| {
        let view = Engine::new("node-1", None, MissingAssignment::MayEnd).view();
        views.post(View { endpoints, ..view });
    };
    let (mut said, mut counted) = (composed.subscribe(), composed.subscribe());
    let counting = tokio::spawn(async move {
        let mut statuses = 0;
        while counted.changed().await.is_ok() {
            statuses += 1;
            if counted.borrow_and_update().counts.endpoints == 100 {
                break;
            }
        }
        statuses
    });
    let stop = CancellationToken::new();
    let stopper = stop.clone();
    let readiness = Health::new().check("programmed");
    let composing = compose(inputs(&views), composed, readiness, stop);
    let composing = tokio::spawn(composing);

    let start = Deadline::now();
    post(1);
    let first = said.wait_for(|status| status.counts.endpoints == 1).await;
    drop(first.expect("it composes"));
    assert_eq!(Deadline::now(), start, "the first waits for nothing");
    for endpoints in 2..=100 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        post(endpoints);
    }
    let statuses = counting.await.expect("it ends with the last");
    assert!((10..=11).contains(&statuses), "{statuses} statuses");
    stopper.cancel();
    composing.await.expect("it ends when it is stopped");
}
