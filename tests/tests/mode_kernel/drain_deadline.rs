//! Connections to an endpoint that has left end with `ipvs.drainTimeout`. Failure story T179.

use std::io::{BufReader, ErrorKind};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use crds::profile::mode::Mode;
use dataplane::{Family, Protocol};
use netlink::ipvs::Weight;
use serde_json::json;
use socket2::Domain;
use tests::deadline::{patience, wait_for};
use tests::network::{Way, sctp_socket};
use xtables::Variant;

use crate::departures::{answer_to, ask, connect_to, flow_to};
use crate::ipvs;
use crate::manifests::{self, NODE_PORT, endpoints};
use crate::sctp::{associate, serve_sctp, with_sctp};
use crate::stage::{PROMPTLY, SERVING, Stage, server};

/// How long a client waits that gets no answer: an answer takes milliseconds.
const IN_VAIN: Duration = Duration::from_millis(100);
/// The number of additional Services.
const FEW: u8 = 5;

/// What becomes of the agent while connections drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Agent {
    Runs,
    /// It is killed, and another one starts.
    IsReplaced,
}

/// The connections with the endpoint that leaves, with the one that stays, and flows that the former answers.
#[derive(Default)]
struct Clients {
    leaving: Vec<Kept>,
    staying: Vec<Kept>,
    flows: Vec<(Way, UdpSocket)>,
}

/// A connection of TCP or an association of SCTP.
struct Kept {
    /// With the endpoint.
    way: String,
    at_the_end: AtTheEnd,
    connection: BufReader<TcpStream>,
}

/// What a client notices when its next packet after the end reaches no server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AtTheEnd {
    IsTold,
    /// A node sends the abort of an association only from an address that a device has, and none has a cluster
    /// IP.
    IsNotAnswered,
}

/// A connection that never ends does not keep an endpoint for ever. With `ipvs.drainTimeout` it ends after that
/// time, which begins again with another agent, and not before. Clients of TCP learn of it, and other
/// connections stay. A flow of UDP finds another endpoint at once, and stays there.
pub(crate) fn is_kept(agent: Agent) -> Result<()> {
    let limit = match agent {
        Agent::Runs => Duration::from_secs(2),
        // Time to be killed before that.
        Agent::IsReplaced => Duration::from_secs(10),
    };
    let mut stage = Stage::build_with(Variant::NfTables, FEW)?;
    let has_sctp = sctp_socket(Domain::IPV4)?.is_some();
    if has_sctp {
        serve_sctp(&stage)?;
    } else {
        println!("    NOT ASKED: SCTP, of which this kernel has no sockets");
    }
    let mut profile = manifests::profile("ipvs");
    profile["spec"]["ipvs"]["drainTimeout"] = json!(format!("{}s", limit.as_secs()));
    stage.apply("profile", &profile)?;
    stage.start_agent()?;
    stage.expect_mode(Mode::Ipvs)?;
    stage.expect_answers(&SERVING)?;
    let mut clients = Clients::gather(&stage, has_sctp)?;

    let mut begun = Instant::now();
    let left = with_sctp(endpoints("web", &SERVING[..1]));
    stage.apply("web-endpoints", &left)?;
    let protocols = if has_sctp { 2 } else { 1 };
    wait_for("all connections to drain", PROMPTLY, || {
        let expected = protocols * Family::ALL.len();
        Ok((count_draining(&stage)? == expected).then_some(()))
    })?;
    if agent == Agent::IsReplaced {
        stage.kill_agent()?;
        for Kept {
            way, connection, ..
        } in &mut clients.leaving
        {
            ask(connection).with_context(|| format!("{way} ends before the deadline"))?;
        }
        begun = Instant::now();
        stage.start_agent()?;
    }
    for (way, flow) in &clients.flows {
        wait_for(&format!("another endpoint: {way}"), PROMPTLY, || {
            Ok(answer_to(flow)?
                .starts_with(&server(SERVING[0]))
                .then_some(()))
        })?;
    }
    wait_for("the endpoint to be gone from IPVS", PROMPTLY, || {
        Ok((count_draining(&stage)? == 0).then_some(()))
    })?;
    let lasted = begun.elapsed();
    ensure!(lasted >= limit, "it has gone after {lasted:?}");
    clients.expect_only_those_that_stay()?;
    stage.expect_mode(Mode::Ipvs)?;
    stage.expect_answers(&SERVING[..1])
}

// === impl Clients ===

impl Clients {
    /// On each way, over each protocol, one for each endpoint.
    fn gather(stage: &Stage, has_sctp: bool) -> Result<Clients> {
        let mut clients = Clients::default();
        for way in stage.ways()? {
            clients.add(&way, AtTheEnd::IsTold, connect_to)?;
            if has_sctp {
                let at_the_end = match way.destination.port() {
                    NODE_PORT => AtTheEnd::IsTold,
                    _ => AtTheEnd::IsNotAnswered,
                };
                clients.add(&way, at_the_end, |way| {
                    way.inside.enter(|| associate(way.destination))?
                })?;
            }
        }
        for way in stage.ways_by(Protocol::Udp)? {
            let flow = flow_to(&way, &server(SERVING[1])).with_context(|| way.to_string())?;
            clients.flows.push((way, flow));
        }
        Ok(clients)
    }

    /// Connects until both endpoints have taken a connection.
    fn add(
        &mut self,
        way: &Way,
        at_the_end: AtTheEnd,
        connect: impl Fn(&Way) -> Result<(String, BufReader<TcpStream>)>,
    ) -> Result<()> {
        let before = [self.leaving.len(), self.staying.len()];
        wait_for(&format!("both endpoints: {way}"), PROMPTLY, || {
            let (name, connection) = connect(way).with_context(|| way.to_string())?;
            let kept = Kept {
                way: format!("{way}, {}", name.trim_end()),
                at_the_end,
                connection,
            };
            match name.starts_with(&server(SERVING[0])) {
                true => self.staying.push(kept),
                false => self.leaving.push(kept),
            }
            let [leaving, staying] = before;
            let is_both = self.leaving.len() > leaving && self.staying.len() > staying;
            Ok(is_both.then_some(()))
        })
    }

    fn expect_only_those_that_stay(&mut self) -> Result<()> {
        for kept in &mut self.leaving {
            kept.expect_end()?;
        }
        for Kept {
            way, connection, ..
        } in &mut self.staying
        {
            ask(connection).with_context(|| format!("{way} answers no more"))?;
        }
        for (way, flow) in &self.flows {
            let answer = answer_to(flow)?;
            ensure!(answer.starts_with(&server(SERVING[0])), "{way}: {answer:?}");
        }
        Ok(())
    }
}

// === impl Kept ===

impl Kept {
    fn expect_end(&mut self) -> Result<()> {
        let Kept {
            way,
            at_the_end,
            connection,
        } = self;
        if *at_the_end == AtTheEnd::IsNotAnswered {
            let deadline = Some(patience(IN_VAIN));
            connection.get_ref().set_read_timeout(deadline)?;
        }
        let Err(error) = ask(connection) else {
            bail!("{way} still answers");
        };
        let is_silence = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        ensure!(
            !is_silence || *at_the_end == AtTheEnd::IsNotAnswered,
            "{way} leaves its client waiting: {error}"
        );
        Ok(())
    }
}

/// Returns the number of destinations that only keep their connections.
fn count_draining(stage: &Stage) -> Result<usize> {
    let mut servers = ipvs::servers(stage)?;
    let own = servers.observe_virtual_servers()?.own.into_keys();
    let listed = servers.observe_destinations_of(own)?;
    let all = listed
        .iter()
        .flat_map(|(_, destinations)| destinations.values());
    Ok(all
        .filter(|(destination, _)| destination.weight == Weight::DRAINING)
        .count())
}
