use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use crds::event::{SERVICE_HEALTH_REFUSED, STARTING};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use runtime::{BuildInfo, CancellationToken};
use serde_json::Value;
use tokio::task::JoinHandle;
use tower::service_fn;

use super::*;

/// The requests that a fake API server received, in order: method, path, body.
type FrontendContext = Arc<Mutex<Vec<(String, String, Value)>>>;

/// A fake API server that answers every request with `answer`.
fn client(answer: StatusCode) -> (kube::Client, FrontendContext) {
    let asked = FrontendContext::default();
    let noted = Arc::clone(&asked);
    let server = service_fn(move |request: Request<Body>| {
        let noted = Arc::clone(&noted);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            let event: Value = serde_json::from_slice(&body).expect("an event");
            let mut list = noted.lock().expect("no test panics while it holds this");
            list.push((
                head.method.to_string(),
                head.uri.path().to_owned(),
                event.clone(),
            ));
            let mut response = Response::new(Body::from(event.to_string().into_bytes()));
            *response.status_mut() = answer;
            Ok::<_, Infallible>(response)
        }
    });
    (kube::Client::new(server, "default"), asked)
}

struct Rig {
    metrics: Metrics,
    events: Events,
    stopper: CancellationToken,
    task: JoinHandle<()>,
}

fn start(sink: EventSink) -> Rig {
    let metrics = Metrics::new(&BuildInfo {
        program: "test",
        version: "0",
    });
    let (events, announcements) = Events::register(&metrics);
    let stop = CancellationToken::new();
    let stopper = stop.clone();
    let task = tokio::spawn(announcements.publish("node-1".to_owned(), sink, stop));
    Rig {
        metrics,
        events,
        stopper,
        task,
    }
}

impl Rig {
    /// Publishes the announcements made so far, and returns the metrics.
    async fn finish(self) -> String {
        self.stopper.cancel();
        self.task.await.expect("the task does not panic");
        self.metrics.scrape().expect("metrics encode")
    }
}

fn about_node(note: &str) -> Announcement {
    Announcement {
        regarding: EventObject::Node,
        reason: STARTING,
        note: note.to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_stands_where_people_look_for_it() {
    let (client, asked) = client(StatusCode::OK);
    let rig = start(EventSink::cluster(client, "node-1"));
    rig.events.announce(about_node("as always"));
    rig.events.announce(Announcement {
        regarding: EventObject::Service(ServiceKey::new("shop", "cart")),
        reason: SERVICE_HEALTH_REFUSED,
        note: "n".repeat(3000),
    });
    rig.finish().await;
    let asked = asked.lock().expect("no test panics while it holds this");
    let [(_, of_node, node), (method, of_service, service)] = asked.as_slice() else {
        panic!("{asked:?}");
    };
    assert_eq!(of_node, "/apis/events.k8s.io/v1/namespaces/default/events");
    assert_eq!(node["regarding"]["name"], "node-1");
    assert_eq!(node["regarding"]["uid"], "node-1");
    assert_eq!(node["type"], "Normal");
    assert_eq!(node["reportingController"], "signpost-agent");
    assert_eq!(node["reportingInstance"], "node-1");
    assert_eq!(method, "POST");
    assert_eq!(of_service, "/apis/events.k8s.io/v1/namespaces/shop/events");
    assert_eq!(service["regarding"]["kind"], "Service");
    assert_eq!(service["type"], "Warning");
    let note = service["note"].as_str().expect("a note");
    assert_eq!(note.len(), LONGEST_NOTE, "the API accepts no more");
}

#[tokio::test(start_paused = true)]
async fn the_same_again_is_one_event_with_a_count() {
    let (client, asked) = client(StatusCode::OK);
    let rig = start(EventSink::cluster(client, "node-1"));
    rig.events.announce(about_node("once"));
    rig.events.announce(about_node("twice"));
    rig.finish().await;
    let asked = asked.lock().expect("no test panics while it holds this");
    let methods: Vec<&str> = asked.iter().map(|(method, ..)| &**method).collect();
    assert_eq!(methods, ["POST", "PATCH"]);
    assert_eq!(asked[1].2["series"]["count"], 2);
}

#[tokio::test(start_paused = true)]
async fn who_announces_too_much_is_not_held_up_and_what_is_dropped_is_counted() {
    let (client, asked) = client(StatusCode::OK);
    let rig = start(EventSink::cluster(client, "node-1"));
    // Nothing is published before the test awaits something.
    for number in 0..100 {
        rig.events.announce(about_node(&number.to_string()));
    }
    let text = rig.finish().await;
    let written = asked.lock().expect("no test panics while it holds this");
    assert_eq!(written.len(), 25, "more than the burst");
    for line in [
        "signpost_events_total{outcome=\"published\"} 25\n",
        "signpost_events_total{outcome=\"dropped\"} 75\n",
    ] {
        assert!(text.contains(line), "no {line} in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_while_there_is_room_for_one_more() {
    let start = Instant::now();
    let mut allowance = Allowance::full(start);
    let taken = (0..30).filter(|_| allowance.take(start)).count();
    assert_eq!(taken, 25);
    let later = start + ONE_MORE_AFTER;
    assert!(allowance.take(later));
    assert!(!allowance.take(later));
    let much_later = start + Duration::from_secs(86_400);
    let taken = (0..30).filter(|_| allowance.take(much_later)).count();
    assert_eq!(taken, 25, "quiet does not save up without end");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_refuses_does_no_harm() {
    let (client, _) = client(StatusCode::FORBIDDEN);
    let rig = start(EventSink::cluster(client, "node-1"));
    rig.events.announce(about_node("one"));
    rig.events.announce(about_node("two"));
    let text = rig.finish().await;
    let line = "signpost_events_total{outcome=\"failed\"} 2\n";
    assert!(text.contains(line), "no {line} in\n{text}");
}
