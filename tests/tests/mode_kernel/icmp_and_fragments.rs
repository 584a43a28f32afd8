//! Packets that belong to a connection without being part of it: fragments, and ICMP errors that
//! the network and the endpoint send.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use crds::profile::mode::Mode;
use dataplane::{Family, Protocol};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::IpMtu;
use tests::deadline::{patience, wait_for};
use tests::network::Way;
use xtables::Variant;

use crate::manifests::{NODE_PORT, endpoints, endpoints_at, endpoints_elsewhere};
use crate::stage::{ELSEWHERE, PROMPTLY, SERVING, SERVING_ELSEWHERE, Stage};

const FEW: u8 = 0;
/// Datagrams that fit every link, and that are larger than the MTU and sent in few and many fragments.
const SIZES: [usize; 3] = [1_000, IN_FRAGMENTS, 20_000];
const IN_FRAGMENTS: usize = 4_000;
/// The MTU of a link between the router and another node, and a datagram that fits the client's link
/// only.
const NARROW_ELSEWHERE: u16 = 1_400;
const TOO_WIDE_ELSEWHERE: usize = 1_440;
/// The address from which the router sends ICMPv6.
const ROUTER: &str = "fd00:169::1/128";
/// The MTU of the links between the node and its pods, and a datagram that is too large for these
/// links alone: clients have learned [`NARROW_ELSEWHERE`] before.
const NARROW: u16 = 1_300;
const TOO_WIDE: usize = 1_340;
/// A port of the pods without a server.
const CLOSED: u16 = 8081;
/// How long a single answer is waited for. A datagram may get none before its error has arrived.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// Failure story T180: fragments reach one endpoint. The client learns from ICMP that a datagram
/// is too large for a link behind the Service, whether the node or a router behind it has that link
/// (T253), and that its port is closed.
pub(crate) fn pass(mode: Mode, variant: Variant) -> Result<()> {
    let stage = Stage::build_with(variant, FEW)?.serve(mode)?;
    stage.expect_answers(&SERVING)?;
    let ways = stage.ways_by(Protocol::Udp)?;
    // IPVS takes a datagram of the node's own before the kernel divides it, and refuses what is
    // larger than the MTU of an IPv6 link (`__mtu_check_toobig_v6` in `ip_vs_xmit.c`), in
    // kube-proxy's mode ipvs as well.
    let is_divided = |way: &Way| {
        let is_ipv6 = Family::of(way.destination.ip()) == Family::Ipv6;
        !(mode == Mode::Ipvs && is_ipv6 && way.from == "the node")
    };
    for way in &ways {
        for size in SIZES {
            let ask = match size < IN_FRAGMENTS || is_divided(way) {
                true => send_fragments,
                false => stay_unanswered,
            };
            way.inside
                .enter(|| ask(way.destination, size))?
                .with_context(|| format!("{size} bytes: {way}"))?;
        }
    }
    // A router behind the node has the narrow link: its error passes the node, and says what
    // datagram it is about by the address of the endpoint.
    stage.apply("web-endpoints", &endpoints_elsewhere("web"))?;
    stage.expect_answers(&[SERVING_ELSEWHERE])?;
    // Its other IPv6 addresses are link-local, and no router forwards an error from there.
    let router = format!(
        "link set lo up\naddr add {ROUTER} dev lo nodad\nlink set node{ELSEWHERE} mtu {NARROW_ELSEWHERE}"
    );
    stage.topology.world().configure(&router)?;
    // A process of the node learns the MTU of the way to the Service, and IPv6 datagrams are divided for
    // the way to the endpoint, after output (`ip6_finish_output`): in every mode.
    let divides =
        |way: &&Way| Family::of(way.destination.ip()) == Family::Ipv4 || way.from != "the node";
    for way in ways.iter().filter(divides) {
        way.inside
            .enter(|| learn_size(way.destination, TOO_WIDE_ELSEWHERE))?
            .with_context(|| format!("packet too big for a link elsewhere: {way}"))?;
    }
    stage.apply("web-endpoints", &endpoints("web", &SERVING))?;
    stage.expect_answers(&SERVING)?;
    for pod in SERVING {
        let link = format!(
            "link set {}{pod} mtu {NARROW}",
            testkit::address_plan::POD_INTERFACE_PREFIX
        );
        stage.node()?.configure(&link)?;
    }
    // A process of the node sees the MTU of its own link, without ICMP. In mode ipvs the kernel
    // cannot send the error over IPv4 about an address that is on no device of the node, as that of a
    // cluster IP: it would be the error's source (decision 0073).
    for way in ways.iter().filter(|way| way.from != "the node") {
        let is_ipv4 = Family::of(way.destination.ip()) == Family::Ipv4;
        let is_on_node = way.destination.port() == NODE_PORT;
        let ask = match mode == Mode::Ipvs && is_ipv4 && !is_on_node {
            true => stay_unaware,
            false => learn_size,
        };
        way.inside
            .enter(|| ask(way.destination, TOO_WIDE))?
            .with_context(|| format!("packet too big: {way}"))?;
    }
    stage.apply("web-endpoints", &endpoints_at("web", &SERVING, CLOSED))?;
    for way in &ways {
        way.inside
            .enter(|| learn_closed(way.destination))?
            .with_context(|| format!("port unreachable: {way}"))?;
    }
    Ok(())
}

fn client_of(destination: SocketAddr) -> io::Result<UdpSocket> {
    let any = match Family::of(destination.ip()) {
        Family::Ipv4 => SocketAddr::from(([0; 4], 0)),
        Family::Ipv6 => SocketAddr::from(([0; 16], 0)),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(destination)?;
    socket.set_read_timeout(Some(ANSWERS_WITHIN))?;
    Ok(socket)
}

/// Sends a datagram of this size, in fragments if it is larger than the MTU, until a server has
/// answered: it answers only whole datagrams.
fn send_fragments(destination: SocketAddr, size: usize) -> Result<()> {
    wait_for("an answer to a whole datagram", PROMPTLY, || {
        let socket = client_of(destination)?;
        socket.send(&vec![b'x'; size])?;
        let mut answer = [0; 64];
        let length = socket.recv(&mut answer).unwrap_or(0);
        Ok(answer[..length].starts_with(b"web-").then_some(()))
    })
}

/// Sends datagrams of this size, which get no answer, as often as it takes for the client's kernel to have
/// learned whatever it can learn from an error.
fn stay_unanswered(destination: SocketAddr, size: usize) -> Result<()> {
    for _ in 0..2 {
        let socket = client_of(destination)?;
        // An error about its size is no answer.
        let sent = socket.send(&vec![b'x'; size]);
        let received = sent.and_then(|_| socket.recv(&mut [0; 64]));
        ensure!(received.is_err(), "a datagram of {size} bytes is answered");
    }
    Ok(())
}

/// Sends datagrams that are too large for a link on the way. Routers do not fragment them: IPv6 never
/// does, and IPv4 says so in each. Once the client's kernel has learned the MTU of the path, it
/// sends fragments, and gets an answer.
fn learn_size(destination: SocketAddr, too_wide: usize) -> Result<()> {
    let ask = || -> Result<bool> {
        let socket = client_of(destination)?;
        socket.send(&vec![b'x'; too_wide])?;
        Ok(socket.recv(&mut [0; 64]).is_ok())
    };
    ensure!(!ask()?, "the first datagram of {too_wide} bytes has passed");
    wait_for("an answer once the size is known", PROMPTLY, || {
        Ok(ask()?.then_some(()))
    })
}

/// Sends datagrams that are too large for a link, and a small one after each. Only the small ones are
/// answered, and as the node handles one datagram after the other, an error would have arrived before
/// their answers.
fn stay_unaware(destination: SocketAddr, too_wide: usize) -> Result<()> {
    let socket = client_of(destination)?;
    socket.set_read_timeout(Some(patience(PROMPTLY)))?;
    let before = getsockopt(&socket, IpMtu)?;
    for _ in 0..2 {
        socket.send(&vec![b'x'; too_wide])?;
        socket.send(b"?")?;
        socket.recv(&mut [0; 64]).context("a small datagram")?;
    }
    let after = getsockopt(&socket, IpMtu)?;
    ensure!(after == before, "the client has learned {after}");
    socket.set_nonblocking(true)?;
    let more = socket.recv(&mut [0; 64]);
    ensure!(more.is_err(), "a datagram of {too_wide} bytes has passed");
    Ok(())
}

/// Sends datagrams until the endpoint's kernel has answered that nothing listens there.
fn learn_closed(destination: SocketAddr) -> Result<()> {
    wait_for("ECONNREFUSED", PROMPTLY, || {
        let socket = client_of(destination)?;
        socket.send(b"?")?;
        match socket.recv(&mut [0; 64]) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(Some(())),
            // The endpoints have not changed yet.
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => bail!("{error}"),
        }
    })
}
