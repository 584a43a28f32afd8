//! Tests that run on every real kernel with any backend.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use dataplane::{Packet, Protocol};
use libtest_mimic::Trial;
use socket2::Domain;

use super::{Action, Depth, Dump, Goldens, Script, Step, Update, run, scenario_files};
use crate::network::sctp_socket;

/// A scenario in which every expectation is false.
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
"#;

/// A client with a session affinity timeout of a second.
const SHORT_MEMORY: &str = r#"
apply  web-with-affinity slice
keeps  pod 10.0.1.9 -> 10.96.0.10:80/tcp = 10.0.1.5:8080, 10.0.2.7:8080
"#;

/// The sections of both scenarios.
const SECTIONS: &str = r#"
-- web --
kind: Service
metadata: {namespace: shop, name: web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
-- web-with-affinity --
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

/// Tests the test harness: it must detect a kernel that behaves otherwise than expected, and a
/// state that differs from a `dump` section.
pub fn believe_no_lie<D: Depth>(
    dump: Dump,
    build: impl FnOnce(&Script) -> Result<D>,
) -> Result<()> {
    let script = Script::parse(&format!("{LIES}expect {dump}\n{SECTIONS}"))?;
    let mut goldens = Goldens::new(Path::new("lies.txt"), Update::Never);
    let failures = run(&script, &mut build(&script)?, &mut goldens)?;
    let lies = script.steps.len() - 1;
    ensure!(
        failures.len() == lies,
        "of {lies} lies only these were noticed:\n{failures:#?}"
    );
    Ok(())
}

/// Returns a kernel in which the client 10.0.1.9 has just connected to 10.96.0.10:80, with a
/// session affinity timeout of a second and the endpoints 10.0.1.5 and 10.0.2.7, and the client's
/// packet.
pub fn remember_for_a_second<D: Depth>(
    build: impl FnOnce(&Script) -> Result<D>,
) -> Result<(D, Packet)> {
    let script = Script::parse(&format!("{SHORT_MEMORY}{SECTIONS}"))?;
    let mut goldens = Goldens::new(Path::new("short-memory.txt"), Update::Never);
    let mut kernel = build(&script)?;
    let failures = run(&script, &mut kernel, &mut goldens)?;
    ensure!(failures.is_empty(), "{failures:#?}");
    let connects = |step: Step| match step.action {
        Action::Keeps { packet, .. } => Some(packet),
        _ => None,
    };
    let packet = script.steps.into_iter().find_map(connects);
    Ok((kernel, packet.context("the script has a packet")?))
}

/// Returns a skipped test for the packets that cannot be sent on a kernel without SCTP sockets. The
/// rules for SCTP are committed and compared all the same.
pub fn skipped_for_want_of_sctp() -> Result<Option<Trial>> {
    if sctp_socket(Domain::IPV4)?.is_some() {
        return Ok(None);
    }
    let mut packets = 0;
    for path in scenario_files()? {
        let script = Script::parse(&fs::read_to_string(path)?)?;
        let over_sctp = |step: &&Step| matches!(&step.action, Action::Packet { packet, .. } | Action::Keeps { packet, .. } if packet.protocol == Protocol::Sctp);
        packets += script.steps.iter().filter(over_sctp).count();
    }
    let name = format!("SKIPPED_{packets}_packets_over_sctp_for_want_of_sctp_sockets");
    Ok(Some(Trial::test(name, || Ok(())).with_ignored_flag(true)))
}
