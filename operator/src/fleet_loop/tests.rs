use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::stream;
use http::{Request, Response};
use kube::client::Body;
use runtime::{BuildInfo, Health, Metrics};
use tokio::sync::{mpsc, watch::Sender};
use tower::service_fn;

use super::*;
use crate::{fleet::ObjectChange, leader_elector::Leadership};

fn fleet_loop(client: &Client, offset: Receiver<ClockOffset>) -> FleetLoop {
    let build = BuildInfo {
        program: "signpost-operator",
        version: "1",
    };
    FleetLoop {
        writer: Writer::new(client, "a", Leadership::endless()),
        metrics: OperatorMetrics::register(&Metrics::new(&build)),
        heartbeat: Health::new().heartbeat("fleet", Duration::MAX),
        offset,
    }
}

/// Failure story T339. An operator that ran on knew the offset of its start alone.
#[tokio::test]
async fn t339_an_operator_follows_a_clock_that_is_corrected() {
    let ahead = ClockOffset::ahead(SignedDuration::from_hours(2));
    let measured = Sender::new(ahead);
    let answers =
        service_fn(async |_: Request<Body>| Ok::<_, tower::BoxError>(Response::new(Body::empty())));
    let client = Client::new(answers, "default");
    let fleet_loop = fleet_loop(&client, measured.subscribe());
    let mut fleet = Fleet::new(ahead);
    measured.send_replace(ClockOffset::default());
    fleet_loop.apply(&mut fleet, Event::Node(ObjectChange::ListRequested));
    assert!(fleet.follow_clock(ahead), "it still has the former offset");
}

/// Failure story T157: one event was taken in each 100 ms, and a rollout over 100 nodes that
/// reported within a second took ten times as long as its writes.
#[tokio::test(start_paused = true)]
async fn t157_events_that_come_one_by_one_are_taken_in_together() {
    // Like a connection: a buffer of one event, and the next one when its task has run.
    let (sender, receiver) = mpsc::channel(1);
    let feeding = tokio::spawn(async move {
        for number in 0..1000 {
            let deleted = Event::Node(ObjectChange::Deleted(format!("node-{number}")));
            if sender.send(deleted).await.is_err() {
                return;
            }
        }
        std::future::pending::<()>().await;
    });
    let next = |mut receiver: mpsc::Receiver<Event>| async {
        let event = receiver.recv().await?;
        Some((event, receiver))
    };
    let mut events: Events = stream::unfold(receiver, next).boxed();
    let mut count = 0;
    collect_events(&mut events, SHORTEST_BATCH, |_| count += 1).await;
    assert_eq!(count, 1000);
    feeding.abort();
}

/// Failure story T334: NodeProxies were written about one after another.
#[tokio::test(start_paused = true)]
async fn t334_writes_of_a_plan_do_not_wait_for_one_another() {
    const ANSWER: Duration = Duration::from_secs(1);
    let under_way = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (now, at_once) = (Arc::clone(&under_way), Arc::clone(&most));
    let api_server = service_fn(move |request: Request<Body>| {
        let (now, at_once) = (Arc::clone(&now), Arc::clone(&at_once));
        async move {
            let body = request.into_body().collect_bytes().await?;
            let count = now.fetch_add(1, Ordering::Relaxed) + 1;
            at_once.fetch_max(count, Ordering::Relaxed);
            tokio::time::sleep(ANSWER).await;
            now.fetch_sub(1, Ordering::Relaxed);
            Ok::<_, tower::BoxError>(Response::new(Body::from(body)))
        }
    });
    let client = Client::new(api_server, "default");
    let offset = Sender::new(ClockOffset::default()).subscribe();
    let fleet_loop = fleet_loop(&client, offset);
    let assignments = (0..3 * WRITES_AT_ONCE).map(|number| Action::Assign {
        node: format!("n{number}"),
        owner: "uid".to_owned(),
        spec: Arc::default(),
        previous: None,
        baseline: None,
        version: None,
    });
    let plan = Plan {
        actions: assignments.collect(),
        requeue_at: None,
        counts: BTreeMap::new(),
    };
    let start = tokio::time::Instant::now();
    let (mut fleet, mut rate_limiter) = (Fleet::default(), WriteRateLimiter::default());
    fleet_loop.commit(plan, &mut fleet, &mut rate_limiter).await;
    assert_eq!(most.load(Ordering::Relaxed), WRITES_AT_ONCE);
    assert_eq!((tokio::time::Instant::now() - start).as_secs(), 3);
}
