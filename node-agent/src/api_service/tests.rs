//! Checks with real connections on loopback, at the pace of a paused clock.

use std::net::Ipv4Addr;

use crds::profile::mechanism::Mode;
use crds::{ConfigHash, EffectiveConfig};
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::*;
use crate::engine::{Engine, MissingAssignment, View};

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

/// Failure story T184: rules were in the kernel as rendered, another program's rule dropped every
/// packet to Services, and the node was Ready.
#[tokio::test(start_paused = true)]
async fn t184_rules_that_forward_nothing_are_reported_after_two_checks_and_so_is_their_repair() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let listener = listener.expect("loopback has free ports");
    let address = listener.local_addr().expect("it listens");
    let board = Arc::new(Board::new());
    let mut state = board.api_service();
    let stop = CancellationToken::new();
    let checking = tokio::spawn(check(Arc::clone(&board), None, stop.clone()));
    let view = Engine::new("node-1", None, MissingAssignment::MayEnd).view();
    board.post_view(View {
        desired: Some(desired(address)),
        ..view
    });
    board.post_status(ready(Mode::Nftables));
    let reachable = ApiServiceState::Reachable(address);
    let met = state.wait_for(|state| *state == reachable).await;
    drop(met.expect("the board is there"));

    drop(listener);
    let before = Instant::now();
    // The next configuration is checked at once.
    board.post_status(ready(Mode::Iptables));
    let met = state.wait_for(|state| state.problem().is_some()).await;
    drop(met.expect("the board is there"));
    // Two checks of five attempts, a second each.
    assert_eq!(before.elapsed().as_secs(), 5 + 10 + 5);

    let listener = TcpListener::bind(address).await.expect("it was free");
    let met = state.wait_for(|state| *state == reachable).await;
    drop(met.expect("the board is there"));
    assert_eq!(before.elapsed().as_secs(), 20 + 10);
    drop(listener);
    stop.cancel();
    checking.await.expect("it ends when it is stopped");
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
