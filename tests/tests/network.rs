//! Checks the properties of the test network on which other tests rely.

use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use dataplane::{Family, Protocol};
use libtest_mimic::Arguments;
use testkit::address_plan as addresses;
use tests::deadline::wait_for;
use tests::network::{
    Namespace, Network, Outcome, Plan, Probe, Topology, enter_private_namespaces, namespaces_of,
    probe, start_server, start_traffic,
};
use tests::trial::trial;

const DEADLINE: Duration = Duration::from_secs(5);
/// How long to wait before no answer counts as silence.
const SILENCE: Duration = Duration::from_millis(300);
const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let trials = vec![
        trial(
            "pods_reach_pods_with_their_own_address",
            pods_reach_pods_with_their_own_address,
        ),
        trial("clients_outside_reach_nodes", clients_outside_reach_nodes),
        trial(
            "nodes_reach_their_pods_and_others",
            nodes_reach_their_pods_and_others,
        ),
        trial("a_closed_port_refuses", a_closed_port_refuses),
        trial(
            "an_address_that_no_host_has_fails",
            an_address_that_no_host_has_fails,
        ),
        trial(
            "traffic_is_counted_until_it_is_stopped",
            traffic_is_counted_until_it_is_stopped,
        ),
        trial(
            "a_server_that_stops_shows_as_refusals",
            a_server_that_stops_shows_as_refusals,
        ),
        trial(
            "a_connection_that_comes_through_by_being_sent_again_is_counted_as_lost",
            a_connection_that_comes_through_by_being_sent_again_is_counted_as_lost,
        ),
        trial("nothing_is_left_behind", nothing_is_left_behind),
        trial(
            "nothing_is_left_behind_by_a_panic",
            nothing_is_left_behind_by_a_panic,
        ),
        trial(
            "leftovers_of_a_killed_process_are_swept",
            leftovers_of_a_killed_process_are_swept,
        ),
    ];
    let mut arguments = Arguments::from_args();
    // Serial, because one test removes leftovers that another may just be creating under the name
    // of an ended process.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit();
}

fn pods_reach_pods_with_their_own_address() -> Result<()> {
    let topology = Topology::build(&Plan::standard())?;
    for (node, pod) in [(1, 5), (2, 7)] {
        for family in Family::ALL {
            let server = addresses::pod_address(node, pod, family);
            let client = addresses::pod_address(1, 9, family);
            expect_answers(
                topology.pod(node, pod)?,
                server,
                topology.pod(1, 9)?,
                client,
            )?;
        }
    }
    Ok(())
}

fn clients_outside_reach_nodes() -> Result<()> {
    let topology = Topology::build(&Plan::standard())?;
    for node in [1, 2] {
        for family in Family::ALL {
            for address in [addresses::node_address, addresses::second_address] {
                let server = address(node, family);
                let client = addresses::outside_client(2, family);
                expect_answers(topology.node(node)?, server, topology.outside()?, client)?;
            }
        }
    }
    Ok(())
}

fn nodes_reach_their_pods_and_others() -> Result<()> {
    let topology = Topology::build(&Plan::standard())?;
    for (node, pod) in [(1, 5), (2, 7)] {
        for family in Family::ALL {
            let server = addresses::pod_address(node, pod, family);
            let client = addresses::node_address(1, family);
            expect_answers(topology.pod(node, pod)?, server, topology.node(1)?, client)?;
        }
    }
    Ok(())
}

fn a_closed_port_refuses() -> Result<()> {
    let topology = Topology::build(&Plan::standard())?;
    for protocol in PROTOCOLS {
        for family in Family::ALL {
            let destination = addresses::pod_address(2, 7, family);
            let seen = one(topology.pod(1, 9)?, protocol, None, destination)?;
            ensure!(seen == Outcome::Refused, "{protocol} {family}: {seen}");
        }
    }
    Ok(())
}

fn an_address_that_no_host_has_fails() -> Result<()> {
    let topology = Topology::build(&Plan::standard())?;
    for family in Family::ALL {
        let destination = addresses::external_ip(77, family);
        let to = SocketAddr::new(destination, 8080);
        let asking = Probe {
            deadline: SILENCE,
            ..asking(Protocol::Tcp, None, to)
        };
        let seen = probe(topology.pod(1, 9)?, &asking, 1)?.remove(0);
        ensure!(
            matches!(seen, Outcome::Failed(_) | Outcome::TimedOut),
            "{family}: {seen}"
        );
    }
    Ok(())
}

fn traffic_is_counted_until_it_is_stopped() -> Result<()> {
    let topology = Topology::build(&Plan::standard())?;
    for protocol in PROTOCOLS {
        let to = SocketAddr::new(addresses::pod_address(1, 5, Family::Ipv4), 8080);
        let _server = start_server(topology.pod(1, 5)?, "web", &[to])?;
        let every = Duration::from_millis(2);
        let traffic = start_traffic(topology.outside()?, &asking(protocol, None, to), every)?;
        let tally = traffic.stop()?;
        ensure!(tally.failures() == 0, "{protocol}: {tally}");
        ensure!(tally.answered.get("web") >= Some(&1), "{protocol}: {tally}");
    }
    Ok(())
}

fn a_server_that_stops_shows_as_refusals() -> Result<()> {
    let topology = Topology::build(&Plan::standard())?;
    let to = SocketAddr::new(addresses::pod_address(1, 5, Family::Ipv6), 8080);
    let server = start_server(topology.pod(1, 5)?, "web", &[to])?;
    let every = Duration::from_millis(2);
    let traffic = start_traffic(topology.outside()?, &asking(Protocol::Tcp, None, to), every)?;
    drop(server);
    let seen = one_to(topology.outside()?, Protocol::Tcp, None, to)?;
    ensure!(seen == Outcome::Refused, "after the server stopped: {seen}");
    let end = Instant::now() + DEADLINE;
    let _server = loop {
        // The address is free once the last connection of the previous server has ended.
        match start_server(topology.pod(1, 5)?, "web-again", &[to]) {
            Ok(server) => break server,
            Err(error) if Instant::now() > end => return Err(error),
            Err(_) => {}
        }
    };
    let seen = one_to(topology.outside()?, Protocol::Tcp, None, to)?;
    ensure!(
        matches!(&seen, Outcome::Answered { server, .. } if server == "web-again"),
        "after the server started again: {seen}"
    );
    let tally = traffic.stop()?;
    ensure!(tally.refused > 0 && tally.timed_out == 0, "{tally}");
    ensure!(tally.longest_gap > every, "{tally}");
    Ok(())
}

fn a_connection_that_comes_through_by_being_sent_again_is_counted_as_lost() -> Result<()> {
    let topology = Topology::build(&Plan::standard())?;
    let to = SocketAddr::new(addresses::pod_address(1, 5, Family::Ipv4), 8080);
    let inside = topology.pod(1, 5)?;
    let _server = start_server(inside, "web", &[to])?;
    // The first packet of every other connection is lost, and its second arrives.
    for line in [
        "add table ip lossy",
        "add chain ip lossy input { type filter hook input priority 0; }",
        "add counter ip lossy lost",
        "add rule ip lossy input tcp flags & (syn | ack) == syn numgen inc mod 2 == 1 counter name lost drop",
    ] {
        inside.nft(&[line])?;
    }
    let every = Duration::from_millis(2);
    let traffic = start_traffic(topology.outside()?, &asking(Protocol::Tcp, None, to), every)?;
    wait_for("a lost packet", DEADLINE, || {
        let counter = inside.nft(&["list counter ip lossy lost"])?;
        Ok((!counter.contains("packets 0 ")).then_some(()))
    })?;
    let tally = traffic.stop()?;
    ensure!(tally.timed_out > 0, "{tally}");
    Ok(())
}

fn nothing_is_left_behind() -> Result<()> {
    let topology = Topology::build(&Plan::standard())?;
    let name = topology.node(1)?.name().to_owned();
    ensure!(exists(&name)?, "{name} is not listed");
    let prefix = name.trim_end_matches("node-1").to_owned();
    drop(topology);
    expect_none_left(&prefix)
}

fn nothing_is_left_behind_by_a_panic() -> Result<()> {
    let mut prefix = String::new();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let topology = Topology::build(&Plan::standard()).expect("it came up in the other tests");
        let node = topology.node(1).expect("the standard plan has it");
        prefix = node.name().trim_end_matches("node-1").to_owned();
        let address = SocketAddr::new(addresses::node_address(1, Family::Ipv4), 80);
        let _server = start_server(node, "web", &[address]).expect("the port is free");
        // Unlike panic!, this prints nothing.
        std::panic::resume_unwind(Box::new("a test failed"));
    }));
    ensure!(
        ended.is_err() && !prefix.is_empty(),
        "it did not get to the panic"
    );
    expect_none_left(&prefix)
}

fn leftovers_of_a_killed_process_are_swept() -> Result<()> {
    let mut child = std::process::Command::new("true").spawn()?;
    let pid = child.id();
    child.wait()?;
    let name = format!("sp-{pid}-0-node-1");
    let made = std::process::Command::new("ip")
        .args(["netns", "add", &name])
        .status()?;
    ensure!(made.success(), "ip netns add failed");
    drop(Network::new()?);
    ensure!(!exists(&name)?, "{name} is still there");
    Ok(())
}

/// Starts a server and connects to it with both protocols.
fn expect_answers(
    server_in: &Namespace,
    server: IpAddr,
    client_in: &Namespace,
    client: IpAddr,
) -> Result<()> {
    let address = SocketAddr::new(server, 8080);
    let _server = start_server(server_in, "web", &[address])?;
    for protocol in PROTOCOLS {
        let seen = one(client_in, protocol, Some(client), server)?;
        let Outcome::Answered { server, at, saw } = &seen else {
            anyhow::bail!("{protocol} from {client} to {address}: {seen}");
        };
        ensure!(
            server == "web" && *at == address,
            "{protocol} to {address}: {seen}"
        );
        ensure!(
            saw.ip() == client,
            "{protocol} from {client} to {address}: {seen}"
        );
    }
    Ok(())
}

fn one(
    inside: &Namespace,
    protocol: Protocol,
    source: Option<IpAddr>,
    destination: IpAddr,
) -> Result<Outcome> {
    one_to(inside, protocol, source, SocketAddr::new(destination, 8080))
}

fn one_to(
    inside: &Namespace,
    protocol: Protocol,
    source: Option<IpAddr>,
    destination: SocketAddr,
) -> Result<Outcome> {
    let mut outcomes = probe(inside, &asking(protocol, source, destination), 1)?;
    Ok(outcomes.remove(0))
}

fn asking(protocol: Protocol, source: Option<IpAddr>, destination: SocketAddr) -> Probe {
    Probe {
        protocol,
        source,
        destination,
        deadline: DEADLINE,
    }
}

fn exists(name: &str) -> Result<bool> {
    let output = std::process::Command::new("ip")
        .args(["netns", "list"])
        .output()?;
    let listed = String::from_utf8(output.stdout)?;
    Ok(listed
        .lines()
        .any(|line| line.split(' ').next() == Some(name)))
}

fn expect_none_left(prefix: &str) -> Result<()> {
    let left: Vec<String> = namespaces_of(std::process::id())?;
    let left: Vec<String> = left.into_iter().filter(|n| n.starts_with(prefix)).collect();
    ensure!(left.is_empty(), "still there: {left:?}");
    let output = std::process::Command::new("ip")
        .args(["netns", "list"])
        .output()?;
    let listed = String::from_utf8(output.stdout)?;
    ensure!(
        !listed.contains(prefix),
        "ip netns list still shows\n{listed}"
    );
    Ok(())
}
