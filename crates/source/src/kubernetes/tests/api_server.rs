//! An API server whose answers the test writes.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use runtime::CancellationToken;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch as posted};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower::service_fn;

use super::super::watch;
use crate::{Delivery, EngineGone, SourceCondition};

pub(super) const SERVICES: &str = "/api/v1/services";
pub(super) const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
pub(super) const NODES: &str = "/api/v1/nodes";
pub(super) const SERVICE_CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";
pub(super) const NODE_PROXIES: &str = "/apis/signpost.dev/v1alpha1/nodeproxies";

/// Longer than any wait of the watches; passes at once, because the clock of the tests is paused.
const DEADLINE: Duration = Duration::from_secs(3600);

/// The server, and a source that follows it.
pub(super) struct ApiServer {
    requests: mpsc::UnboundedReceiver<Asked>,
    waiting: VecDeque<Asked>,
    pub(super) deliveries: mpsc::Receiver<Delivery>,
    delivered: VecDeque<Delivery>,
    /// The status of the node's NodeProxy.
    pub(super) own_status: posted::Receiver<Value>,
    pub(super) stopper: CancellationToken,
    pub(super) source: JoinHandle<Result<(), EngineGone>>,
    /// Open watches without events.
    quiet: Vec<OpenWatch>,
}

type Answer = StreamBody<BoxStream<'static, Result<Frame<Bytes>, io::Error>>>;

/// A request that is waiting for its answer.
pub(super) struct Asked {
    pub(super) path: String,
    /// Its parameters, except `timeoutSeconds`, which is random.
    pub(super) query: String,
    /// The formats that it accepts, if it lists any.
    pub(super) accept: Option<String>,
    answer: oneshot::Sender<Response<Answer>>,
}

/// An open watch. Dropping it ends it cleanly.
pub(super) struct OpenWatch(mpsc::UnboundedSender<Result<Frame<Bytes>, io::Error>>);

impl ApiServer {
    pub(super) fn start() -> ApiServer {
        let (asked, requests) = mpsc::unbounded_channel();
        let service = service_fn(move |request: Request<Body>| {
            let asked = asked.clone();
            async move {
                let (answer, answered) = oneshot::channel();
                let query = request.uri().query().unwrap_or_default();
                let query: Vec<&str> = query
                    .split('&')
                    .filter(|parameter| {
                        !parameter.is_empty() && !parameter.starts_with("timeoutSeconds=")
                    })
                    .collect();
                asked
                    .send(Asked {
                        path: request.uri().path().to_owned(),
                        query: query.join("&"),
                        accept: request.headers().get(ACCEPT).map(|formats| {
                            String::from_utf8_lossy(formats.as_bytes()).into_owned()
                        }),
                        answer,
                    })
                    .map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
                answered
                    .await
                    .map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))
            }
        });
        let client = Client::new(service, "default");
        let (sender, deliveries) = mpsc::channel(64);
        let (status, own_status) = posted::channel(Value::Null);
        let stop = CancellationToken::new();
        let stopper = stop.clone();
        ApiServer {
            requests,
            waiting: VecDeque::new(),
            deliveries,
            delivered: VecDeque::new(),
            stopper,
            source: tokio::spawn(watch(client, "node-1".to_owned(), sender, status, stop)),
            own_status,
            quiet: Vec::new(),
        }
    }

    /// Starts a server on which all kinds except that of `path` have been listed as empty.
    pub(super) async fn start_with_only(path: &str) -> ApiServer {
        let mut server = ApiServer::start();
        for other in [SERVICES, SLICES, NODES, SERVICE_CIDRS, NODE_PROXIES] {
            if other != path {
                let watch = server.listed(other, "1", &[]).await;
                server.quiet.push(watch);
                // An empty list, or the absence of a configuration.
                let reported = if other == NODE_PROXIES { 1 } else { 2 };
                for _ in 0..reported {
                    server.delivery().await;
                }
            }
        }
        server
    }

    /// The next request for `path`.
    pub(super) async fn asked(&mut self, path: &str) -> Asked {
        if let Some(at) = self.waiting.iter().position(|asked| asked.path == path) {
            return self.waiting.remove(at).expect("it is there");
        }
        let next = async {
            loop {
                let asked = self.requests.recv().await.expect("the source is running");
                if asked.path == path {
                    return asked;
                }
                self.waiting.push_back(asked);
            }
        };
        let asked = timeout(DEADLINE, next).await;
        asked.unwrap_or_else(|_| panic!("no request for {path} arrived"))
    }

    /// Answers with these objects in the requested form, and opens the watch that follows.
    pub(super) async fn listed(
        &mut self,
        path: &str,
        version: &str,
        objects: &[Value],
    ) -> OpenWatch {
        let asked = self.asked(path).await;
        if !asked.is_watch() {
            asked.list(version, objects);
            return self.asked(path).await.watch();
        }
        let watch = asked.watch();
        for object in objects {
            watch.send("ADDED", object);
        }
        watch.end_list(version);
        watch
    }

    /// The next delivery that is not a condition: conditions can arrive between any others.
    pub(super) async fn delivery(&mut self) -> Delivery {
        self.next(|delivery| !matches!(delivery, Delivery::Condition(_)))
            .await
    }

    /// The next condition.
    pub(super) async fn condition(&mut self) -> SourceCondition {
        match self
            .next(|delivery| matches!(delivery, Delivery::Condition(_)))
            .await
        {
            Delivery::Condition(condition) => condition,
            other => panic!("{other:?} is no condition"),
        }
    }

    /// Waits until the source reports that it is fresh.
    pub(super) async fn until_fresh(&mut self) {
        while self.condition().await != SourceCondition::Fresh {}
    }

    /// The next delivery that matches; others stay queued.
    async fn next(&mut self, desired: impl Fn(&Delivery) -> bool) -> Delivery {
        if let Some(at) = self.delivered.iter().position(&desired) {
            return self.delivered.remove(at).expect("it is there");
        }
        loop {
            let delivery = timeout(DEADLINE, self.deliveries.recv()).await;
            let delivery = delivery
                .expect("something is delivered in time")
                .expect("the source is running");
            if desired(&delivery) {
                return delivery;
            }
            self.delivered.push_back(delivery);
        }
    }

    /// What is delivered within `time`.
    pub(super) async fn deliveries_within(&mut self, time: Duration) -> Vec<Delivery> {
        let mut all: Vec<Delivery> = self.delivered.drain(..).collect();
        let end = tokio::time::Instant::now() + time;
        while let Ok(Some(delivery)) = tokio::time::timeout_at(end, self.deliveries.recv()).await {
            all.push(delivery);
        }
        all
    }

    /// Counts the requests for `path` within `time`, and answers each with `answer`.
    pub(super) async fn count(
        &mut self,
        path: &str,
        time: Duration,
        answer: impl Fn(Asked),
    ) -> usize {
        let end = tokio::time::Instant::now() + time;
        let mut count = 0;
        for asked in self.waiting.drain(..).filter(|asked| asked.path == path) {
            count += 1;
            answer(asked);
        }
        while let Ok(Some(asked)) = tokio::time::timeout_at(end, self.requests.recv()).await {
            if asked.path == path {
                count += 1;
                answer(asked);
            }
        }
        count
    }
}

impl Asked {
    /// Opens a watch.
    pub(super) fn watch(self) -> OpenWatch {
        self.watch_in("application/json")
    }

    /// Opens a watch whose events have this format.
    pub(super) fn watch_in(self, format: &str) -> OpenWatch {
        let (lines, sent) = mpsc::unbounded_channel();
        let sent = stream::unfold(sent, |mut sent: mpsc::UnboundedReceiver<_>| async {
            sent.recv().await.map(|frame| (frame, sent))
        });
        self.give(200, format, StreamBody::new(sent.boxed()));
        OpenWatch(lines)
    }

    pub(super) fn is_watch(&self) -> bool {
        self.query.starts_with("watch=true")
    }

    /// Answers with a whole list.
    pub(super) fn list(self, version: &str, objects: &[Value]) {
        let list = json!({
            "kind": "List", "apiVersion": "v1",
            "metadata": {"resourceVersion": version}, "items": objects,
        });
        self.answer(200, &list);
    }

    /// Answers with JSON.
    pub(super) fn answer(self, code: u16, body: &Value) {
        self.answer_in("application/json", code, body.to_string());
    }

    /// Answers with these bytes in this format.
    pub(super) fn answer_in(self, format: &str, code: u16, body: impl Into<Bytes>) {
        let frame = Frame::data(body.into());
        let body = StreamBody::new(stream::iter([Ok(frame)]).boxed());
        self.give(code, format, body);
    }

    /// Answers with an error status.
    pub(super) fn refuse(self, code: u16, reason: &str, message: &str) {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code,
        });
        self.answer(code, &status);
    }

    /// Breaks the connection without an answer.
    pub(super) fn cut(self) {
        drop(self.answer);
    }

    fn give(self, code: u16, format: &str, body: Answer) {
        let response = Response::builder()
            .status(code)
            .header(CONTENT_TYPE, format)
            .body(body);
        // The source may have ended.
        let _ = self.answer.send(response.expect("a response"));
    }
}

impl OpenWatch {
    pub(super) fn send(&self, kind: &str, object: &Value) {
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        self.raw(line);
    }

    pub(super) fn raw(&self, bytes: impl Into<Bytes>) {
        let frame = Frame::data(bytes.into());
        self.0.send(Ok(frame)).expect("the watch is open");
    }

    pub(super) fn bookmark(&self, version: &str) {
        self.send(
            "BOOKMARK",
            &json!({"metadata": {"resourceVersion": version}}),
        );
    }

    pub(super) fn end_list(&self, version: &str) {
        self.send(
            "BOOKMARK",
            &json!({"kind": "Any", "apiVersion": "v1", "metadata": {
                "resourceVersion": version,
                "annotations": {"k8s.io/initial-events-end": "true"},
            }}),
        );
    }

    /// Breaks the connection.
    pub(super) fn cut(self) {
        let error = io::Error::from(io::ErrorKind::ConnectionReset);
        self.0.send(Err(error)).expect("the watch is open");
    }
}
