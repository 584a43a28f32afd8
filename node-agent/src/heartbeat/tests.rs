//! When the Lease is renewed, and when the status announces it.

use std::sync::Mutex;

use crds::condition::READY;
use crds::condition::reason::PROGRAMMED;
use http::{Method, Request, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::client::Body;
use tower::service_fn;

use super::*;
use crate::engine::{Engine, MissingAssignment, ViewSender, assigned};

/// A fake API server that answers by method and path, and an agent that renews its Lease there.
struct Rig {
    asked: Arc<Mutex<Vec<String>>>,
    views: ViewSender,
    status: watch::Sender<Arc<NodeProxyStatus>>,
    renewed_since: watch::Sender<Option<Instant>>,
    stop: CancellationToken,
}

impl Rig {
    fn start(answer: fn(&Method, &str) -> (u16, &'static str)) -> Rig {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let server = service_fn(move |request: Request<Body>| {
            let (method, path) = (request.method(), request.uri().path());
            let (code, body) = answer(method, path);
            let mut log = log.lock().expect("no test panics with it");
            log.push(format!("{method} {path}"));
            let response = Response::builder().status(code);
            let response = response.body(Body::from(body.as_bytes().to_vec()));
            async { response }
        });
        let rig = Rig {
            asked,
            views: ViewSender::new(),
            status: watch::Sender::default(),
            renewed_since: watch::Sender::new(None),
            stop: CancellationToken::new(),
        };
        tokio::spawn(super::report(
            Client::new(server, "default"),
            "signpost-system".to_owned(),
            "node-1".to_owned(),
            rig.views.applied_config(),
            rig.status.subscribe(),
            rig.renewed_since.clone(),
            rig.stop.clone(),
        ));
        rig.report();
        rig
    }

    fn assign(&self) {
        let mut engine = Engine::new("node-1", None, MissingAssignment::MayEnd);
        engine.apply(assigned(), std::time::Instant::now());
        self.views.post(engine.view());
    }

    /// The agent has composed its first status that says more than that it is starting.
    fn report(&self) {
        self.status.send_replace(Arc::new(NodeProxyStatus {
            conditions: vec![Condition {
                type_: READY.to_owned(),
                status: "True".to_owned(),
                reason: PROGRAMMED.name.to_owned(),
                message: String::new(),
                observed_generation: None,
                last_transition_time: Time(Timestamp::UNIX_EPOCH),
            }],
            ..NodeProxyStatus::default()
        }));
    }

    /// Returns the requests of the next `seconds`.
    async fn asked_in(&self, seconds: u64) -> Vec<String> {
        self.asked.lock().expect("no test panics with it").clear();
        sleep(Duration::from_secs(seconds)).await;
        self.asked.lock().expect("no test panics with it").clone()
    }

    fn has_promised(&self) -> bool {
        self.renewed_since.borrow().is_some()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

const RENEWAL: &str =
    "PATCH /apis/coordination.k8s.io/v1/namespaces/signpost-system/leases/signpost-agent-node-1";
const LEASE: &str = r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{}}"#;

const fn failure(code: u16) -> (u16, &'static str) {
    let body = match code {
        403 => r#"{"kind":"Status","apiVersion":"v1","status":"Failure","code":403}"#,
        404 => {
            r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}"#
        }
        _ => r#"{"kind":"Status","apiVersion":"v1","status":"Failure","code":500}"#,
    };
    (code, body)
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_twice_a_minute_from_the_first_assignment_on() {
    let rig = Rig::start(|_, _| (200, LEASE));
    assert!(rig.asked_in(3600).await.is_empty(), "there is no NodeProxy");
    assert!(!rig.has_promised());
    rig.assign();
    let asked = rig.asked_in(600).await;
    assert!(asked.iter().all(|request| request == RENEWAL), "{asked:?}");
    assert!((18..=23).contains(&asked.len()), "{} renewals", asked.len());
    assert!(rig.has_promised());
}

/// The report of the last agent that was ready stands until the operator notices the silence.
#[tokio::test(start_paused = true)]
async fn t263_an_agent_that_ends_again_and_again_as_it_starts_renews_no_lease() {
    let rig = Rig::start(|_, _| (200, LEASE));
    rig.status.send_replace(Arc::default());
    rig.assign();
    assert!(rig.asked_in(29).await.is_empty(), "it is starting");
    assert!(!rig.asked_in(2).await.is_empty(), "it says so by itself");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_there_is_made_and_owned_by_the_nodeproxy() {
    let rig = Rig::start(|method, path| match (method, path) {
        (&Method::POST, _) => (201, LEASE),
        (&Method::GET, _) => (
            200,
            r#"{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"name":"node-1","uid":"7"}}"#,
        ),
        _ => failure(404),
    });
    rig.assign();
    let asked = rig.asked_in(20).await;
    let methods: Vec<&str> = asked.iter().filter_map(|a| a.split(' ').next()).collect();
    assert_eq!(methods, ["PATCH", "GET", "POST"]);
    assert!(rig.has_promised());
}

#[tokio::test(start_paused = true)]
async fn t138_an_agent_that_may_not_renew_its_lease_promises_none() {
    let rig = Rig::start(|_, _| failure(403));
    rig.assign();
    assert!(rig.asked_in(120).await.len() > 3, "it goes on trying");
    assert!(!rig.has_promised());
}

#[tokio::test(start_paused = true)]
async fn an_agent_whose_nodeproxy_is_gone_waits_for_the_next() {
    let rig = Rig::start(|_, _| failure(404));
    rig.assign();
    assert_eq!(rig.asked_in(1800).await.len(), 2, "Lease and NodeProxy");
    assert!(!rig.has_promised());
    rig.assign();
    assert_eq!(rig.asked_in(60).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn failures_are_tried_again_soon_and_end_no_promise() {
    let rig = Rig::start(|_, _| failure(500));
    rig.renewed_since.send_replace(Some(Instant::now()));
    rig.assign();
    let tries = rig.asked_in(60).await.len();
    assert!((6..=13).contains(&tries), "{tries}");
    let tries = rig.asked_in(600).await.len();
    assert!((18..=28).contains(&tries), "{tries} in ten minutes");
    assert!(rig.has_promised());
}

#[tokio::test(start_paused = true)]
async fn a_series_begins_anew_after_an_interruption() {
    let first = Series::after(None);
    sleep(Duration::from_secs(59)).await;
    let second = Series::after(Some(first));
    assert_eq!(second.since, first.since);
    sleep(Duration::from_secs(60)).await;
    let third = Series::after(Some(second));
    assert_eq!(third.since, Instant::now());
    // The machine has slept, and only the wall clock has continued.
    let slept = SystemTime::now() - Duration::from_secs(90);
    let before = Series {
        last_by_wall_clock: slept,
        ..third
    };
    sleep(Duration::from_secs(1)).await;
    assert_eq!(Series::after(Some(before)).since, Instant::now());
}
