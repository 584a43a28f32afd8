//! Services and addresses of one Service that share an endpoint, and a client that uses one port for
//! all of them.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use crds::profile::mode::Mode;
use dataplane::Family;
use socket2::{Domain, Socket, Type};
use testkit::address_plan as addresses;
use tests::deadline::patience;
use xtables::Variant;

use crate::manifests::{NODE_PORT, endpoints};
use crate::stage::{ASKING, Place, SERVED, SERVING, Stage};

/// The client's port.
const PORT: u16 = 4_711;
/// Far longer than an answer takes.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// How long an answer is waited for that does not come.
const FAILS_WITHIN: Duration = Duration::from_millis(500);

/// Failure story T181: connections from one address and port to several Services become connections
/// from one address and port to one endpoint. All of them have to go on, whichever is the older:
/// nf_nat gives each newer one another source port. IPVS identifies replies by the endpoint and the
/// client alone, and would send those of an older one from the address and port of a newer one.
pub(crate) fn serves_both(mode: Mode, variant: Variant) -> Result<()> {
    let stage = Stage::build_with(variant, 1)?.serve(mode)?;
    stage.apply("web-endpoints", &endpoints("web", &SERVING[..1]))?;
    stage.apply("other-0-endpoints", &endpoints("other-0", &SERVING[..1]))?;
    stage.expect_answers(&SERVING[..1])?;
    for family in Family::ALL {
        let web = SocketAddr::new(addresses::cluster_ip(10, family), 80);
        let other = SocketAddr::new(addresses::cluster_ip(20, family), 80);
        let node_port = SocketAddr::new(addresses::node_address(1, family), NODE_PORT);
        let clients = [
            (
                stage.topology.pod(1, ASKING)?,
                addresses::pod_address(1, ASKING, family),
            ),
            (stage.node()?, addresses::node_address(1, family)),
        ];
        for (inside, source) in &clients {
            let source = *source;
            inside
                .enter(|| over_tcp(source, &[web, other, node_port]))?
                .with_context(|| format!("TCP from {source}"))?;
            inside
                .enter(|| over_udp(source, &[web, node_port]))?
                .with_context(|| format!("UDP from {source}"))?;
        }
        let (pod, source) = (stage.topology.pod(1, ASKING)?, clients[0].1);
        let endpoint = addresses::pod_address(1, SERVING[0], family);
        let endpoint = SocketAddr::new(endpoint, SERVED);
        pod.enter(|| beside_the_endpoint(mode, source, [web, endpoint]))?
            .with_context(|| format!("TCP from {source}, also to the endpoint itself"))?;
    }
    if mode == Mode::Ipvs {
        outlive_a_handback(&stage)?;
    }
    Ok(())
}

/// Opens a connection to a Service and, from the same port, one to its endpoint. In mode ipvs, as in
/// kube-proxy's, the endpoint's answer to the latter gets the source of the Service: IPVS finds it by
/// client and endpoint, and no label says that it is not for the Service (decision 0072). The one to the
/// Service goes on in every mode.
fn beside_the_endpoint(
    mode: Mode,
    source: IpAddr,
    [service, endpoint]: [SocketAddr; 2],
) -> Result<()> {
    let source = SocketAddr::new(source, PORT + 2);
    let mut streams = open(source, &[service])?;
    let limit = match mode {
        Mode::Ipvs => FAILS_WITHIN,
        Mode::Nftables | Mode::Iptables => ANSWERS_WITHIN,
    };
    match (mode, connect_within(source, endpoint, patience(limit))) {
        (Mode::Ipvs, Ok(_)) => bail!("{endpoint} answers in mode ipvs: say so in decision 0072"),
        (Mode::Ipvs, Err(error)) => {
            let error = error.downcast::<std::io::Error>()?;
            let is_wait = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            ensure!(is_wait, "{endpoint}: {error}");
        }
        (_, direct) => streams.push((endpoint, direct?)),
    }
    ask_all(&mut streams)
}

/// Another table has the replies of connections that a handback leaves.
fn outlive_a_handback(stage: &Stage) -> Result<()> {
    let mut streams = Vec::new();
    for family in Family::ALL {
        let source = SocketAddr::new(addresses::pod_address(1, ASKING, family), PORT + 1);
        let services =
            [10, 20].map(|number| SocketAddr::new(addresses::cluster_ip(number, family), 80));
        let pod = stage.topology.pod(1, ASKING)?;
        streams.push(pod.enter(|| open(source, &services))??);
    }
    stage.run(&["handback", "--force"])?;
    ensure!(stage.places()? == [Place::IpvsEnding].into());
    for streams in &mut streams {
        ask_all(streams).context("after a handback")?;
    }
    Ok(())
}

/// Opens a connection to each destination, and then makes requests over all of them.
fn over_tcp(source: IpAddr, destinations: &[SocketAddr]) -> Result<()> {
    ask_all(&mut open(SocketAddr::new(source, PORT), destinations)?)
}

type Streams = Vec<(SocketAddr, BufReader<TcpStream>)>;

fn open(source: SocketAddr, destinations: &[SocketAddr]) -> Result<Streams> {
    let streams = destinations.iter().map(|destination| {
        let stream = connect(source, *destination)
            .with_context(|| format!("failed to connect to {destination}"))?;
        Ok((*destination, stream))
    });
    streams.collect()
}

fn ask_all(streams: &mut Streams) -> Result<()> {
    for _ in 0..2 {
        for (destination, stream) in &mut *streams {
            ask(stream).with_context(|| format!("the connection to {destination}"))?;
        }
    }
    Ok(())
}

/// Sends datagrams to all destinations from one socket. Each answer has to come from where its
/// question went.
fn over_udp(source: IpAddr, destinations: &[SocketAddr]) -> Result<()> {
    let socket = UdpSocket::bind(SocketAddr::new(source, PORT))?;
    socket.set_read_timeout(Some(patience(ANSWERS_WITHIN)))?;
    for _ in 0..2 {
        for destination in destinations {
            socket.send_to(b"?", destination)?;
            let (_, from) = socket
                .recv_from(&mut [0; 64])
                .with_context(|| format!("no answer from {destination}"))?;
            ensure!(
                from == *destination,
                "{from} answered a question to {destination}"
            );
        }
    }
    Ok(())
}

fn connect(source: SocketAddr, destination: SocketAddr) -> Result<BufReader<TcpStream>> {
    connect_within(source, destination, patience(ANSWERS_WITHIN))
}

fn connect_within(
    source: SocketAddr,
    destination: SocketAddr,
    limit: Duration,
) -> Result<BufReader<TcpStream>> {
    let socket = Socket::new(Domain::for_address(destination), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&source.into())?;
    socket.connect_timeout(&destination.into(), limit)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(limit))?;
    let mut stream = BufReader::new(stream);
    stream.read_line(&mut String::new())?;
    Ok(stream)
}

/// Makes a request, which the server echoes.
fn ask(stream: &mut BufReader<TcpStream>) -> Result<()> {
    stream.get_mut().write_all(b"?\n")?;
    stream.read_exact(&mut [0; 2])?;
    Ok(())
}
