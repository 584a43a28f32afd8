//! The treatment of packets at every step of a change, including steps that are divided into single
//! chains for lack of memory.

mod interruptions;
mod stories;
mod tenants;

use std::sync::Arc;

use backend::{Backend, Rendered};
use backend_iptables::{Iptables, Rules, simulate};
use dataplane::{Dataplane, Family, FrontendKind, Origin, Packet, Protocol, Verdict, compile};
use proptest::prelude::*;
use proptest::sample::Index;
use testkit::{
    Cluster, cases, clusters, laws, mk_config, mk_endpoints, mk_node, mk_service, packets, port,
    services_at_shared_addresses,
};
use xtables::{TableChange, TableName, Variant};

/// Two states of one node, and packets that are likely to matter in either.
fn ways() -> impl Strategy<Value = (Cluster, Cluster, Vec<Packet>)> {
    (clusters(), clusters()).prop_flat_map(|(before, after)| {
        let after = Cluster {
            node: Arc::clone(&before.node),
            config: Arc::clone(&before.config),
            ..after
        };
        let packets =
            [packets(&before), packets(&after)].map(|some| prop::collection::vec(some, 12));
        (Just(before), Just(after), packets)
            .prop_map(|(before, after, [some, others])| (before, after, [some, others].concat()))
    })
}

/// Damage that another program has done to Signpost's rules in one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    /// Chains are flushed, Signpost's among them.
    Emptied,
    /// The jumps to Signpost's chains are removed.
    Unentered,
}

fn damages() -> impl Strategy<Value = Vec<(TableName, Damage, Index)>> {
    let damage = prop_oneof![
        4 => Just(Damage::Emptied),
        1 => Just(Damage::Unentered)
    ];
    let table = prop::sample::select(TableName::ALL.to_vec());
    prop::collection::vec((table, damage, any::<Index>()), 1..6)
}

fn backend(family: Family) -> Iptables {
    Iptables::detached(family, Variant::NfTables)
}

/// Divides the step into single chains.
fn one_by_one(step: &TableChange) -> Vec<TableChange> {
    let chains = step.chains.iter().map(|chain| TableChange {
        chains: vec![chain.clone()],
        ..TableChange::new(step.table)
    });
    let entries = step.entries.iter().map(|entry| TableChange {
        entries: vec![entry.clone()],
        ..TableChange::new(step.table)
    });
    let removed = TableChange {
        removed: step.removed.clone(),
        ..TableChange::new(step.table)
    };
    chains.chain(entries).chain([removed]).collect()
}

/// All parts of the change from `held` to `desired`, divided into single chains.
fn parts(backend: &Iptables, held: &Rules, desired: &Rules) -> Vec<TableChange> {
    let change = backend.diff(held, desired);
    let parts = change.steps().iter().flat_map(one_by_one);
    parts.filter(|part| !part.is_empty()).collect()
}

/// Checks every packet of the family at each part of the change from `held` to `desired`.
fn expect_good_steps(
    backend: &Iptables,
    (held, desired): (Rules, &Rules),
    dataplanes: [&Dataplane; 2],
    packets: &[Packet],
) {
    expect_good_repair(
        backend,
        [&held],
        (held.clone(), desired),
        dataplanes,
        packets,
    );
}

/// Checks every packet of the family at each part of the change from `held` to `desired`. It fares no
/// worse than on the way from one of `before`: the rules before another program damaged them, and the
/// damaged ones.
fn expect_good_repair<const N: usize>(
    backend: &Iptables,
    before: [&Rules; N],
    (mut held, desired): (Rules, &Rules),
    dataplanes: [&Dataplane; 2],
    packets: &[Packet],
) {
    let node = dataplanes[1].node();
    let packets = packets.iter();
    // An external IP that is also an address of the node may have the port of another Service's
    // node port: only table nat decides which of the two refuses a packet.
    let is_twofold = |packet: &Packet| {
        let mut frontends = dataplanes
            .iter()
            .filter_map(|d| d.frontend_at(packet.destination, packet.protocol, packet.port));
        node.local_addresses.contains(&packet.destination)
            && frontends.any(|frontend| frontend.kind != FrontendKind::NodePort)
    };
    // A node port may be reached by an address of the node that becomes a cluster IP, or is one whose
    // refusals are damaged. These are added after the change of table nat, which removes the node port.
    let [old, new] = dataplanes;
    let is_taken = |packet: &Packet| {
        let frontend = old.frontend_at(packet.destination, packet.protocol, packet.port);
        let is_cluster_ip = |of: &Dataplane| of.cluster_ips().get(&packet.destination).is_some();
        frontend.is_some_and(|frontend| frontend.kind == FrontendKind::NodePort)
            && (N > 1 || !is_cluster_ip(old))
            && is_cluster_ip(new)
    };
    let packets = packets.filter(|packet| Family::of(packet.destination) == backend.family());
    let packets = packets.filter(|packet| !is_twofold(packet) && !is_taken(packet));
    let verdict = |rules: &Rules, packet: &Packet| simulate(rules, node, packet);
    let ends: Vec<(&Packet, [Verdict; N], Verdict)> = packets
        .map(|packet| {
            let before = before.map(|rules| verdict(rules, packet));
            (packet, before, verdict(desired, packet))
        })
        .collect();
    let is_repair = N > 1 || std::ptr::eq(old, new);
    for part in parts(backend, &held, desired) {
        held.replay(&part)
            .expect("every part of a step can be taken");
        for (packet, before, after) in &ends {
            let between = verdict(&held, packet);
            let is_no_worse = before.iter().any(|before| {
                let ends = [before, after];
                laws::is_no_worse_than_both_ends(packet, dataplanes, ends, &between)
            });
            assert!(
                is_no_worse,
                "{packet} is {between:?} on the way from {before:?} to {after:?}"
            );
            // What is refused may be dropped for a moment of a repair: its sender tries again.
            let waits = is_repair && *after == Verdict::Reject && between == Verdict::Drop;
            // Until a repair, damage may concern any Service.
            if !waits && before.iter().all(|before| before == after) {
                laws::unrelated_services_notice_nothing(dataplanes, packet, &between);
            }
        }
    }
    assert_eq!(held, *desired);
}

/// The rules as read back from the kernel, without the trees they were made from.
fn held(backend: &Iptables, rules: &Rules) -> Rules {
    let mut held = Rules::default();
    for step in backend.diff(&held, rules).steps() {
        held.replay(step).expect("every step can be taken");
    }
    held
}

fn damage(held: &mut Rules, desired: &Rules, damages: &[(TableName, Damage, Index)]) {
    let printed = desired.to_string();
    for (table, damage, at) in damages {
        let mut step = TableChange::new(*table);
        let text = printed.split(&format!("*{table}\n")).nth(1).unwrap_or("");
        let text = text.split("COMMIT").next().unwrap_or("");
        match damage {
            Damage::Emptied => {
                let names = text.lines().filter_map(|line| line.strip_prefix(':'));
                let names: Vec<&str> = names.filter_map(|name| name.split(' ').next()).collect();
                if !names.is_empty() {
                    step.chains = vec![((*at.get(&names)).into(), [].into())];
                }
            }
            Damage::Unentered => {
                use xtables::BuiltIn::{Forward, Input, Output, Postrouting, Prerouting};
                let hooks = [Prerouting, Input, Forward, Output, Postrouting];
                step.entries = hooks.map(|hook| (hook, Vec::new())).into();
            }
        }
        held.replay(&step).expect("any program can do that");
    }
}

/// Damages the rules of the first of `states`, and checks packets at each part of the way to the second.
fn expect_good_damaged_changes(
    states: [&Cluster; 2],
    damages: &[(TableName, Damage, Index)],
    packets: &[Packet],
) {
    let [before, after] = states.map(Cluster::compile);
    for family in Family::ALL {
        let backend = backend(family);
        let observed = backend.render(&before, &Rendered::default());
        let from = Rendered {
            dataplane: before.clone(),
            rules: observed.clone(),
        };
        let desired = backend.render(&after, &from);
        let mut damaged = held(&backend, &observed);
        damage(&mut damaged, &observed, damages);
        let befores = [&observed, &damaged];
        let change = (damaged.clone(), &desired);
        expect_good_repair(&backend, befores, change, [&before, &after], packets);
    }
}

/// Services on port 80: DNS, a second Service that refuses packets to DNS's endpoint as its
/// external IP, and a third one with these endpoints.
fn with_claimed_endpoint(endpoints: &[&str]) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    let dns = mk_service("kube-system/dns").cluster_ip("10.96.0.10");
    let thief = mk_service("aaa/thief").cluster_ip("10.96.0.66");
    let third = mk_service("shop/third").cluster_ip("10.96.0.20");
    for (service, endpoints) in [
        (dns, &["10.0.2.7:80"][..]),
        (thief.external_ip("10.0.2.7"), &[]),
        (third, endpoints),
    ] {
        let mut list = mk_endpoints().tcp("");
        for endpoint in endpoints {
            list = list.ready(endpoint, "node-2");
        }
        let service = service.port("", 80).build();
        dataplane.set(compile(&service, &list.build(), &node, &config).into());
    }
    dataplane
}

#[test]
fn who_claims_an_endpoint_refuses_nothing_while_others_are_no_longer_refused() {
    let [before, after] = [&[][..], &["10.0.2.8:80"]].map(with_claimed_endpoint);
    let packet = Packet {
        origin: Origin::Pod {
            interface: "veth9".into(),
        },
        source: "10.0.1.9".parse().expect("an address"),
        destination: "10.96.0.10".parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: port(80),
    };
    let backend = backend(Family::Ipv4);
    let [observed, desired] =
        [&before, &after].map(|dataplane| backend.render(dataplane, &Rendered::default()));
    let ends = [&before, &after];
    expect_good_steps(&backend, (observed, &desired), ends, &[packet]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(200)))]

    #[test]
    fn t81_at_every_step_of_a_change_a_packet_fares_no_worse_than_at_both_ends(
        (before, after, packets) in ways(),
    ) {
        let [before, after] = [before, after].map(|cluster| cluster.compile());
        for family in Family::ALL {
            let backend = backend(family);
            let observed = backend.render(&before, &Rendered::default());
            let desired = backend.render(&after, &Rendered {
                dataplane: before.clone(),
                rules: observed.clone(),
            });
            // A process that has just started has read the rules, but not the trees they were made
            // from.
            let read = held(&backend, &observed);
            for observed in [observed, read] {
                expect_good_steps(&backend, (observed, &desired), [&before, &after], &packets);
            }
        }
    }

    #[test]
    fn t81_at_every_step_of_a_change_among_few_addresses_a_packet_fares_no_worse_than_at_both_ends(
        (before, after, packets) in services_at_shared_addresses(),
    ) {
        let [before, after] = [before, after].map(|cluster| cluster.compile());
        let backend = backend(Family::Ipv4);
        let [observed, desired] =
            [&before, &after].map(|dataplane| backend.render(dataplane, &Rendered::default()));
        expect_good_steps(&backend, (observed, &desired), [&before, &after], &packets);
    }

    #[test]
    fn t82_at_every_step_of_a_start_no_packet_to_a_healthy_service_is_refused_or_sent_elsewhere(
        (_, after, packets) in ways(),
    ) {
        let after = after.compile();
        let nothing = Dataplane::new(Arc::clone(after.node()), Arc::clone(after.config()));
        for family in Family::ALL {
            let backend = backend(family);
            let desired = backend.render(&after, &Rendered::default());
            let empty = Rules::default();
            expect_good_steps(&backend, (empty.clone(), &desired), [&nothing, &after], &packets);
            // And back to nothing.
            let held = held(&backend, &desired);
            expect_good_steps(&backend, (held, &empty), [&after, &nothing], &packets);
        }
    }

    #[test]
    fn t82_at_every_step_of_a_repair_no_packet_to_a_healthy_service_is_refused_or_sent_elsewhere(
        (state, _, packets) in ways(), damages in damages(),
    ) {
        let state = state.compile();
        for family in Family::ALL {
            let backend = backend(family);
            let desired = backend.render(&state, &Rendered::default());
            let mut held = held(&backend, &desired);
            damage(&mut held, &desired, &damages);
            expect_good_steps(&backend, (held, &desired), [&state, &state], &packets);
        }
    }

    /// Failure story T303: another program damages the rules while Services change.
    #[test]
    fn t303_at_every_step_of_a_repair_with_changes_a_packet_fares_no_worse_than_before(
        (before, after, packets) in ways(), damages in damages(),
    ) {
        expect_good_damaged_changes([&before, &after], &damages, &packets);
    }

    /// The same where most changes move an address from one Service to another.
    #[test]
    fn t303_at_every_step_of_a_repair_with_changes_among_few_addresses_a_packet_fares_no_worse_than_before(
        (before, after, packets) in services_at_shared_addresses(), damages in damages(),
    ) {
        expect_good_damaged_changes([&before, &after], &damages, &packets);
    }
}
