use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use dataplane::{Protocol, ServiceKey, ServicePortName};
use testkit::port;

use super::*;

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const TIMEOUT: Duration = Duration::from_secs(60);

fn target(host: u8) -> Target {
    Target {
        address: [10, 0, 1, host].into(),
        port: port(8080),
    }
}

fn route(hosts: &[u8], affinity: Affinity) -> Arc<Route> {
    Arc::new(Route {
        service_port: ServicePortName {
            service: ServiceKey::new("shop", "web"),
            port: "http".into(),
            protocol: Protocol::Tcp,
        },
        targets: hosts.iter().map(|host| target(*host)).collect(),
        serving: hosts.iter().map(|host| target(*host)).collect(),
        affinity,
    })
}

fn chooser(hosts: &[u8], affinity: Affinity) -> Chooser {
    Chooser::new(route(hosts, affinity), fastrand::Rng::with_seed(7))
}

fn sticky() -> Affinity {
    Affinity::ClientIp { timeout: TIMEOUT }
}

/// The endpoints of a hundred connections of one client.
fn given(chooser: &mut Chooser, now: Instant) -> BTreeSet<Target> {
    let mut connect = || {
        let target = chooser.choose(CLIENT, &[], now)?;
        chooser.given(CLIENT, target, now);
        Some(target)
    };
    (0..100).filter_map(|_| connect()).collect()
}

fn targets(hosts: &[u8]) -> BTreeSet<Target> {
    hosts.iter().map(|host| target(*host)).collect()
}

#[test]
fn every_endpoint_is_given() {
    let mut chooser = chooser(&[5, 6, 7], Affinity::None);
    assert_eq!(given(&mut chooser, Instant::now()), targets(&[5, 6, 7]));
}

#[test]
fn an_endpoint_that_refused_comes_last_for_a_while() {
    let start = Instant::now();
    let mut chooser = chooser(&[5, 6, 7], Affinity::None);
    chooser.refused(target(6), start);
    assert_eq!(given(&mut chooser, start), targets(&[5, 7]));
    let tried = [target(5), target(7)];
    assert_eq!(chooser.choose(CLIENT, &tried, start), Some(target(6)));
    let all = [target(5), target(7), target(6)];
    assert_eq!(chooser.choose(CLIENT, &all, start), None);
    assert_eq!(given(&mut chooser, start + SHUNNED), targets(&[5, 6, 7]));
}

#[test]
fn a_client_returns_until_the_timeout_after_its_last_connection() {
    let start = Instant::now();
    let mut chooser = chooser(&[5, 6, 7], sticky());
    let first = given(&mut chooser, start);
    assert_eq!(first.len(), 1);
    let later = start + TIMEOUT - Duration::from_secs(1);
    assert_eq!(given(&mut chooser, later), first);
    assert_eq!(given(&mut chooser, later + Duration::from_secs(2)), first);

    let others: BTreeSet<Target> = (0..100)
        .filter_map(|_| chooser.choose(CLIENT, &[], later + 3 * TIMEOUT))
        .collect();
    assert_eq!(others, targets(&[5, 6, 7]));
}

#[test]
fn a_client_moves_when_its_endpoint_goes_or_refuses_and_at_no_other_time() {
    let now = Instant::now();
    let mut chooser = chooser(&[5, 6], sticky());
    let first = given(&mut chooser, now);
    chooser.retarget(route(&[5, 6, 7, 8], sticky()));
    assert_eq!(given(&mut chooser, now), first, "others have come");

    let [old] = first.iter().copied().collect::<Vec<_>>()[..] else {
        panic!("{first:?}");
    };
    chooser.refused(old, now);
    let second = given(&mut chooser, now);
    assert_ne!(second, first);
    assert_eq!(second.len(), 1);

    let left: Vec<u8> = [5, 6, 7, 8]
        .into_iter()
        .filter(|host| !second.contains(&target(*host)))
        .collect();
    chooser.retarget(route(&left, sticky()));
    let third = given(&mut chooser, now);
    assert!(third.len() == 1 && third.is_disjoint(&second));
}

#[test]
fn a_port_that_goes_to_another_service_forgets_its_clients() {
    let now = Instant::now();
    let mut chooser = chooser(&[5, 6], sticky());
    given(&mut chooser, now);
    let mut other = Route::clone(&route(&[5, 6], sticky()));
    other.service_port.port = "other".into();
    chooser.retarget(Arc::new(other));
    assert!(chooser.affinity.is_empty());
}

#[test]
fn no_more_clients_are_remembered_than_fit() {
    let start = Instant::now();
    let mut chooser = chooser(&[5, 6], sticky());
    let client = |number: usize| {
        let [high, low] = u16::try_from(number).expect("few").to_be_bytes();
        IpAddr::from([127, 1, high, low])
    };
    for number in 0..CLIENTS + 10 {
        let now = start + Duration::from_millis(u64::try_from(number).expect("few"));
        chooser.given(client(number), target(5), now);
    }
    assert_eq!(chooser.affinity.len(), CLIENTS);
    assert!(
        !chooser.affinity.contains_key(&client(0)),
        "the oldest goes"
    );
    assert!(chooser.affinity.contains_key(&client(CLIENTS + 9)));
}
