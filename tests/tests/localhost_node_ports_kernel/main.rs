//! Node ports on localhost: connections of the node's processes to 127.0.0.1 or ::1, with a real
//! agent, real rules, and endpoints on this node and another.

mod connection;
mod manifests;
mod stage;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, TcpListener};

use anyhow::{Result, ensure};
use dataplane::{Family, Protocol};
use libtest_mimic::Arguments;
use testkit::address_plan as addresses;
use tests::network::{Outcome, enter_private_namespaces};
use tests::trial::trial;

use connection::Connection;
use manifests::{Localhost, Policy};
use stage::{NODE_PORT, SERVERS, Stage};

type Test = fn(&mut Stage) -> Result<()>;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let tests: [(&str, Test); 6] = [
        (
            "node_ports_on_localhost_reach_every_endpoint",
            every_endpoint,
        ),
        (
            "a_connection_outlives_its_endpoint_and_new_ones_go_elsewhere",
            endpoints_leave,
        ),
        (
            "a_big_transfer_arrives_whole_and_ends_one_direction_first",
            big_transfer,
        ),
        (
            "a_port_that_is_in_use_is_reported_and_taken_when_it_is_free",
            taken_port,
        ),
        (
            "the_profile_switches_it_on_and_off_while_the_agent_runs",
            switched,
        ),
        (
            "an_external_policy_local_does_not_bind_the_node_itself",
            local_policy,
        ),
    ];
    let trials = tests.map(|(name, test)| trial(name, move || test(&mut Stage::build()?)));
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit();
}

fn all() -> BTreeSet<&'static str> {
    SERVERS.map(|(name, _, _)| name).into()
}

fn every_endpoint(stage: &mut Stage) -> Result<()> {
    stage.manifests.commit_profile(Localhost::Userspace)?;
    stage.start_agent()?;
    for family in Family::ALL {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            stage.wait_for_answers_of(protocol, family, &all())?;
            // The endpoint receives the node's address, as with masquerading by the kernel.
            for outcome in stage.probe(protocol, family, 5)? {
                let Outcome::Answered { saw, .. } = &outcome else {
                    anyhow::bail!("{outcome}");
                };
                let own = [
                    addresses::node_address(1, family),
                    addresses::second_address(1, family),
                    addresses::bridge_address(1, family),
                ];
                ensure!(own.contains(&saw.ip()), "{outcome}");
            }
        }
        let listeners = "kubeproxy_nftables_localhost_nodeport_listeners";
        let listeners = format!("{listeners}{{ip_family=\"{family}\"}}");
        stage.wait_for_metric(&listeners, |listeners| listeners == 2.0)?;
    }
    Ok(())
}

fn endpoints_leave(stage: &mut Stage) -> Result<()> {
    stage.manifests.commit_profile(Localhost::Userspace)?;
    stage.start_agent()?;
    stage.wait_for_answers_of(Protocol::Tcp, Family::Ipv4, &all())?;
    let mut old = Connection::open(stage.node()?, stage.localhost(Family::Ipv4))?;
    let left: BTreeSet<&str> = all()
        .into_iter()
        .filter(|name| *name != old.server())
        .collect();
    stage.manifests.commit_endpoints(&left)?;
    for family in Family::ALL {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            stage.wait_for_answers_of(protocol, family, &left)?;
        }
    }
    old.echoes("still here")?;

    stage.manifests.commit_endpoints(&BTreeSet::new())?;
    for family in Family::ALL {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            stage.wait_for_refusal(protocol, family)?;
        }
    }
    old.echoes("still here")?;
    stage.manifests.commit_endpoints(&left)?;
    stage.wait_for_answers_of(Protocol::Tcp, Family::Ipv4, &left)?;
    old.echoes("still here")
}

fn big_transfer(stage: &mut Stage) -> Result<()> {
    stage.manifests.commit_profile(Localhost::Userspace)?;
    stage.start_agent()?;
    for family in Family::ALL {
        stage.wait_for_answers_of(Protocol::Tcp, family, &all())?;
        let connection = Connection::open(stage.node()?, stage.localhost(family))?;
        connection.expect_all_back(16 * 1024 * 1024)?;
    }
    Ok(())
}

fn taken_port(stage: &mut Stage) -> Result<()> {
    let everywhere = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), NODE_PORT);
    let listener = stage.node()?.enter(|| TcpListener::bind(everywhere))??;
    stage.manifests.commit_profile(Localhost::Userspace)?;
    stage.start_agent()?;
    // The others still work.
    stage.wait_for_answers_of(Protocol::Udp, Family::Ipv4, &all())?;
    stage.wait_for_answers_of(Protocol::Tcp, Family::Ipv6, &all())?;
    let honoured = |status: &str, part: &str| {
        let (status, part) = (status.to_owned(), part.to_owned());
        move |condition: &(String, String)| condition.0 == status && condition.1.contains(&part)
    };
    stage.wait_for_features_honoured(honoured(
        "False",
        "Service shop/web: spec.ports[].nodePort: unable to listen on 127.0.0.1:30080/tcp: Address already in use",
    ))?;
    let holder = format!("(process {}) uses it", std::process::id());
    stage.wait_for_features_honoured(honoured("False", &holder))?;
    let failures = "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total";
    let family = Family::Ipv4;
    let failures = format!("{failures}{{ip_family=\"{family}\"}}");
    stage.wait_for_metric(&failures, |failures| failures > 0.0)?;
    drop(listener);
    stage.wait_for_answers_of(Protocol::Tcp, Family::Ipv4, &all())?;
    stage.wait_for_features_honoured(honoured("True", ""))
}

fn switched(stage: &mut Stage) -> Result<()> {
    stage.manifests.commit_profile(Localhost::Omitted)?;
    stage.start_agent()?;
    stage.agent()?.wait_until_ready()?;
    let expect_refusals = |stage: &Stage| -> Result<()> {
        for family in Family::ALL {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                stage.wait_for_refusal(protocol, family)?;
            }
        }
        Ok(())
    };
    expect_refusals(stage)?;
    stage.manifests.commit_profile(Localhost::Userspace)?;
    stage.wait_for_answers_of(Protocol::Tcp, Family::Ipv4, &all())?;
    stage.wait_for_answers_of(Protocol::Udp, Family::Ipv6, &all())?;
    let mut old = Connection::open(stage.node()?, stage.localhost(Family::Ipv4))?;
    stage.manifests.commit_profile(Localhost::None)?;
    expect_refusals(stage)?;
    old.echoes("left to finish")
}

fn local_policy(stage: &mut Stage) -> Result<()> {
    stage.manifests.commit_profile(Localhost::Userspace)?;
    stage.manifests.commit_service(Policy::Local)?;
    stage.start_agent()?;
    stage.wait_for_answers_of(Protocol::Tcp, Family::Ipv4, &all())?;
    let elsewhere: BTreeSet<&str> = SERVERS
        .iter()
        .filter(|(_, node, _)| *node != 1)
        .map(|(name, _, _)| *name)
        .collect();
    stage.manifests.commit_endpoints(&elsewhere)?;
    stage.wait_for_answers_of(Protocol::Tcp, Family::Ipv4, &elsewhere)
}
