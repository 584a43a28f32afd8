//! Checks with real connections on loopback, at the pace of a paused clock.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crds::profile::mode::Mode;
use crds::{ConfigHash, EffectiveConfig};
use http::{Request, Response};
use jiff::Timestamp;
use kube::client::Body;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower::service_fn;

use super::*;
use crate::engine::{Engine, MissingAssignment, ViewSender};

/// The desired state of a cluster whose API server has this cluster IP and port.
fn desired(address: SocketAddr) -> Dataplane {
    let mut desired = Dataplane::new(testkit::mk_node(1).build(), testkit::mk_config().build());
    let service = testkit::mk_service("default/kubernetes").cluster_ip(&address.ip().to_string());
    let service = service.port("", address.port()).build();
    let endpoints = testkit::mk_endpoints().tcp("");
    let endpoints = endpoints.ready("10.0.1.5:6443", "node-1").build();
    let rules = dataplane::compile(&service, &endpoints, desired.node(), desired.config());
    desired.set(rules.into());
    desired
}

/// A node that has applied a configuration with this mode and is ready.
fn ready(mode: Mode) -> Arc<NodeProxyStatus> {
    let config = EffectiveConfig {
        mode,
        ..EffectiveConfig::default()
    };
    let mut conditions = Vec::new();
    let ready = Finding::new(READY, Status::True, reason::PROGRAMMED, String::new());
    condition::set_condition(&mut conditions, ready, Timestamp::UNIX_EPOCH);
    Arc::new(NodeProxyStatus {
        applied_hash: Some(ConfigHash::of(&config)),
        conditions,
        ..NodeProxyStatus::default()
    })
}

/// A node whose check runs, with a server behind the Service's address.
struct Checked {
    _views: ViewSender,
    status: watch::Sender<Arc<NodeProxyStatus>>,
    state: watch::Receiver<ApiServiceState>,
    address: SocketAddr,
    server: Option<TcpListener>,
    /// Whether the API server answers requests.
    answers: Arc<AtomicBool>,
    /// The number of requests to it so far.
    requests: Arc<AtomicUsize>,
    stop: CancellationToken,
    checking: JoinHandle<()>,
}

impl Checked {
    /// Starts, and waits until the Service is reachable.
    async fn start() -> Checked {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let server = server.expect("loopback has free ports");
        let address = server.local_addr().expect("it listens");
        let answers = Arc::new(AtomicBool::new(true));
        let is_there = Arc::clone(&answers);
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let api_server = service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            let refused = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","code":403}"#;
            let response = Response::builder().status(403);
            let answer = match is_there.load(Ordering::Relaxed) {
                true => Ok(response
                    .body(Body::from(refused.as_bytes().to_vec()))
                    .expect("valid")),
                false => Err(io::Error::from(ErrorKind::ConnectionRefused)),
            };
            async { answer }
        });
        let (views, stop) = (ViewSender::new(), CancellationToken::new());
        let (status, state) = (watch::Sender::default(), watch::Sender::default());
        let posted = state.subscribe();
        let client = Client::new(api_server, "default");
        let checking = tokio::spawn(check(
            views.view(),
            status.subscribe(),
            state,
            client,
            stop.clone(),
        ));
        let view = Engine::new("node-1", None, MissingAssignment::MayEnd).view();
        views.post(View {
            desired: Some(desired(address)),
            ..view
        });
        status.send_replace(ready(Mode::Nftables));
        let mut checked = Checked {
            _views: views,
            status,
            state: posted,
            address,
            server: Some(server),
            answers,
            requests,
            stop,
            checking,
        };
        checked.wait_until_reachable().await;
        checked
    }

    /// Closes the server; the next configuration is checked at once.
    fn lose_server(&mut self) {
        self.server = None;
        self.status.send_replace(ready(Mode::Iptables));
    }

    async fn wait_until_reachable(&mut self) {
        let address = self.address;
        let is_reachable = |state: &ApiServiceState| matches!(state, ApiServiceState::Reachable(at, _) if *at == address);
        let met = self.state.wait_for(is_reachable).await;
        drop(met.expect("it checks"));
    }

    async fn wait_until_unreachable(&mut self) {
        let met = self.state.wait_for(|state| state.problem().is_some()).await;
        drop(met.expect("it checks"));
    }

    async fn stop(self) {
        self.stop.cancel();
        self.checking.await.expect("it ends when it is stopped");
    }
}

/// Failure story T184: rules were in the kernel as rendered, another program's rule dropped every
/// packet to Services, and the node was Ready.
#[tokio::test(start_paused = true)]
async fn t184_rules_that_forward_nothing_are_reported_after_two_checks_and_so_is_their_repair() {
    let mut checked = Checked::start().await;
    checked.lose_server();
    let before = Instant::now();
    checked.wait_until_unreachable().await;
    // Two checks of five attempts, a second each, and a pause of up to ten seconds.
    let reported = before.elapsed().as_secs();
    assert!((15..=20).contains(&reported), "after {reported} s");
    let server = TcpListener::bind(checked.address).await;
    checked.server = Some(server.expect("it was free"));
    checked.wait_until_reachable().await;
    let repaired = before.elapsed().as_secs() - reported;
    assert!((5..=10).contains(&repaired), "after another {repaired} s");
    checked.stop().await;
}

/// 5,000 nodes whose rules forward nothing asked the API server 500 times a second, for as long as
/// that lasted.
#[tokio::test(start_paused = true)]
async fn checks_that_go_on_failing_become_as_rare_as_others_whether_or_not_the_api_server_answers()
{
    for answers in [true, false] {
        let mut checked = Checked::start().await;
        checked.answers.store(answers, Ordering::Relaxed);
        checked.lose_server();
        sleep(Duration::from_secs(600)).await;
        let before = checked.requests.load(Ordering::Relaxed);
        sleep(Duration::from_secs(36_000)).await;
        let requests = checked.requests.load(Ordering::Relaxed) - before;
        let most = 36_000 / 150;
        assert!((100..=most).contains(&requests), "{requests} in ten hours");
        checked.stop().await;
    }
}

#[test]
fn pauses_between_failed_checks_grow_from_the_one_that_is_reported() {
    let pauses = (1..=8).map(|failures| pause_after(failures).as_secs());
    let expected = [10, 10, 20, 40, 80, 160, 300, 300];
    assert_eq!(pauses.collect::<Vec<_>>(), expected);
    assert_eq!(pause_after(u32::MAX), EVERY);
}

/// An API server that is away says nothing about the rules, however long it is away.
#[tokio::test(start_paused = true)]
async fn an_outage_of_the_api_server_is_no_fault_of_the_rules() {
    let mut checked = Checked::start().await;
    checked.answers.store(false, Ordering::Relaxed);
    checked.lose_server();
    sleep(Duration::from_secs(600)).await;
    assert_eq!(checked.state.borrow().problem(), None);
    checked.answers.store(true, Ordering::Relaxed);
    let before = Instant::now();
    checked.wait_until_unreachable().await;
    // Failures during the outage do not count: two checks follow.
    assert!(before.elapsed().as_secs() >= 10, "{:?}", before.elapsed());
    checked.stop().await;
}

#[test]
fn a_service_without_endpoints_is_not_asked() {
    let address = SocketAddr::from(([10, 96, 0, 1], 443));
    assert_eq!(address_of(&desired(address)), Some(address));
    assert_eq!(address_of(&Dataplane::default()), None);
    let mut empty = Dataplane::new(testkit::mk_node(1).build(), testkit::mk_config().build());
    let service = testkit::mk_service("default/kubernetes").cluster_ip("10.96.0.1");
    let endpoints = testkit::mk_endpoints().build();
    let service = service.port("", 443).build();
    let rules = dataplane::compile(&service, &endpoints, empty.node(), empty.config());
    empty.set(rules.into());
    assert_eq!(address_of(&empty), None);
}
