//! Two Services that share an endpoint, and a client that uses one port for both.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};

use anyhow::{Context, Result};
use crds::profile::mechanism::Mode;
use dataplane::Family;
use socket2::{Domain, Socket, Type};
use testkit::address_plan as addresses;
use tests::deadline::patience;
use xtables::Variant;

use crate::manifests::endpoints;
use crate::stage::{ASKING, PROMPTLY, SERVING, Stage};

/// The client's port.
const PORT: u16 = 4_711;

/// Failure story T181: two connections from one address and port to two Services become two
/// connections from one address and port to one endpoint. The newer one has to work, and the older
/// one has to go on: nf_nat gives the newer one another source port. IPVS does not, and there the
/// older one ends.
pub(crate) fn serves_both(mode: Mode, variant: Variant) -> Result<()> {
    let stage = Stage::build_with(variant, 1)?.serve(mode)?;
    stage.apply("web-endpoints", &endpoints("web", &SERVING[..1]))?;
    stage.apply("other-0-endpoints", &endpoints("other-0", &SERVING[..1]))?;
    stage.expect_answers(&SERVING[..1])?;
    for family in Family::ALL {
        let source = addresses::pod_address(1, ASKING, family);
        let pod = stage.topology.pod(1, ASKING)?;
        pod.enter(|| {
            let [older, newer] = [10, 20].map(|number| {
                let destination = SocketAddr::new(addresses::cluster_ip(number, family), 80);
                connect(source, destination).with_context(|| destination.to_string())
            });
            let (mut older, mut newer) = (older?, newer?);
            ask(&mut newer).context("the newer connection")?;
            if mode != Mode::Ipvs {
                ask(&mut older).context("the older connection")?;
            }
            ask(&mut newer).context("the newer connection, again")
        })??;
    }
    Ok(())
}

fn connect(source: IpAddr, destination: SocketAddr) -> Result<BufReader<TcpStream>> {
    let socket = Socket::new(Domain::for_address(destination), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SocketAddr::new(source, PORT).into())?;
    socket.connect(&destination.into())?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(patience(PROMPTLY)))?;
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
