//! Connections whose endpoint or Service goes.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crds::profile::mode::Mode;
use dataplane::{Family, Protocol};
use testkit::address_plan as addresses;
use tests::deadline::{patience, wait_for};
use tests::network::{Connections, Kind, Namespace, Outcome, Way};
use xtables::Variant;

use crate::manifests::{NODE_PORT, endpoints, service};
use crate::stage::{ASKING, PROMPTLY, SERVED, SERVING, Stage};

/// The interval between two requests of a client.
const EVERY: Duration = Duration::from_millis(200);
/// The number of additional Services.
const FEW: u8 = 5;
/// How long a new connection may take that is expected to fail.
pub(crate) const FAILS_WITHIN: Duration = Duration::from_secs(1);

/// Failure story T178: a Pod that is not ready for a moment leaves the EndpointSlice, and IPVS
/// drops the packets of connections whose destination is removed. They stay, in every mode, also
/// over a restart of the agent and when the Service is deleted.
pub(crate) fn connections_outlive(mode: Mode, variant: Variant) -> Result<()> {
    let mut stage = Stage::build_with(variant, FEW)?.serve(mode)?;
    stage.expect_answers(&SERVING)?;
    let start = || Connections::start(&stage.ways()?, &[Kind::Kept], EVERY);
    let [first, second, third] = [start()?, start()?, start()?];
    let mut flows = Vec::new();
    for way in stage.ways_by(Protocol::Udp)? {
        let flow = flow_to(&way, "web-6").with_context(|| way.to_string())?;
        flows.push((way, flow));
    }
    stage.apply("web-endpoints", &endpoints("web", &SERVING[..1]))?;
    stage.expect_answers(&SERVING[..1])?;
    // Failure story T257: it has no connection, and its endpoint may be gone for ever.
    for (way, flow) in &flows {
        wait_for(&format!("another endpoint: {way}"), PROMPTLY, || {
            Ok(answer_to(flow)?.starts_with("web-5").then_some(()))
        })?;
    }
    first.finish_unharmed().context("the endpoint has left")?;
    if mode == Mode::Ipvs {
        expect_draining(&stage)?;
    }
    stage.kill_agent()?;
    stage.start_agent()?;
    stage.expect_mode(mode)?;
    stage.expect_answers(&SERVING[..1])?;
    second
        .finish_unharmed()
        .context("the agent was started again")?;
    stage.remove("web")?;
    // Packets to a cluster IP that no Service has would be routed on, and back again by the router,
    // and its redirects would tell the client's kernel another way.
    let ways = stage.ways()?.into_iter();
    let node_ports: Vec<_> = ways
        .filter(|way| way.destination.port() == NODE_PORT)
        .collect();
    wait_for("the Service to be gone", PROMPTLY, || {
        for way in &node_ports {
            if matches!(way.observe_once(FAILS_WITHIN)?, Outcome::Answered { .. }) {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })?;
    stage.apply("web", &service("web", 10))?;
    stage.apply("web-endpoints", &endpoints("web", &SERVING))?;
    stage.expect_answers(&SERVING)?;
    third.finish_unharmed().context("the Service was deleted")
}

/// Opens a socket whose datagrams reach this endpoint.
pub(crate) fn flow_to(way: &Way, endpoint: &str) -> Result<UdpSocket> {
    let any = match Family::of(way.destination.ip()) {
        Family::Ipv4 => SocketAddr::from(([0; 4], 0)),
        Family::Ipv6 => SocketAddr::from(([0; 16], 0)),
    };
    wait_for("a flow to the endpoint", PROMPTLY, || {
        let socket = way.inside.enter(|| UdpSocket::bind(any))??;
        socket.connect(way.destination)?;
        socket.set_read_timeout(Some(FAILS_WITHIN))?;
        Ok(answer_to(&socket)?.starts_with(endpoint).then_some(socket))
    })
}

/// Returns the answer to a datagram, or nothing.
pub(crate) fn answer_to(socket: &UdpSocket) -> Result<String> {
    let mut answer = [0; 256];
    // The error about an earlier datagram may come first.
    let received = socket.send(b"?").and_then(|_| socket.recv(&mut answer));
    let length = received.unwrap_or(0);
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

/// Expects `explain` to show the endpoint that has left with its connections, and no difference: it
/// said that the kernel differed until the last of them had ended.
fn expect_draining(stage: &Stage) -> Result<()> {
    let explained = stage.agent()?.ask(&["explain", "shop/web"])?;
    let draining = explained.lines().find(|line| line.contains("draining: "));
    let draining = draining.with_context(|| format!("nothing is draining:\n{explained}"))?;
    ensure!(draining.contains("active connection"), "{draining}");
    ensure!(!explained.contains("! "), "{explained}");
    // So do the metrics, of endpoints that serve and of those that drain.
    for metric in [
        "signpost_ipvs_connections",
        "signpost_ipvs_endpoint_connections",
        "signpost_ipvs_new_connections_total",
    ] {
        let counted = stage.agent()?.metric(metric)?;
        ensure!(counted >= 1.0, "{metric} is {counted}");
    }
    let metrics = stage.agent()?.get("/metrics")?;
    for pod in SERVING {
        let endpoint = SocketAddr::new(addresses::pod_address(1, pod, Family::Ipv4), SERVED);
        let labels =
            format!("service=\"web\",port=\"http\",protocol=\"tcp\",endpoint=\"{endpoint}\"");
        ensure!(metrics.contains(&labels), "no {labels} in:\n{metrics}");
    }
    Ok(())
}

/// Connects to the Service from a Pod. Returns the name of the endpoint and the connection.
pub(crate) fn connect(stage: &Stage) -> Result<(String, BufReader<TcpStream>)> {
    let destination = SocketAddr::new(addresses::cluster_ip(10, Family::Ipv4), 80);
    connect_from(stage.topology.pod(1, ASKING)?, destination)
}

/// The same from elsewhere.
pub(crate) fn connect_to(way: &Way) -> Result<(String, BufReader<TcpStream>)> {
    connect_from(&way.inside, way.destination)
}

fn connect_from(
    inside: &Namespace,
    destination: SocketAddr,
) -> Result<(String, BufReader<TcpStream>)> {
    inside.enter(|| {
        let stream = TcpStream::connect(destination)?;
        stream.set_read_timeout(Some(patience(PROMPTLY)))?;
        let mut stream = BufReader::new(stream);
        let mut name = String::new();
        stream.read_line(&mut name)?;
        anyhow::Ok((name, stream))
    })?
}

/// Makes a request over an open connection, which the server echoes.
pub(crate) fn ask(stream: &mut BufReader<TcpStream>) -> io::Result<()> {
    use std::io::Write as _;
    stream.get_mut().write_all(b"?\n")?;
    let mut answer = [0; 2];
    stream.read_exact(&mut answer)?;
    Ok(())
}
