//! SCTP associations during switches between modes.

use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use crds::profile::mode::Mode;
use dataplane::Family;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use socket2::Domain;
use tests::deadline::{patience, wait_for};
use tests::ipvs_support::find_ipvs;
use tests::network::{Way, sctp_socket};
use tests::trial::trial;
use xtables::Variant;

use crate::departures::ask;
use crate::manifests::{NODE_PORT, endpoints, service};
use crate::stage::{PROMPTLY, SERVED, SERVING, Stage};

const FEW: u8 = 2;
/// How long a new association is tried for.
const SET_UP_WITHIN: Duration = Duration::from_secs(2);
/// Every switch between two of the three modes.
const ALL_SWITCHES: [Mode; 7] = [
    Mode::Nftables,
    Mode::Ipvs,
    Mode::Iptables,
    Mode::Ipvs,
    Mode::Nftables,
    Mode::Iptables,
    Mode::Nftables,
];

/// Returns the tests. Those that this kernel does not support are marked as skipped.
pub(crate) fn trials() -> Result<Vec<Trial>> {
    let is_supported = sctp_socket(Domain::IPV4)?.is_some();
    if !is_supported {
        println!("SKIPPED: SCTP associations during switches: this kernel has no SCTP sockets");
    }
    let name = "t278_sctp_associations_outlive_every_switch";
    let mut trials = Vec::new();
    for variant in [Variant::NfTables, Variant::Legacy] {
        let test = move || outlive(&[Mode::Nftables, Mode::Iptables, Mode::Nftables], variant);
        trials.push(trial(&format!("{name}::{variant}"), test).with_ignored_flag(!is_supported));
    }
    let has_ipvs = find_ipvs(&["rr"])?.is_none();
    for variant in [Variant::NfTables, Variant::Legacy] {
        let test = move || outlive(&ALL_SWITCHES, variant);
        let with_ipvs = trial(&format!("{name}::among_all_modes::{variant}"), test);
        trials.push(with_ipvs.with_ignored_flag(!is_supported || !has_ipvs));
    }
    Ok(trials)
}

/// Failure story T278: an association of SCTP does not survive that the mode changes, as connections of
/// TCP do. Those that were set up in each mode outlive all later switches.
fn outlive(modes: &[Mode], variant: Variant) -> Result<()> {
    let stage = Stage::build_with(variant, FEW)?;
    serve_sctp(&stage)?;
    let (first, later) = modes.split_first().context("a mode")?;
    let stage = stage.serve(*first)?;
    stage.expect_answers(&SERVING)?;
    let mut kept = Vec::new();
    set_up(&stage, *first, &mut kept)?;
    for mode in later {
        stage.set_mode(*mode)?;
        stage.expect_mode(*mode)?;
        for (since, way, association) in &mut kept {
            ask(association)
                .with_context(|| format!("set up in mode {since}, now in mode {mode}: {way}"))?;
        }
        set_up(&stage, *mode, &mut kept)?;
    }
    Ok(())
}

/// Adds ports of SCTP to `shop/web`.
pub(crate) fn serve_sctp(stage: &Stage) -> Result<()> {
    let mut web = service("web", 10);
    let port = json!({"name": "sctp", "protocol": "SCTP", "port": 80, "nodePort": NODE_PORT});
    if let Some(ports) = web["spec"]["ports"].as_array_mut() {
        ports.push(port);
    }
    stage.apply("web", &web)?;
    stage.apply("web-endpoints", &with_sctp(endpoints("web", &SERVING)))
}

/// Sets up an association on each way.
fn set_up(
    stage: &Stage,
    mode: Mode,
    kept: &mut Vec<(Mode, Way, BufReader<TcpStream>)>,
) -> Result<()> {
    for way in stage.ways()? {
        let (_, association) = wait_for(&format!("an association: {way}"), PROMPTLY, || {
            Ok(way.inside.enter(|| associate(way.destination))?.ok())
        })?;
        kept.push((mode, way, association));
    }
    Ok(())
}

/// Returns the name of the endpoint and the association, which is read and written with the same system calls as
/// a TCP connection.
pub(crate) fn associate(destination: SocketAddr) -> Result<(String, BufReader<TcpStream>)> {
    let socket = sctp_socket(Domain::for_address(destination))?.context("the kernel has SCTP")?;
    // An association lists all addresses of a socket that has no single one. The endpoint would send
    // heartbeats to those of the node, which are not translated, and an answer to them ends it.
    let source = source_to(destination)?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    socket.connect_timeout(&destination.into(), patience(SET_UP_WITHIN))?;
    socket.set_nonblocking(false)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(patience(PROMPTLY)))?;
    let mut stream = BufReader::new(stream);
    let mut name = String::new();
    stream.read_line(&mut name)?;
    Ok((name, stream))
}

/// Returns the address from which the kernel sends to `destination`.
fn source_to(destination: SocketAddr) -> Result<IpAddr> {
    let any = match Family::of(destination.ip()) {
        Family::Ipv4 => IpAddr::from([0; 4]),
        Family::Ipv6 => IpAddr::from([0; 16]),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(destination)?;
    Ok(socket.local_addr()?.ip())
}

/// Adds a port of SCTP to slices.
pub(crate) fn with_sctp(mut slices: Value) -> Value {
    for slice in slices.as_array_mut().into_iter().flatten() {
        if let Some(ports) = slice["ports"].as_array_mut() {
            ports.push(json!({"name": "sctp", "protocol": "SCTP", "port": SERVED}));
        }
    }
    slices
}
