use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Instant, SystemTime};

use catalog::NodeLifecycle;
use crds::event::SERVICE_HEALTH_REFUSED;
use dataplane::{Config, Dataplane, Endpoints, Family, NodePortAddresses, Service, compile};
use events::Announcements;
use reconciler::{Activity, FamilyStatus, FamilySync, Outcome, Reason};
use runtime::{BuildInfo, CancellationToken, Metrics};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;

const DEADLINE: Duration = Duration::from_secs(30);

fn web(health_check: u16) -> Service {
    mk_service("shop/web")
        .cluster_ip("10.96.0.10")
        .load_balancer_ip("192.0.2.1")
        .port("http", 80)
        .external_local()
        .health_check_node_port(health_check)
        .build()
}

fn here(pods: u8) -> Endpoints {
    let endpoints = mk_endpoints().tcp("http").ready("10.0.2.9:8080", "node-2");
    (0..pods)
        .fold(endpoints, |endpoints, pod| {
            endpoints.ready(&format!("10.0.1.{}:8080", 5 + pod), "node-1")
        })
        .build()
}

fn config(node_ports: NodePortAddresses) -> Arc<Config> {
    let config = mk_config().build();
    Arc::new(Config {
        node_ports,
        ..(*config).clone()
    })
}

fn only(addresses: &[&str]) -> NodePortAddresses {
    let addresses = addresses.iter().map(|address| address.parse());
    let addresses: Result<BTreeSet<IpAddr>, _> = addresses.collect();
    NodePortAddresses {
        ipv4: Some(addresses.expect("addresses")),
        ipv6: Some(BTreeSet::new()),
    }
}

fn dataplane(node_ports: NodePortAddresses, services: &[(Service, Endpoints)]) -> Dataplane {
    let mut dataplane = Dataplane::new(mk_node(1).build(), config(node_ports));
    for (service, endpoints) in services {
        let (node, config) = (dataplane.node(), dataplane.config());
        let rules = compile(service, endpoints, node, config);
        dataplane.set(rules.into());
    }
    dataplane
}

fn listeners(desired: &DesiredListeners) -> Vec<String> {
    let (listeners, _) = desired.listeners();
    let line = |(address, listening): (&SocketAddr, &Listening)| {
        format!(
            "{address} {} {}",
            listening.service, listening.local_endpoints
        )
    };
    listeners.iter().map(line).collect()
}

/// Failure story T53: kubernetes#117621.
#[test]
fn t53_a_load_balancers_address_is_listened_on_beside_those_of_node_ports() {
    let mut desired = DesiredListeners::default();
    let services = [(web(32000), here(2))];
    let dataplane = dataplane(only(&["192.168.0.1"]), &services);
    desired.follow(Family::Ipv4, Some(&dataplane));
    desired.follow(Family::Ipv6, Some(&dataplane));
    let expected = ["192.0.2.1:32000 shop/web 2", "192.168.0.1:32000 shop/web 2"];
    assert_eq!(listeners(&desired), expected);
}

#[test]
fn where_every_address_takes_node_ports_one_listener_is_enough() {
    let mut desired = DesiredListeners::default();
    let services = [(web(32000), here(0))];
    let dataplane = dataplane(NodePortAddresses::ANY, &services);
    desired.follow(Family::Ipv4, Some(&dataplane));
    // The Service has no IPv6 address.
    desired.follow(Family::Ipv6, Some(&dataplane));
    assert_eq!(listeners(&desired), ["0.0.0.0:32000 shop/web 0"]);
}

#[test]
fn listeners_follow_services_ports_and_addresses() {
    let mut desired = DesiredListeners::default();
    let mut follow = |node_ports, services: &[(Service, Endpoints)]| {
        desired.follow(Family::Ipv4, Some(&dataplane(node_ports, services)));
        listeners(&desired)
    };
    assert_eq!(follow(NodePortAddresses::ANY, &[]), [""; 0]);
    let services = [(web(32000), here(1))];
    assert_eq!(
        follow(NodePortAddresses::ANY, &services),
        ["0.0.0.0:32000 shop/web 1"]
    );
    let services = [(web(32001), here(1))];
    assert_eq!(
        follow(NodePortAddresses::ANY, &services),
        ["0.0.0.0:32001 shop/web 1"]
    );
    let addresses = ["192.0.2.1:32001 shop/web 1", "192.168.0.7:32001 shop/web 1"];
    assert_eq!(follow(only(&["192.168.0.7"]), &services), addresses);
    assert_eq!(follow(only(&["192.168.0.7"]), &[]), [""; 0]);
}

#[test]
fn nothing_is_listened_on_at_ipv6_link_local_addresses() {
    let mut desired = DesiredListeners::default();
    let web = mk_service("shop/web")
        .cluster_ip("fd00:10:96::10")
        .load_balancer_ip("2001:db8:2::1")
        .port("http", 80)
        .external_local()
        .health_check_node_port(32000)
        .build();
    let node_ports = NodePortAddresses {
        ipv4: None,
        ipv6: Some(
            ["fe80::1", "fd00:192:168::1"]
                .map(|text| text.parse().expect("an address"))
                .into(),
        ),
    };
    let dataplane = dataplane(node_ports, &[(web, here(0))]);
    desired.follow(Family::Ipv6, Some(&dataplane));
    let expected = [
        "[2001:db8:2::1]:32000 shop/web 0",
        "[fd00:192:168::1]:32000 shop/web 0",
    ];
    assert_eq!(listeners(&desired), expected);
}

#[test]
fn of_two_services_with_one_port_the_first_by_name_is_heard_and_the_other_named() {
    let mut desired = DesiredListeners::default();
    let other = Service {
        key: ServiceKey::new("shop", "admin"),
        ..web(32000)
    };
    let services = [(web(32000), here(1)), (other, here(0))];
    desired.follow(
        Family::Ipv4,
        Some(&dataplane(NodePortAddresses::ANY, &services)),
    );
    assert_eq!(listeners(&desired), ["0.0.0.0:32000 shop/admin 0"]);
    let (_, contested) = desired.listeners();
    let address = SocketAddr::from(([0, 0, 0, 0], 32000));
    assert_eq!(contested, [(address, ServiceKey::new("shop", "web"))]);
}

/// A node that stays.
#[derive(Debug)]
struct Facts;

impl NodeFacts for Facts {
    fn lifecycle(&self) -> NodeLifecycle {
        NodeLifecycle::Staying
    }

    fn sync_period(&self) -> Duration {
        Duration::from_secs(30)
    }
}

/// The parts of an agent that load balancers see. Node ports are on loopback.
struct Rig {
    report: watch::Sender<Option<Arc<Report>>>,
    proxy: ProxyHealth,
    announcements: Announcements,
    stopper: CancellationToken,
    task: JoinHandle<()>,
}

fn rig() -> Rig {
    let report = watch::Sender::new(None);
    let proxy = ProxyHealth::default();
    let metrics = Metrics::new(&BuildInfo {
        program: "test",
        version: "0",
    });
    let (events, announcements) = Events::register(&metrics);
    let stop = CancellationToken::new();
    let stopper = stop.clone();
    let served = serve(
        report.subscribe(),
        Arc::new(Facts),
        proxy.clone(),
        events,
        stop,
    );
    let task = tokio::spawn(served);
    Rig {
        report,
        proxy,
        announcements,
        stopper,
        task,
    }
}

impl Rig {
    /// Reports these Services as programmed.
    fn program(&self, services: &[(Service, Endpoints)]) {
        let programmed = dataplane(only(&["127.0.0.1"]), services);
        let status = |family| FamilyStatus {
            programmed_since: Some(SystemTime::UNIX_EPOCH),
            programmed: Some(programmed.clone()),
            ..FamilyStatus::new(family)
        };
        let sync = |family| Arc::new(FamilySync::new(family, Reason::Changed, Outcome::Committed));
        let report = Report {
            activity: Activity::Waiting,
            families: Family::ALL.map(status).into(),
            repair_backoff: None,
            finished: Family::ALL.map(sync).into(),
            latencies: Vec::new(),
        };
        self.proxy.reported(&report);
        self.report.send_replace(Some(Arc::new(report)));
    }

    async fn finish(self) {
        self.stopper.cancel();
        let ended = timeout(DEADLINE, self.task).await;
        ended.expect("nothing holds it").expect("it does not panic");
    }
}

/// Returns the whole answer on a loopback port, head and body; `None` if no socket listens.
async fn ask(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let request = b"GET /any/path HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

/// Waits until the answer at `port` is as `desired`.
async fn wait_for(port: u16, what: &str, desired: impl Fn(Option<&str>) -> bool) -> Option<String> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let answer = ask(port).await;
        if desired(answer.as_deref()) {
            return answer;
        }
        assert!(Instant::now() < deadline, "not {what}: {answer:?}");
        tokio::task::yield_now().await;
    }
}

fn is(code: &str) -> impl Fn(Option<&str>) -> bool {
    let start = format!("HTTP/1.1 {code}");
    move |answer| answer.is_some_and(|answer| answer.starts_with(&start))
}

async fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("loopback has free ports");
    listener.local_addr().expect("it listens").port()
}

/// Failure story T59: kubernetes#115825.
#[tokio::test]
async fn t59_a_node_is_asked_for_traffic_as_long_as_it_has_a_pod_and_the_agent_keeps_up() {
    let rig = rig();
    let port = free_port().await;
    rig.program(&[(web(port), here(2))]);
    let answer = wait_for(port, "answered", is("200")).await;
    let answer = answer.expect("an answer");
    for part in [
        "x-load-balancing-endpoint-weight: 2\r\n",
        "content-type: application/json\r\n",
        "x-content-type-options: nosniff\r\n",
        "\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}",
    ] {
        assert!(answer.contains(part), "no {part:?} in\n{answer}");
    }

    // An open connection survives changes of the endpoints.
    let mut kept = TcpStream::connect(("127.0.0.1", port))
        .await
        .expect("it listens");
    rig.program(&[(web(port), here(0))]);
    let answer = wait_for(port, "503 without a pod", is("503")).await;
    let answer = answer.expect("an answer");
    assert!(answer.contains("endpoint-weight: 0\r\n"), "{answer}");
    rig.program(&[(web(port), here(1))]);
    wait_for(port, "200 with a pod again", is("200")).await;
    let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    kept.write_all(request).await.expect("it is still open");
    let mut answer = String::new();
    let read = timeout(DEADLINE, kept.read_to_string(&mut answer)).await;
    read.expect("it answers in time").expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    // The agent falls behind: an update has waited for longer than any limit.
    let long_ago = Instant::now().checked_sub(Duration::from_secs(300));
    rig.proxy
        .queued(long_ago.expect("the machine is up for longer"));
    let answer = wait_for(port, "503 when late", is("503")).await;
    let answer = answer.expect("an answer");
    assert!(
        answer.contains("\"serviceProxyHealthy\": false"),
        "{answer}"
    );
    assert!(answer.contains("endpoint-weight: 1\r\n"), "{answer}");
    rig.finish().await;
}

#[tokio::test]
async fn another_port_closes_the_one_and_opens_the_other() {
    let rig = rig();
    let (one, other) = (free_port().await, free_port().await);
    rig.program(&[(web(one), here(1))]);
    wait_for(one, "answered", is("200")).await;
    rig.program(&[(web(other), here(1))]);
    wait_for(other, "answered", is("200")).await;
    wait_for(one, "closed", |answer| answer.is_none()).await;
    rig.program(&[]);
    wait_for(other, "closed", |answer| answer.is_none()).await;
    rig.finish().await;
}

#[tokio::test]
async fn a_service_takes_over_the_port_of_another() {
    let rig = rig();
    let port = free_port().await;
    let of = |name: &str| Service {
        key: ServiceKey::new("shop", name),
        ..web(port)
    };
    let says = |name: &'static str| {
        move |answer: Option<&str>| {
            let line = format!("\"name\": \"{name}\"");
            answer.is_some_and(|answer| answer.contains(&line))
        }
    };
    rig.program(&[(of("before"), here(1))]);
    wait_for(port, "the first", says("before")).await;
    rig.program(&[(of("after"), here(1))]);
    wait_for(port, "the second", says("after")).await;
    rig.finish().await;
}

#[tokio::test]
async fn a_port_that_is_taken_is_an_event_on_the_service_and_is_tried_again() {
    let mut rig = rig();
    let taken = TcpListener::bind("127.0.0.1:0").await;
    let taken = taken.expect("loopback has free ports");
    let port = taken.local_addr().expect("it listens").port();
    rig.program(&[(web(port), here(1))]);
    let reported = timeout(DEADLINE, rig.announcements.next()).await;
    let reported = reported.expect("it is announced").expect("it still runs");
    assert_eq!(reported.reason, SERVICE_HEALTH_REFUSED);
    assert_eq!(
        reported.regarding,
        EventObject::Service(ServiceKey::new("shop", "web"))
    );
    assert!(reported.note.contains("in use"), "{}", reported.note);
    // Failure story T62: the event names the process that has the port.
    let holder = format!("(process {}) uses it", std::process::id());
    assert!(reported.note.ends_with(&holder), "{}", reported.note);
    // Fails again without another event; then the port is free.
    rig.program(&[(web(port), here(2))]);
    drop(taken);
    rig.program(&[(web(port), here(1))]);
    wait_for(port, "answered", is("200")).await;
    let again = timeout(Duration::ZERO, rig.announcements.next()).await;
    assert!(again.is_err(), "announced twice: {again:?}");
    rig.finish().await;
}

/// With listeners of 10,000 Services, a change of a Service without health checks must not cost a
/// pass over all of them.
#[test]
fn only_what_is_listened_on_is_followed() {
    let services = |pods, others| {
        let unasked = mk_service("shop/unasked").cluster_ip("10.96.0.11");
        let unasked = unasked.port("http", 80).build();
        [(web(31_000), here(pods)), (unasked, here(others))]
    };
    let mut desired = DesiredListeners::default();
    let mut follow = |node_ports: NodePortAddresses, pods, others| {
        let programmed = dataplane(node_ports, &services(pods, others));
        let changed = desired.follow(Family::Ipv4, Some(&programmed));
        (changed, desired.listeners().0.len())
    };
    let (one, two) = (["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]);
    // The Service's own load-balancer address has a listener, too.
    assert_eq!(follow(only(&one), 1, 1), (true, 2));
    assert_eq!(follow(only(&one), 1, 3), (false, 2), "of another Service");
    assert_eq!(follow(only(&one), 2, 3), (true, 2), "what is answered");
    assert_eq!(follow(only(&two), 2, 3), (true, 3), "where it is");
    assert!(desired.follow(Family::Ipv4, None));
    assert!(!desired.follow(Family::Ipv4, None));
}
