//! Virtual servers in a real kernel: the kernel lists what was committed, next to virtual servers
//! of other programs.
//!
//! If the kernel has no IPVS, every test counts as skipped; `kernel_rig` runs them on Linux 6.1.

mod interrupted_takeover;

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Arguments;
use netlink::ipvs::{
    CommitError, Destination, Destinations, ForeignVirtualServer, Forwarding, IpvsSocket,
    MarkRange, Operation, Recovery, SchedulerName, SchedulerSupport, Seconds, Thresholds, Timeouts,
    VirtualServer, VirtualServerFlags, VirtualServerKey, Weight,
};
use netlink::nf_tables::Family;
use tests::network::{Namespace, Network, enter_private_namespaces};
use tests::trial::trial;

const RANGE: MarkRange = MarkRange::new(0x5340_0000, 20).expect("the low bits are 0");
/// The range of another program.
const ELSEWHERE: MarkRange = MarkRange::new(0x0010_0000, 20).expect("the low bits are 0");
/// All schedulers of Linux 6.1.
const SCHEDULERS: [&str; 14] = [
    "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "mh", "sed", "nq", "fo", "ovf", "twos",
];
const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

type Test = fn(&Namespace) -> Result<()>;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let looking_loads = looking_loads_something()?;
    let missing = find_ipvs()?;
    let tests: [(&str, Test); 10] = [
        ("what_is_committed_is_what_the_kernel_lists", committed),
        ("t100_virtual_servers_of_others_stay_as_they_are", others),
        (
            "a_refused_operation_is_named_with_what_to_do_next",
            refusals,
        ),
        (
            "of_a_send_in_which_one_is_refused_the_others_take_effect",
            others_take_effect,
        ),
        (
            "a_scheduler_that_is_missing_is_named_with_its_module",
            scheduler,
        ),
        ("a_check_of_a_scheduler_leaves_nothing_behind", check),
        ("six_thousand_operations_are_all_answered", many),
        (
            "a_destination_of_weight_zero_stays_and_says_its_connections",
            draining,
        ),
        ("timeouts_are_those_of_the_network_namespace", timeouts),
        (
            "t255_a_takeover_from_mode_ipvs_that_was_cut_short_is_completed",
            interrupted_takeover::is_completed,
        ),
    ];
    let mut trials: Vec<_> = tests
        .map(|(name, test)| {
            let in_namespace = move || {
                let mut network = Network::new()?;
                let [namespace] = network.add_namespaces(["ipvs"])?;
                test(&namespace)
            };
            trial(name, in_namespace).with_ignored_flag(missing.is_some())
        })
        .into();
    let looking = trial("looking_loads_no_module", move || {
        ensure!(looking_loads == Some(false), "ip_vs was loaded by a look");
        Ok(())
    });
    trials.push(looking.with_ignored_flag(missing.is_some() || looking_loads.is_none()));
    if let Some(why) = missing {
        println!("SKIPPED: every test of virtual servers: {why}");
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Whether a read loads IPVS; `None` if it was already loaded.
fn looking_loads_something() -> Result<Option<bool>> {
    if is_loaded() {
        return Ok(None);
    }
    let mut socket = IpvsSocket::open(RANGE)?;
    let servers = socket.observe_virtual_servers()?;
    ensure!(servers == Default::default(), "{servers:?}");
    ensure!(socket.observe_timeouts()?.is_none());
    Ok(Some(is_loaded()))
}

/// IPVS creates this file in every network namespace.
fn is_loaded() -> bool {
    Path::new("/proc/net/ip_vs").exists()
}

/// Returns why IPVS cannot be tested; `None` if it can. Requests every scheduler one after another:
/// if two processes load a module concurrently, the rig's busybox reports it to one of them as
/// loaded before it is.
fn find_ipvs() -> Result<Option<String>> {
    let mut network = Network::new()?;
    let [namespace] = network.add_namespaces(["ipvs"])?;
    let mut socket = open(&namespace)?;
    for name in SCHEDULERS {
        match socket.check_scheduler(Family::Ipv4, &scheduler_name(name)?) {
            Ok(_) => {}
            Err(error @ CommitError::Missing) => return Ok(Some(error.to_string())),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn open(namespace: &Namespace) -> Result<IpvsSocket> {
    Ok(namespace.enter(|| IpvsSocket::open(RANGE))??)
}

fn scheduler_name(name: &str) -> Result<SchedulerName> {
    SchedulerName::new(name).with_context(|| format!("{name} is no name of a scheduler"))
}

fn key(family: Family, number: u32) -> Result<VirtualServerKey> {
    let mark = RANGE.mark(number).context("beyond the range")?;
    Ok(VirtualServerKey { family, mark })
}

fn server(name: &str) -> Result<VirtualServer> {
    Ok(VirtualServer {
        scheduler: scheduler_name(name)?,
        flags: VirtualServerFlags::default(),
    })
}

fn destination(weight: u32) -> Destination {
    Destination {
        forwarding: Forwarding::Masquerade,
        weight: Weight(weight),
        thresholds: Thresholds::default(),
    }
}

fn address(family: Family, last: u8) -> SocketAddr {
    let ip = match family {
        Family::Ipv4 => IpAddr::from([10, 0, 1, last]),
        Family::Ipv6 => IpAddr::from([0xfd00, 0, 0, 1, 0, 0, 0, u16::from(last)]),
    };
    SocketAddr::new(ip, 8080)
}

fn add_server(key: VirtualServerKey, name: &str) -> Result<Operation> {
    let server = server(name)?;
    Ok(Operation::AddVirtualServer { key, server })
}

fn add_destination(key: VirtualServerKey, last: u8, weight: u32) -> Operation {
    Operation::AddDestination {
        key,
        address: address(key.family, last),
        destination: destination(weight),
    }
}

/// Returns the destinations of a virtual server without their connections.
fn behind(found: &Destinations) -> Vec<(SocketAddr, Destination)> {
    found
        .iter()
        .map(|(address, (what, _))| (*address, *what))
        .collect()
}

fn committed(namespace: &Namespace) -> Result<()> {
    let mut socket = open(namespace)?;
    for family in FAMILIES {
        let [first, second] = [key(family, 0)?, key(family, 7)?];
        let hashed = VirtualServer {
            scheduler: scheduler_name("mh")?,
            flags: VirtualServerFlags::of(&[
                VirtualServerFlags::FALLBACK,
                VirtualServerFlags::HASH_PORT,
            ]),
        };
        socket.commit(&[
            add_server(first, "rr")?,
            add_destination(first, 5, 1),
            add_destination(first, 6, 3),
            add_server(second, "wlc")?,
            add_destination(second, 5, 65535),
        ])?;
        socket.commit(&[
            Operation::SetVirtualServer {
                key: second,
                server: hashed.clone(),
            },
            Operation::SetDestination {
                key: first,
                address: address(family, 5),
                destination: destination(2),
            },
            Operation::RemoveDestination {
                key: first,
                address: address(family, 6),
            },
        ])?;
        let listed = socket.observe_virtual_servers()?;
        let expected = [(first, server("rr")?), (second, hashed)];
        ensure!(listed.own == expected.into(), "{:?}", listed.own);
        let found = socket.observe_destinations_of([first, second])?;
        let found: Vec<_> = found.iter().map(|(_, found)| behind(found)).collect();
        let expected = [
            vec![(address(family, 5), destination(2))],
            vec![(address(family, 5), destination(65535))],
        ];
        ensure!(found == expected, "{found:?}");

        socket.commit(&[first, second].map(|key| Operation::RemoveVirtualServer { key }))?;
        let left = socket.observe_virtual_servers()?;
        ensure!(left == Default::default(), "{left:?}");
        ensure!(socket.observe_destinations(first)?.is_empty());
    }
    Ok(())
}

fn others(namespace: &Namespace) -> Result<()> {
    let mut socket = open(namespace)?;
    let mut other_socket = namespace.enter(|| IpvsSocket::open(ELSEWHERE))??;
    let mark = ELSEWHERE.mark(5).context("beyond the range")?;
    for family in FAMILIES {
        let their_key = VirtualServerKey { family, mark };
        other_socket.commit(&[
            add_server(their_key, "sh")?,
            add_destination(their_key, 9, 1),
        ])?;
        socket.commit(&[add_server(key(family, 5)?, "rr")?])?;
    }
    let listed = socket.observe_virtual_servers()?;
    ensure!(listed.own.len() == 2, "{:?}", listed.own);
    let expected = FAMILIES.map(|family| ForeignVirtualServer::Mark {
        family,
        mark: mark.value(),
    });
    let mut foreign = listed.foreign;
    foreign.sort();
    ensure!(foreign == expected, "{foreign:?}");

    let all: Vec<_> = listed.own.into_keys().collect();
    let remove = |key| Operation::RemoveVirtualServer { key };
    socket.commit(&all.into_iter().map(remove).collect::<Vec<_>>())?;
    for family in FAMILIES {
        // Even an explicit request fails.
        let their_key = VirtualServerKey { family, mark };
        let outcome = socket.commit(&[Operation::RemoveVirtualServer { key: their_key }]);
        ensure!(
            matches!(outcome, Err(CommitError::Unreserved(_))),
            "{outcome:?}"
        );
        let found = other_socket.observe_destinations(their_key)?;
        ensure!(
            behind(&found) == [(address(family, 9), destination(1))],
            "{found:?}"
        );
    }
    let left = other_socket.observe_virtual_servers()?;
    ensure!(left.own.len() == 2 && left.foreign.is_empty(), "{left:?}");
    Ok(())
}

fn refusals(namespace: &Namespace) -> Result<()> {
    let mut socket = open(namespace)?;
    let [there, absent] = [key(Family::Ipv4, 1)?, key(Family::Ipv4, 2)?];
    socket.commit(&[add_server(there, "rr")?, add_destination(there, 5, 1)])?;
    let overlapping = Destination {
        thresholds: Thresholds { upper: 1, lower: 2 },
        ..destination(1)
    };
    let multicast: SocketAddr = ([224, 0, 0, 1], 80).into();
    let address = address(Family::Ipv4, 5);
    let cases = [
        (add_server(there, "rr")?, Recovery::Observe),
        (add_destination(there, 5, 1), Recovery::Observe),
        (add_destination(absent, 5, 1), Recovery::Observe),
        (
            Operation::RemoveVirtualServer { key: absent },
            Recovery::Observe,
        ),
        (
            Operation::RemoveDestination {
                key: there,
                address: multicast,
            },
            Recovery::Observe,
        ),
        (
            Operation::SetDestination {
                key: there,
                address,
                destination: overlapping,
            },
            Recovery::Isolate,
        ),
        (
            Operation::AddDestination {
                key: there,
                address: multicast,
                destination: destination(1),
            },
            Recovery::Isolate,
        ),
    ];
    for (operation, expected) in cases {
        let error = socket.commit(std::slice::from_ref(&operation)).err();
        let error = error.with_context(|| format!("{operation} was taken"))?;
        ensure!(
            error.recovery() == expected,
            "{error}: {:?}",
            error.recovery()
        );
        ensure!(
            error.to_string().contains(&operation.to_string()),
            "{error}"
        );
    }
    let found = socket.observe_destinations(there)?;
    ensure!(behind(&found) == [(address, destination(1))], "{found:?}");
    Ok(())
}

fn others_take_effect(namespace: &Namespace) -> Result<()> {
    let mut socket = open(namespace)?;
    let [first, second] = [key(Family::Ipv6, 1)?, key(Family::Ipv6, 2)?];
    let operations = [
        add_server(first, "rr")?,
        add_server(first, "rr")?,
        add_destination(first, 5, 1),
        add_server(second, "rr")?,
    ];
    let Err(CommitError::Refused { refused, answered }) = socket.commit(&operations) else {
        anyhow::bail!("the second one was taken");
    };
    let indices: Vec<_> = refused.iter().map(|refused| refused.index).collect();
    ensure!((indices.as_slice(), answered) == (&[1], 4), "{refused:?}");
    ensure!(refused[0].operation == operations[1], "{refused:?}");
    let listed = socket.observe_virtual_servers()?;
    ensure!(listed.own.len() == 2, "{listed:?}");
    let found = socket.observe_destinations(first)?;
    ensure!(behind(&found).len() == 1, "{found:?}");
    Ok(())
}

fn scheduler(namespace: &Namespace) -> Result<()> {
    let mut socket = open(namespace)?;
    for family in FAMILIES {
        for name in SCHEDULERS {
            let support = socket.check_scheduler(family, &scheduler_name(name)?)?;
            println!("{family:?} {name}: {support:?}");
            // All but the newest exist in every kernel that has modules for IPVS at all.
            ensure!(
                name == "twos" || support == SchedulerSupport::Present,
                "{name}"
            );
        }
        let missing = scheduler_name("missing")?;
        let support = socket.check_scheduler(family, &missing)?;
        ensure!(support == SchedulerSupport::Missing, "{support:?}");
        let error = socket
            .commit(&[add_server(key(family, 1)?, "missing")?])
            .err();
        let recovery = error.map(|error| error.recovery());
        let expected = Recovery::LoadModule("ip_vs_missing".to_owned());
        ensure!(recovery == Some(expected), "{recovery:?}");
    }
    let left = socket.observe_virtual_servers()?;
    ensure!(left == Default::default(), "{left:?}");
    Ok(())
}

/// Also after an interrupted check, which leaves its virtual server behind.
fn check(namespace: &Namespace) -> Result<()> {
    let mut socket = open(namespace)?;
    let rr = scheduler_name("rr")?;
    // In a range twice as long, the last mark of this range has a valid number.
    let wider = MarkRange::new(0x5340_0000, 21).context("the low bits are 0")?;
    let mut before = namespace.enter(|| IpvsSocket::open(wider))??;
    let mark = wider.mark((1 << 20) - 1).context("beyond the range")?;
    let family = Family::Ipv4;
    before.commit(&[add_server(VirtualServerKey { family, mark }, "rr")?])?;
    let left = socket.observe_virtual_servers()?;
    ensure!(left.own.len() == 1, "{left:?}");

    let support = socket.check_scheduler(family, &rr)?;
    ensure!(support == SchedulerSupport::Present, "{support:?}");
    let left = socket.observe_virtual_servers()?;
    ensure!(left == Default::default(), "{left:?}");
    Ok(())
}

fn many(namespace: &Namespace) -> Result<()> {
    let mut socket = open(namespace)?;
    for family in FAMILIES {
        let keys: Vec<_> = (0..500)
            .map(|number| key(family, number))
            .collect::<Result<_>>()?;
        let mut operations = Vec::new();
        for key in &keys {
            operations.push(add_server(*key, "wrr")?);
            operations.extend((1..=5).map(|last| add_destination(*key, last, 1)));
        }
        socket.commit(&operations)?;
        let listed = socket.observe_virtual_servers()?;
        ensure!(
            listed.own.keys().eq(&keys),
            "{} are listed",
            listed.own.len()
        );
        for (key, found) in socket.observe_destinations_of(keys.iter().copied())? {
            ensure!(found.len() == 5, "{key}: {found:?}");
        }
        let remove = |key: &VirtualServerKey| Operation::RemoveVirtualServer { key: *key };
        socket.commit(&keys.iter().map(remove).collect::<Vec<_>>())?;
    }
    let left = socket.observe_virtual_servers()?;
    ensure!(left == Default::default(), "{left:?}");
    Ok(())
}

fn draining(namespace: &Namespace) -> Result<()> {
    let mut socket = open(namespace)?;
    let key = key(Family::Ipv4, 1)?;
    socket.commit(&[add_server(key, "rr")?, add_destination(key, 5, 1)])?;
    socket.commit(&[Operation::SetDestination {
        key,
        address: address(Family::Ipv4, 5),
        destination: Destination {
            weight: Weight::DRAINING,
            ..destination(1)
        },
    }])?;
    let found = socket.observe_destinations(key)?;
    let (what, connections) = found.get(&address(Family::Ipv4, 5)).context("it is gone")?;
    ensure!(what.weight == Weight::DRAINING, "{what:?}");
    ensure!(*connections == Default::default(), "{connections:?}");
    Ok(())
}

fn timeouts(namespace: &Namespace) -> Result<()> {
    let seconds = |number| NonZeroU32::new(number).map(Seconds).context("0 seconds");
    let timeouts = |tcp, tcp_fin, udp| -> Result<Timeouts> {
        Ok(Timeouts {
            tcp: seconds(tcp)?,
            tcp_fin: seconds(tcp_fin)?,
            udp: seconds(udp)?,
        })
    };
    let mut socket = open(namespace)?;
    let before = socket.observe_timeouts()?;
    ensure!(before == Some(timeouts(900, 120, 300)?), "{before:?}");
    socket.commit_timeouts(timeouts(7200, 60, 30)?)?;
    let after = socket.observe_timeouts()?;
    ensure!(after == Some(timeouts(7200, 60, 30)?), "{after:?}");
    let error = socket.commit_timeouts(timeouts(u32::MAX, 60, 30)?).err();
    let recovery = error.map(|error| error.recovery());
    ensure!(recovery == Some(Recovery::Isolate), "{recovery:?}");

    let mut network = Network::new()?;
    let [elsewhere] = network.add_namespaces(["elsewhere"])?;
    let untouched = open(&elsewhere)?.observe_timeouts()?;
    ensure!(untouched == before, "{untouched:?}");
    Ok(())
}
