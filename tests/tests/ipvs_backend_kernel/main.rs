//! The table and the virtual servers of mode ipvs in a real kernel.
//!
//! If the kernel has no IPVS, only the table is tested; `kernel_rig` runs the rest on Linux 6.1.

mod established;
mod flushed;
mod interrupted_end;
mod loopback;
mod refused;
mod removed;
mod stage;
mod untaken;
mod upgraded;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use backend::{Backend, Recovery, Rendered};
use backend_ipvs::{Ipvs, Rules, Step};
use dataplane::{Config, Dataplane, Family, IpvsTimeouts, Mode};
use libtest_mimic::Arguments;
use netlink::Socket;
use netlink::ipvs::{
    IpvsSocket, MarkRange, Operation, SchedulerName, VirtualServer, VirtualServerFlags,
    VirtualServerKey,
};
use netlink::route::{LocalDelivery, Presence, RouteSocket};
use testkit::{mk_config, mk_node};
use tests::ipvs_support::find_ipvs;
use tests::kernels::{Kernels, every_law_holds, hold_what_was_rendered};
use tests::network::{Namespace, Network, enter_private_namespaces};
use tests::programmed::{program, richest};
use tests::trial::trial;

/// The routing rule of the mode.
const DELIVERY: LocalDelivery = LocalDelivery {
    mark: 0x5340_0000,
    mask: 0xfff0_0000,
    table: 0x5340_0000,
    priority: 83,
};

type Test = fn(&Namespace) -> Result<()>;
/// A test that makes its own namespaces.
type PacketTest = fn() -> Result<()>;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let missing = find_ipvs(&["rr", "mh"])?;
    let table: [(&str, Test); 2] = [
        (
            "marked_packets_are_delivered_to_the_node_and_damage_to_that_is_seen",
            delivers_marked_packets,
        ),
        ("nft_lists_every_form_of_the_table", nft_lists_the_table),
    ];
    let without: (&str, Test) = (
        "without_ipvs_nothing_is_written_and_the_module_is_named",
        names_the_module,
    );
    let servers: [(&str, Test); 11] = [
        ("every_law_of_backends_holds", every_law_of_backends_holds),
        (
            "the_kernel_holds_what_was_rendered",
            the_kernel_holds_what_was_rendered,
        ),
        (
            "virtual_servers_of_others_are_named_only_while_they_and_a_timeout_are_there",
            names_affected_virtual_servers,
        ),
        (
            "t373_endpoints_that_the_kernel_refuses_leave_all_others_served",
            refused::leave_all_others_served,
        ),
        (
            "t375_a_firewall_that_drops_packets_to_services_is_named",
            names_the_firewall,
        ),
        (
            "t256_an_end_of_the_mode_that_was_cut_short_is_completed",
            interrupted_end::is_completed,
        ),
        (
            "t301_a_virtual_server_that_goes_is_missed_before_the_next_full_read",
            removed::is_missed,
        ),
        (
            "t376_a_destination_that_goes_is_missed_before_the_next_full_read",
            removed::is_missed_with_a_destination,
        ),
        (
            "t462_destinations_are_read_some_at_each_check_and_none_is_mistaken",
            removed::are_changed_in_thresholds,
        ),
        (
            "t358_a_flushed_table_is_filled_again_and_its_virtual_servers_stay",
            flushed::is_filled_again_and_its_virtual_servers_stay,
        ),
        (
            "t341_a_table_of_another_process_keeps_nothing_else_in_the_kernel",
            removed::is_all_but_a_table_of_another_process,
        ),
    ];
    let in_namespace = |(name, test): (&str, Test)| {
        trial(name, move || {
            let mut network = Network::new()?;
            let [namespace] = network.add_namespaces(["kernel"])?;
            test(&namespace)
        })
    };
    let mut trials: Vec<_> = table.map(in_namespace).into();
    let is_missing = missing.is_some();
    trials.push(in_namespace(without).with_ignored_flag(!is_missing));
    let servers = servers.map(in_namespace).into_iter();
    trials.extend(servers.map(|trial| trial.with_ignored_flag(is_missing)));
    let packets: [(&str, PacketTest); 8] = [
        (
            "t297_packets_that_ipvs_does_not_take_reach_no_process_of_the_node",
            untaken::reach_no_process,
        ),
        (
            "t299_a_flushed_connection_tracking_table_leaves_no_client_waiting",
            established::without_conntrack,
        ),
        (
            "t300_a_client_with_affinity_moves_and_its_connections_stay",
            established::of_clients_that_move,
        ),
        (
            "t311_a_table_of_another_version_is_replaced_and_no_connection_notices",
            upgraded::harms_no_connection,
        ),
        (
            "t314_t359_what_is_left_for_connections_is_no_drift_and_outlives_a_flush",
            established::whose_table_goes,
        ),
        (
            "t342_an_endpoint_at_a_loopback_address_serves_the_node_alone",
            loopback::serves_the_node_alone,
        ),
        (
            "t369_a_mode_that_returns_gives_out_no_mark_that_connections_have",
            established::of_a_mode_that_returns,
        ),
        (
            "t343_connections_are_counted_until_they_have_ended_and_timed_out",
            established::are_counted,
        ),
    ];
    let packets = packets.into_iter().map(|(name, test)| trial(name, test));
    trials.extend(packets.map(|trial| trial.with_ignored_flag(is_missing)));
    match missing {
        Some(why) => println!("SKIPPED: every test of the backend's virtual servers: {why}"),
        None => println!("SKIPPED: {}: the kernel has IPVS", without.0),
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn open(namespace: &Namespace) -> Result<[Ipvs; 2]> {
    Ok(namespace.enter(|| backend_ipvs::open(Path::new("/proc/sys")))??)
}

/// Returns a dataplane with elements in every map.
fn rich() -> Result<Dataplane> {
    richest(&Family::ALL.map(Ipvs::detached), Rules::elements)
}

fn nft_lists_the_table(namespace: &Namespace) -> Result<()> {
    let dataplane = rich()?;
    let mut socket = namespace.enter(Socket::open)??;
    for backend in &mut open(namespace)? {
        let expected = backend.render(&dataplane, &Rendered::default());
        let change = backend.diff(&Rules::default(), &expected);
        let mut held = expected.clone();
        for step in change.steps() {
            match step {
                Step::Table(transaction) => {
                    socket
                        .commit(transaction)
                        .with_context(|| transaction.to_string())?;
                }
                // Nothing leaves an empty kernel.
                Step::Timeouts(_) | Step::Departures(_) => {}
                // As if they had been removed again.
                Step::Delivery(_) => held.replay(&Step::Delivery(Presence::Absent))?,
                Step::Servers(operations) => {
                    let keys = operations.iter().filter_map(|operation| match operation {
                        Operation::AddVirtualServer { key, .. } => Some(*key),
                        _ => None,
                    });
                    let removals = keys.map(|key| Operation::RemoveVirtualServer { key });
                    held.replay(&Step::Servers(removals.collect()))?;
                }
            }
        }
        let observed = backend.observe()?;
        ensure!(
            observed == held,
            "the kernel holds:\n{observed}\nand not:\n{held}"
        );
    }
    let listed = namespace.nft(&["list", "ruleset"])?;
    for part in [
        "type route hook output priority",
        "meta mark set ip daddr . meta l4proto . th dport map @services goto take-cluster-ip",
        "map @short-circuits goto take",
        "@refusals return",
        "ct label set 114",
        "ct direction original",
        "masquerade fully-random",
        "reject with tcp reset",
        "@hairpins",
        "@restrictions goto allow-sources",
        "update @clients-",
        "update @crowded",
        "delete @clients-",
        "dnat",
        "vmap @return-chains",
        "vmap @learning-chains",
    ] {
        ensure!(listed.contains(part), "no {part} in:\n{listed}");
    }
    Ok(())
}

fn delivers_marked_packets(namespace: &Namespace) -> Result<()> {
    namespace.configure("link set lo up")?;
    let mut socket = namespace.enter(RouteSocket::open)??;
    for (family, option, address) in [
        (Family::Ipv4, "-4", "10.96.0.10"),
        (Family::Ipv6, "-6", "fd00:96::10"),
    ] {
        ensure!(socket.observe(family, &DELIVERY)? == Presence::Absent);
        // The second commit has nothing to do.
        for _ in 0..2 {
            socket.commit(family, &DELIVERY)?;
            ensure!(socket.observe(family, &DELIVERY)? == Presence::Whole);
        }
        let ip = |arguments: &[&str]| {
            let mut command = namespace.command("ip");
            let output = command.arg(option).args(arguments).output()?;
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            anyhow::Ok(printed)
        };
        let listed = ip(&["rule", "list"])?;
        ensure!(
            listed.contains("83:\tfrom all fwmark 0x53400000/0xfff00000 lookup 1396703232"),
            "{listed}"
        );
        let marked = ip(&["route", "get", address, "mark", "0x53400007"])?;
        ensure!(marked.starts_with("local "), "{marked}");
        let unmarked = ip(&["route", "get", address, "mark", "0x53500000"])?;
        ensure!(!unmarked.starts_with("local "), "{unmarked}");

        ip(&["route", "flush", "table", "1396703232"])?;
        ensure!(socket.observe(family, &DELIVERY)? == Presence::Partial);
        socket.commit(family, &DELIVERY)?;
        ensure!(socket.observe(family, &DELIVERY)? == Presence::Whole);
        ip(&["rule", "delete", "priority", "83"])?;
        ensure!(socket.observe(family, &DELIVERY)? == Presence::Absent);
        socket.commit(family, &DELIVERY)?;
        ensure!(socket.observe(family, &DELIVERY)? == Presence::Whole);

        // The second removal finds nothing.
        for _ in 0..2 {
            socket.commit_removal(family, &DELIVERY)?;
            ensure!(socket.observe(family, &DELIVERY)? == Presence::Absent);
        }
        let left = ip(&["route", "list", "table", "1396703232"])?;
        ensure!(left.is_empty(), "{left}");
    }
    Ok(())
}

fn names_the_module(namespace: &Namespace) -> Result<()> {
    let dataplane = rich()?;
    for mut backend in open(namespace)? {
        let expected = backend.render(&dataplane, &Rendered::default());
        let error = backend.commit(backend.diff(&Rules::default(), &expected));
        let error = error
            .err()
            .context("a kernel without IPVS takes virtual servers")?;
        ensure!(error.recovery == Recovery::Halt, "{error:?}");
        let text = format!("{:#}", anyhow::Error::from(error));
        ensure!(text.contains("ip_vs"), "{text}");
        ensure!(
            backend.observe()? == Rules::default(),
            "something was written"
        );
    }
    Ok(())
}

fn every_law_of_backends_holds(_: &Namespace) -> Result<()> {
    let kernels = |family| Kernels {
        family,
        open,
        canonical: Rules::canonical,
        targets: Rules::targets,
    };
    every_law_holds(kernels, 3)
}

fn the_kernel_holds_what_was_rendered(namespace: &Namespace) -> Result<()> {
    hold_what_was_rendered(open(namespace)?, 20)
}

/// Failure story T375: a switch to mode ipvs on a node whose firewall drops what it does not know took all Services
/// of the node from their clients, and nothing said why.
fn names_the_firewall(namespace: &Namespace) -> Result<()> {
    let dataplane = Dataplane::new(mk_node(1).build(), mk_config().build());
    for (mut backend, program_of) in open(namespace)?.into_iter().zip(["iptables", "ip6tables"]) {
        let run = |arguments: &[&str]| -> Result<()> {
            let mut command = namespace.command(format!("{program_of}-nft"));
            let status = command.arg("--wait").args(arguments).status()?;
            ensure!(status.success(), "{program_of} {arguments:?}: {status}");
            Ok(())
        };
        let named = |backend: &mut Ipvs| -> Result<usize> {
            backend.observe()?;
            let all = backend.limitations(&dataplane);
            Ok(all
                .iter()
                .filter(|text| text.contains("chain INPUT"))
                .count())
        };
        program(&mut backend, &dataplane, &Rendered::default())?;
        ensure!(named(&mut backend)? == 0, "there is no firewall");
        run(&["-P", "INPUT", "DROP"])?;
        run(&["-A", "INPUT", "-i", "lo", "-j", "ACCEPT"])?;
        ensure!(named(&mut backend)? == 1, "it drops what it does not know");
        // As the operations guide shows it.
        let mark = "0x53400000/0xfff00000";
        run(&["-I", "INPUT", "-m", "mark", "--mark", mark, "-j", "ACCEPT"])?;
        ensure!(named(&mut backend)? == 0, "a rule accepts them");
        let _ = backend.commit_removal()?;
    }
    Ok(())
}

/// IPVS has one set of timeouts for the virtual servers of all programs.
fn names_affected_virtual_servers(namespace: &Namespace) -> Result<()> {
    let with = |ipvs_timeouts| {
        let config = Config {
            ipvs_timeouts,
            ..Config::clone(&mk_config().mode(Mode::Ipvs).build())
        };
        Dataplane::new(mk_node(1).build(), config.into())
    };
    let without = with(IpvsTimeouts::default());
    let desired = with(IpvsTimeouts {
        udp: Some(Duration::from_secs(42)),
        ..IpvsTimeouts::default()
    });
    let marks = MarkRange::new(0x4000_0000, 4).context("it is a range")?;
    let mut others = namespace.enter(|| IpvsSocket::open(marks))??;
    let key = VirtualServerKey {
        family: Family::Ipv4,
        mark: marks.mark(1).context("it is one of them")?,
    };
    let server = VirtualServer {
        scheduler: SchedulerName::new("rr").context("it is a name")?,
        flags: VirtualServerFlags::default(),
    };
    let naming = |backend: &Ipvs, programmed: &Dataplane, part: &str| {
        let mut all = backend.limitations(programmed);
        all.retain(|text| text.contains(part));
        all
    };
    let named =
        |backend: &Ipvs, programmed: &Dataplane| naming(backend, programmed, "one such timeout");
    let by_sysctls = |backend: &Ipvs| naming(backend, &without, "mode ipvs needs sysctls");
    for mut backend in open(namespace)? {
        let held = program(&mut backend, &desired, &Rendered::default())?;
        ensure!(backend.observe()? == held.rules);
        ensure!(named(&backend, &desired).is_empty());

        others.commit(&[Operation::AddVirtualServer {
            key,
            server: server.clone(),
        }])?;
        ensure!(backend.observe()? == held.rules, "they are not its own");
        let affected = named(&backend, &desired).join("\n");
        ensure!(affected.starts_with("ipvs.udpTimeout: "), "{affected:?}");
        ensure!(affected.ends_with(": FWM 1073741825"), "{affected:?}");
        ensure!(named(&backend, &without).is_empty());
        // Failure story T364. Linux before 5.17 has no `run_estimation`.
        let affected = by_sysctls(&backend).join("\n");
        ensure!(affected.contains("expire_nodest_conn=1"), "{affected:?}");
        ensure!(affected.ends_with(" are FWM 1073741825"), "{affected:?}");

        others.commit(&[Operation::RemoveVirtualServer { key }])?;
        ensure!(backend.observe()? == held.rules);
        ensure!(named(&backend, &desired).is_empty());
        ensure!(by_sysctls(&backend).is_empty());
        let _ = backend.commit_removal()?;
    }
    Ok(())
}
