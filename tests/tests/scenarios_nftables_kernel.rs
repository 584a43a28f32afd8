//! Every scenario, told to a kernel that holds the nftables rules, with real connections.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use backend_nftables::{Nftables, open};
use dataplane::Protocol;
use libtest_mimic::{Arguments, Trial};
use socket2::Domain;
use tests::deadline::wait_for;
use tests::network::{enter_private_namespaces, sctp_socket};
use tests::scenario::{
    Action, Goldens, RealKernel, Script, Step, Update, nftables_form, run, scenario_files, trials,
};
use tests::trial::trial;

/// Nothing in it is true.
const LIES: &str = r#"
apply  web slice
packet pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.2.7:8080
packet pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080 masqueraded
packet pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080, 10.0.1.6:8080
packet node 192.168.0.1 -> 10.96.0.10:80/tcp = reject
packet node 192.168.0.1 -> 10.96.0.10:80/tcp = drop
packet outside 203.0.113.2 -> 10.0.1.5:8080/tcp = drop
packet outside 203.0.113.2 -> 10.96.0.10:81/tcp = drop
packet outside 203.0.113.2 -> 10.96.0.10:81/tcp = 10.0.1.5:8080
packet pod 10.0.1.9 -> 10.96.0.10:80/tcp = untouched
packet pod 10.0.1.9 -> 10.0.1.5:8080/tcp = reject
keeps  pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080
keeps  pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.1.5:8080
expect no change
expect nftables

-- web --
kind: Service
metadata: {namespace: shop, name: web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
-- slice --
kind: EndpointSlice
metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [10.0.1.5], nodeName: node-1}, {addresses: [10.0.2.7], nodeName: node-2}]
"#;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    // Goldens are written by the simulated rules, and the kernel must hold the same.
    let mut trials = trials(Update::Never, build)?;
    trials.push(trial("no_lie_is_believed", no_lie_is_believed));
    trials.push(trial(
        "a_client_is_forgotten_after_its_timeout",
        forgotten_client,
    ));
    if sctp_socket(Domain::IPV4)?.is_none() {
        trials.push(skipped()?);
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// The story of a client who is remembered for a second.
const SHORT_MEMORY: &str = r#"
apply  web slice
keeps  pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080

-- web --
kind: Service
metadata: {namespace: shop, name: web}
spec:
  clusterIP: 10.96.0.10
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 1}}
  ports: [{port: 80}]
-- slice --
kind: EndpointSlice
metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [10.0.1.5], nodeName: node-1}, {addresses: [10.0.2.7], nodeName: node-2}]
"#;

fn forgotten_client() -> Result<()> {
    let script = Script::parse(SHORT_MEMORY)?;
    let mut goldens = Goldens::new(Path::new("short-memory.txt"), Update::Never);
    let mut kernel = build(&script)?;
    let failures = run(&script, &mut kernel, &mut goldens)?;
    ensure!(failures.is_empty(), "{failures:#?}");
    let clients = || {
        let mut list = kernel.node()?.command("nft");
        list.args(["list", "map", "ip", "signpost", "clients"]);
        let listed = list.output().context("failed to run nft")?;
        anyhow::Ok(String::from_utf8_lossy(&listed.stdout).into_owned())
    };
    let listed = clients()?;
    ensure!(
        listed.contains("10.0.1.9 . 10.96.0.10 . tcp . 80 timeout 1s"),
        "nobody is remembered:\n{listed}"
    );
    wait_for(
        "the client to be forgotten",
        Duration::from_secs(20),
        || {
            let is_forgotten = !clients()?.contains("10.0.1.9");
            Ok(is_forgotten.then_some(()))
        },
    )
}

/// What a kernel without SCTP cannot be asked, counted among the tests that were not run: there are
/// no sockets to connect with. The rules for SCTP are committed and compared all the same.
fn skipped() -> Result<Trial> {
    let mut packets = 0;
    for path in scenario_files()? {
        let script = Script::parse(&fs::read_to_string(path)?)?;
        let over_sctp = |step: &&Step| matches!(&step.action, Action::Packet { packet, .. } | Action::Keeps { packet, .. } if packet.protocol == Protocol::Sctp);
        packets += script.steps.iter().filter(over_sctp).count();
    }
    let name = format!("SKIPPED_{packets}_packets_over_sctp_for_want_of_sctp_sockets");
    Ok(Trial::test(name, || Ok(())).with_ignored_flag(true))
}

fn build(script: &Script) -> Result<RealKernel<Nftables>> {
    RealKernel::build(script, open, nftables_form())
}

/// A test of the tests: a kernel that does otherwise is found out.
fn no_lie_is_believed() -> Result<()> {
    let script = Script::parse(LIES)?;
    let mut goldens = Goldens::new(Path::new("lies.txt"), Update::Never);
    let failures = run(&script, &mut build(&script)?, &mut goldens)?;
    let lies = script.steps.len() - 1;
    ensure!(
        failures.len() == lies,
        "of {lies} lies only these were noticed:\n{failures:#?}"
    );
    Ok(())
}
