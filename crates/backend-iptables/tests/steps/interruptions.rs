//! The treatment of packets after a process was killed between two steps, or ran out of memory for
//! the next one, and another process continues from what it finds.

use backend::{Backend, Rendered};
use backend_iptables::{Iptables, Rules};
use dataplane::{Dataplane, Family, Origin, Packet, Protocol};
use proptest::prelude::*;
use testkit::{cases, changes, mk_endpoints, mk_service, port, services_at_shared_addresses};

use super::stories::state;
use super::{backend, damage, damages, expect_good_steps, held, parts, ways};

/// Interrupts the change from `held` to the second of `dataplanes` after each part, and from there
/// continues it and reverts it. At every part of either, packets fare no worse than at both ends.
fn expect_good_recoveries(
    backend: &Iptables,
    mut held: Rules,
    dataplanes: [&Dataplane; 2],
    packets: &[Packet],
) {
    let [back, on] = dataplanes.map(|dataplane| backend.render(dataplane, &Rendered::default()));
    let [before, after] = dataplanes;
    for part in parts(backend, &held, &on) {
        held.replay(&part)
            .expect("every part of a step can be taken");
        expect_good_steps(backend, (held.clone(), &on), [before, after], packets);
        expect_good_steps(backend, (held.clone(), &back), [after, before], packets);
    }
}

/// Processes that are each killed after one part eventually complete the change.
fn expect_arrival(backend: &Iptables, mut held: Rules, desired: &Dataplane) {
    let desired = backend.render(desired, &Rendered::default());
    let most = 3 * parts(backend, &held, &desired).len();
    for _ in 0..=most {
        let Some(part) = parts(backend, &held, &desired).into_iter().next() else {
            assert_eq!(held, desired);
            return;
        };
        held.replay(&part)
            .expect("every part of a step can be taken");
    }
    panic!("{most} parts do not lead to\n{desired}from\n{held}");
}

/// Checks all interruptions between `before` and `after`, for a pod's packets to port 80 of
/// `destination`.
fn expect_good_interruptions(before: &Dataplane, after: &Dataplane, destination: &str) {
    let packet = Packet {
        origin: Origin::Pod {
            interface: "veth9".into(),
        },
        source: "10.0.1.9".parse().expect("an address"),
        destination: destination.parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: port(80),
    };
    let backend = backend(Family::Ipv4);
    let serving = held(&backend, &backend.render(before, &Rendered::default()));
    expect_arrival(&backend, serving.clone(), after);
    expect_good_recoveries(&backend, serving, [before, after], &[packet]);
}

/// A Service loses its only endpoint, with an interruption after each part. Nothing was refused
/// before, so the chains of refusals exist for a while without a jump to them.
#[test]
fn t96_a_service_that_loses_its_endpoints_is_refused_after_every_interruption() {
    let of = |endpoints: &[&str]| {
        let service = mk_service("shop/web").cluster_ip("10.96.0.10");
        let service = service.external_ip("198.51.100.10").port("", 80);
        let list = mk_endpoints().tcp("");
        let list = endpoints
            .iter()
            .fold(list, |list, endpoint| list.ready(endpoint, "node-2"));
        state(vec![(service, list)])
    };
    let [before, after] = [&["10.0.2.7:80"][..], &[]].map(of);
    expect_good_interruptions(&before, &after, "198.51.100.10");
}

/// An address is a cluster IP and becomes another Service's external IP. The change is reverted
/// where it was interrupted: the port is refused again before it is removed.
#[test]
fn t119_an_external_ip_that_goes_back_to_a_cluster_ip_is_served_or_refused_after_every_interruption()
 {
    let no_endpoints = || mk_endpoints().tcp("");
    let web = || mk_service("shop/web").cluster_ip("10.96.0.1");
    let other = mk_service("shop/other").cluster_ip("198.51.100.1");
    let before = state(vec![
        (web().port("", 80), no_endpoints()),
        (other.port("", 30080), no_endpoints()),
    ]);
    let web = web().external_ip("198.51.100.1").port("", 80);
    let after = state(vec![(web, no_endpoints().ready("10.0.2.8:80", "node-2"))]);
    expect_good_interruptions(&before, &after, "198.51.100.1");
}

/// Failure story T348: the only Service goes and, where that was interrupted, comes back. Until the end
/// its address is refused, not dropped as one without a Service: otherwise the way back would begin to
/// refuse it.
#[test]
fn t348_a_service_whose_removal_was_interrupted_comes_back_without_a_refusal() {
    let web = mk_service("shop/web").cluster_ip("10.96.0.10").port("", 80);
    let endpoints = mk_endpoints().tcp("").ready("10.0.2.7:80", "node-2");
    let before = state(vec![(web, endpoints)]);
    expect_good_interruptions(&before, &state(Vec::new()), "10.96.0.10");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(24)))]

    #[test]
    fn t96_after_an_interruption_among_few_addresses_no_packet_fares_worse_than_at_both_ends(
        (before, after, packets) in services_at_shared_addresses(),
    ) {
        let [before, after] = [before, after].map(|cluster| cluster.compile());
        let backend = backend(Family::Ipv4);
        let serving = held(&backend, &backend.render(&before, &Rendered::default()));
        expect_arrival(&backend, serving.clone(), &after);
        expect_good_recoveries(&backend, serving, [&before, &after], &packets);
    }

    /// Failure story T286: about half of the Services stay, and notice nothing.
    #[test]
    fn t286_a_change_that_is_cut_short_harms_no_other_service_and_misleads_no_packet(
        (before, after, packets) in changes(4),
    ) {
        let [before, after] = [before, after].map(|cluster| cluster.compile());
        for family in Family::ALL {
            let backend = backend(family);
            let serving = held(&backend, &backend.render(&before, &Rendered::default()));
            let desired = backend.render(&after, &Rendered::default());
            expect_good_steps(&backend, (serving.clone(), &desired), [&before, &after], &packets);
            expect_good_recoveries(&backend, serving, [&before, &after], &packets);
        }
    }

    #[test]
    fn t96_after_an_interruption_no_packet_fares_worse_than_at_both_ends(
        (before, after, packets) in ways(), damages in damages(),
    ) {
        let [before, after] = [before, after].map(|cluster| cluster.compile());
        let nothing = Dataplane::new(after.node().clone(), after.config().clone());
        for family in Family::ALL {
            let backend = backend(family);
            let [serving, desired] =
                [&before, &after].map(|d| held(&backend, &backend.render(d, &Rendered::default())));
            let mut damaged = desired.clone();
            damage(&mut damaged, &desired, &damages);
            for (held, before) in [
                (Rules::default(), &nothing),
                (serving, &before),
                (damaged, &after),
            ] {
                expect_arrival(&backend, held.clone(), &after);
                expect_good_recoveries(&backend, held, [before, &after], &packets);
            }
        }
    }
}
