//! How deep chains are nested between two steps.

use std::net::Ipv4Addr;

use backend::{Backend, Rendered};
use dataplane::{Dataplane, Family, Protocol, compile};
use proptest::prelude::*;
use testkit::{cases, mk_config, mk_endpoints, mk_node, mk_service};
use xtables::Variant;

use super::*;
use crate::Iptables;

/// Addresses and ports that differ from the first one at one digit each, and enough ports behind the last
/// digit: each of them makes the way to these a branch longer.
fn comb() -> Vec<(u32, Protocol, u16)> {
    let (first, tcp) = (0xc0a8_1111_u32, Protocol::Tcp);
    let addresses = (0..8).map(|digit| (first ^ 2 << (4 * digit), tcp, 0x1111));
    let ports = [12, 8, 4].map(|digit| (first, tcp, 0x1111 ^ 2 << digit));
    let last = (0..16).map(|digit| (first, tcp, 0x1110 + digit));
    let beside = (0..16).map(|digit| (first, Protocol::Udp, 0x1110 + digit));
    let keys = addresses.chain(ports).chain(last).chain(beside);
    keys.collect()
}

/// Services at these places of the comb, as load balancers with source ranges: with all chains that there
/// may be behind a tree.
fn at(places: &[bool]) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for (number, (address, protocol, port)) in comb().into_iter().enumerate() {
        if !places[number] {
            continue;
        }
        let address = Ipv4Addr::from(address).to_string();
        let service = mk_service(&format!("shop/web-{number}"))
            .cluster_ip(&format!("10.96.0.{}", number + 1))
            .load_balancer_ip(&address)
            .source_range("203.0.113.0/24")
            .external_local();
        let (service, endpoints) = match protocol {
            Protocol::Udp => (service.udp("", port), mk_endpoints().udp("")),
            _ => (service.port("", port), mk_endpoints().tcp("")),
        };
        let endpoints = endpoints.ready("10.0.1.5:8080", "node-1").build();
        dataplane.set(compile(&service.build(), &endpoints, &node, &config).into());
    }
    dataplane
}

/// Most places of the comb.
fn places() -> impl Strategy<Value = Vec<bool>> {
    prop::collection::vec(prop::bool::weighted(0.85), comb().len())
}

/// The change in steps of `most` rules, and the rules before and after it.
fn change(before: &Dataplane, after: &Dataplane, most: usize) -> (Change, [Rules; 2]) {
    let backend = Iptables::detached(Family::Ipv4, Variant::NfTables);
    let held = backend.render(before, &Rendered::default());
    let from = Rendered {
        dataplane: before.clone(),
        rules: held.clone(),
    };
    let desired = backend.render(after, &from);
    (diff_in_steps(&held, &desired, most), [held, desired])
}

/// Carries out `change`, as the kernel does.
fn replay(change: &Change, held: &mut Rules) {
    for step in change.steps() {
        if let Err(error) = held.replay(step) {
            panic!("{error} after\n{change}");
        }
    }
}

/// Carries out `change` where the kernel has no memory for steps that can be split.
fn replay_halves(change: &Change, held: &mut Rules) -> usize {
    match change.halves() {
        Some(halves) => halves.iter().map(|half| replay_halves(half, held)).sum(),
        None => {
            replay(change, held);
            1
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(100)))]

    /// Failure story T454.
    #[test]
    fn t454_at_no_border_of_steps_chains_are_nested_deeper_than_the_kernel_takes(
        before in places(), after in places(), most in 1_usize..60,
    ) {
        let (change, [mut held, desired]) = change(&at(&before), &at(&after), most);
        replay(&change, &mut held);
        prop_assert_eq!(held, desired);
    }

    /// Failure story T458.
    #[test]
    fn t458_where_memory_is_short_no_half_of_a_step_nests_chains_deeper_than_the_kernel_takes(
        before in places(), after in places(), most in 1_usize..300,
    ) {
        let (change, [mut held, desired]) = change(&at(&before), &at(&after), most);
        let parts = replay_halves(&change, &mut held);
        prop_assert_eq!(held, desired);
        // Most places are good ones.
        prop_assert!(parts > change.steps().iter().map(|step| step.chains.len()).sum::<usize>() / 2);
    }
}
