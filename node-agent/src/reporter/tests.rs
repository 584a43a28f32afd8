//! When the status is composed and written.

use super::*;
use crate::board::tests::assigned;
use crate::engine::{Engine, MissingAssignment, View};
use crds::node_proxy::drift::Drift;
use crds::node_proxy::{ConntrackFill, Counts};
use http::{Request, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::client::Body;
use runtime::Health;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    // What changed the rules is told with the condition that says so.
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
        let mut last = Last::Written {
            status: Arc::clone(&before),
            renewed_since: None,
            at: written,
            idle: IDLE.mul_f64(1.1),
            differs_since: None,
        };
        let now = written + Duration::from_secs(after);
        (last.due(&counted, None, &destination, now) - written).as_secs()
    };
    assert_eq!(due(1), 150);
    assert_eq!(due(89), 150);
    assert_eq!(due(250), 310);
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
    let api = Api::all(Client::new(server, "default"));
    let board = Arc::new(Board::new());
    let stop = CancellationToken::new();
    let reporting = tokio::spawn(report(
        Destination::Api(Box::new(api)),
        "node-1".to_owned(),
        Arc::clone(&board),
        stop.clone(),
    ));
    for minute in 0..30 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        board.post_status(Arc::new(NodeProxyStatus {
            observed_generation: Some(minute),
            ..NodeProxyStatus::default()
        }));
    }
    assert_eq!(requests.load(Ordering::Relaxed), 1);
    let mut engine = Engine::new("node-1", None, MissingAssignment::MayEnd);
    engine.apply(assigned(), Instant::now());
    board.post_view(engine.view());
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

/// Runs the reporter of an agent whose node has `earlier` in its NodeProxy; `reports` are posted at
/// these seconds. Returns the second, status and transition of condition Ready in each write.
async fn write_after(
    earlier: NodeProxyStatus,
    reports: Vec<(u64, NodeProxyStatus)>,
) -> Vec<(u64, String, i64)> {
    let mut object = NodeProxy::new("node-1", crds::NodeProxySpec::default());
    object.status = Some(earlier);
    let object = Arc::new(serde_json::to_vec(&object).expect("it is JSON"));
    let start = Deadline::now();
    let (written, mut writes) = tokio::sync::mpsc::unbounded_channel();
    let server = service_fn(move |request: Request<Body>| {
        let (object, written) = (Arc::clone(&object), written.clone());
        async move {
            if request.method() == http::Method::PATCH {
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
            Ok::<_, kube::Error>(Response::new(Body::from(object.to_vec())))
        }
    });
    let api = Api::all(Client::new(server, "default"));
    let board = Arc::new(Board::new());
    let stop = CancellationToken::new();
    let reporting = tokio::spawn(report(
        Destination::Api(Box::new(api)),
        "node-1".to_owned(),
        Arc::clone(&board),
        stop.clone(),
    ));
    for (second, status) in reports {
        tokio::time::sleep_until(start + Duration::from_secs(second)).await;
        board.post_status(Arc::new(status));
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

/// Every restart said Ready=False for a second, and so did 5,000 nodes in an upgrade of agents.
#[tokio::test(start_paused = true)]
async fn a_restart_on_a_ready_node_is_no_event_and_keeps_the_time_of_transition() {
    let writes = write_after(
        ready("True", "Programmed", 1000),
        vec![
            (1, ready("False", "Starting", 5000)),
            (5, ready("True", "Programmed", 5005)),
            (20, ready("False", "CommitFailed", 5020)),
            (40, ready("True", "Programmed", 5040)),
        ],
    )
    .await;
    let expected = [(5, "True", 1000), (20, "False", 5020), (40, "True", 5040)];
    let expected = expected.map(|(at, status, since)| (at, status.to_owned(), since));
    assert_eq!(writes, expected);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_does_not_get_ready_says_so_after_half_a_minute_and_a_failure_at_once() {
    let stuck = write_after(
        ready("True", "Programmed", 1000),
        vec![(1, ready("False", "Starting", 5000))],
    );
    assert_eq!(stuck.await, [(30, "False".to_owned(), 5000)]);
    let failing = write_after(
        ready("True", "Programmed", 1000),
        vec![(2, ready("False", "CommitFailed", 5000))],
    );
    assert_eq!(failing.await, [(2, "False".to_owned(), 5000)]);
}

/// At a hundred changes a second, the status is composed ten times a second, and finally contains
/// the last of them.
#[tokio::test(start_paused = true)]
async fn a_burst_is_taken_in_together_and_the_last_of_it_is_never_lost() {
    let board = Arc::new(Board::new());
    let post = |endpoints| {
        let view = Engine::new("node-1", None, MissingAssignment::MayEnd).view();
        board.post_view(View { endpoints, ..view });
    };
    let (mut said, mut counted) = (board.status(), board.status());
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
    let composing = compose(Arc::clone(&board), readiness, String::new(), stop);
    let composing = tokio::spawn(composing);

    let start = Deadline::now();
    post(1);
    let first = said.wait_for(|status| status.counts.endpoints == 1).await;
    drop(first.expect("the board is there"));
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
