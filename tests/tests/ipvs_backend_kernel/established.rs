//! Connections that are open while something changes about them.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::net::TcpStream;
use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use backend::{Backend, Drift, Leftover, Rendered};
use backend_ipvs::{MARKS, Rules};
use dataplane::{Family, Protocol};
use netlink::ipvs::{
    IpvsSocket, Operation, SchedulerName, Seconds, Timeouts, VirtualServer, VirtualServerFlags,
    VirtualServerKey,
};
use socket2::SockRef;
use tests::deadline::wait_for;
use tests::network::Way;

use crate::stage::{Affinity, PATIENCE, SERVING, Stage, cluster_ip, is_by, node_port, server};
use crate::untaken::ways;

/// How many marks there are for virtual servers.
const MOST_MARKS: u32 = 1_048_574;
/// How long IPVS remembers a flow of UDP here: far longer than it takes to look.
const UDP_REMEMBERED: u32 = 15;
/// Longer than that, and than the ten seconds for which it remembers a connection that was reset
/// (`tcp_timeouts` in `ip_vs_proto_tcp.c`).
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(30);

/// Failure story T299: the connection tracking table is flushed, or overflows, and IPVS still has its
/// entry. A connection to a cluster IP goes on. One that was masqueraded has lost its translated
/// address: it ends at its next packet, and the client is not left waiting. New ones are served.
pub(super) fn without_conntrack() -> Result<()> {
    let mut stage = Stage::build()?;
    stage.serve(&SERVING, Affinity::None)?;
    for family in Family::ALL {
        let mut plain = stage.connect(cluster_ip(family))?;
        let mut masqueraded = stage.connect(node_port(family))?;
        let flushed = stage.node()?.command("conntrack").arg("-F").output()?;
        ensure!(flushed.status.success(), "{flushed:?}");
        plain
            .ask()
            .with_context(|| format!("{family}: at the cluster IP"))?;
        if let Err(error) = masqueraded.ask() {
            let kind = error
                .downcast_ref::<std::io::Error>()
                .map(std::io::Error::kind);
            let is_told = kind.is_some_and(|kind| {
                [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof].contains(&kind)
            });
            ensure!(is_told, "{family}: at the node port: {error:#}");
        }
        for destination in [cluster_ip(family), node_port(family)] {
            stage.connect(destination)?.ask()?;
        }
    }
    Ok(())
}

/// Failure stories T314 and T359: the mode has ended, connections remain, and another program flushes all
/// rules. The virtual servers of these connections are no rules of the mode that came back, and the
/// connections go on.
pub(super) fn whose_table_goes() -> Result<()> {
    let mut stage = Stage::build()?;
    stage.serve(&SERVING, Affinity::None)?;
    let mut open = Family::ALL.map(|family| (family, stage.connect(cluster_ip(family))));
    let node = stage.node()?.clone();
    for (backend, _) in &mut stage.backends {
        let leftover = backend.commit_withdrawal()?;
        let are_kept = matches!(leftover, Leftover::Connections(_));
        ensure!(are_kept, "{}: {leftover:?}", backend.family());
    }
    // As in T356: the topology's router sends back what no rule redirects. If a late acknowledgement of a
    // client is among it, the node tells the client of a shorter way, past the node.
    for family in Family::ALL {
        node.configure(&format!("route add blackhole {}", cluster_ip(family).ip()))?;
    }
    node.nft(&["flush ruleset"])?;
    for (backend, _) in &mut stage.backends {
        let family = backend.family();
        let drift = backend.observe_drift()?;
        ensure!(drift == Drift::None, "{family}: {drift:?}");
        let found = backend.observe()?;
        ensure!(found == Rules::default(), "{family}: {found:?}");
    }
    for (family, one) in &mut open {
        let one = one
            .as_mut()
            .map_err(|error| anyhow!("{family}: {error:#}"))?;
        one.ask()
            .with_context(|| format!("{family}: after the flush"))?;
    }
    Ok(())
}

/// Failure story T369: the mode ends and returns while connections remain, and its marks have come round:
/// no Service gets the mark of a virtual server that has some. Failure story T390: the connections have
/// no deadline, since their endpoints still serve.
pub(super) fn of_a_mode_that_returns() -> Result<()> {
    let mut stage = Stage::build()?;
    let mut socket = stage.node()?.enter(|| IpvsSocket::open(MARKS))??;
    // The one before the last: the first Service port gets the last mark, and the second one the first.
    let mark = MARKS.mark(MOST_MARKS - 1).context("it is one of them")?;
    for family in Family::ALL {
        let key = VirtualServerKey { family, mark };
        let server = VirtualServer {
            scheduler: SchedulerName::new("rr").context("it is a name")?,
            flags: VirtualServerFlags::default(),
        };
        socket.commit(&[Operation::AddVirtualServer { key, server }])?;
    }
    for (backend, held) in &mut stage.backends {
        held.rules = backend.observe()?;
    }
    // Over before anything looks.
    stage.drains_for = Some(Duration::from_nanos(1));
    stage.serve(&SERVING, Affinity::None)?;
    let mut open = Family::ALL.map(|family| (family, stage.connect(cluster_ip(family))));
    for (backend, held) in &mut stage.backends {
        backend.commit_withdrawal()?;
        *held = Rendered::default();
    }
    let before = socket.observe_virtual_servers()?.own;
    let before: BTreeSet<u32> = before.into_keys().map(|key| key.mark.value()).collect();
    for number in [1, MOST_MARKS] {
        let mark = MARKS.mark(number).context("it is one of them")?;
        ensure!(before.contains(&mark.value()), "{before:?}");
    }
    stage.serve(&SERVING, Affinity::None)?;
    for (backend, held) in &stage.backends {
        let frontends = held.dataplane.frontends().iter();
        let marks = frontends.flat_map(|(frontend, _)| held.rules.marks(frontend));
        let marks: BTreeSet<u32> = marks.collect();
        ensure!(!marks.is_empty());
        let family = backend.family();
        ensure!(
            marks.is_disjoint(&before),
            "{family}: {marks:?}, {before:?}"
        );
    }
    for (family, one) in &mut open {
        let one = one
            .as_mut()
            .map_err(|error| anyhow!("{family}: {error:#}"))?;
        one.ask()
            .with_context(|| format!("{family}: after the return"))?;
        stage.connect(cluster_ip(*family))?.ask()?;
    }
    Ok(())
}

/// Failure story T300: the endpoint of a client with session affinity leaves. New connections go to
/// another one at once; those that the client has stay, the first, which IPVS took, and a later one,
/// which the affinity of the client led past IPVS.
pub(super) fn of_clients_that_move() -> Result<()> {
    let mut stage = Stage::build()?;
    stage.serve(&SERVING, Affinity::ClientIp)?;
    let mut open = Vec::new();
    for family in Family::ALL {
        let first = stage.connect(cluster_ip(family))?;
        let second = stage.connect(cluster_ip(family))?;
        ensure!(
            first.server == second.server,
            "{family}: it has no affinity"
        );
        open.extend([(family, first), (family, second)]);
    }
    let held: BTreeSet<String> = open.iter().map(|(_, one)| one.server.clone()).collect();
    for leaving in SERVING
        .into_iter()
        .filter(|pod| held.contains(&server(*pod)))
    {
        let staying: Vec<u8> = SERVING.into_iter().filter(|pod| *pod != leaving).collect();
        stage.serve(&staying, Affinity::ClientIp)?;
        for (family, one) in &mut open {
            let moved = stage.connect(cluster_ip(*family))?;
            ensure!(
                moved.server == server(staying[0]),
                "{family}: {}",
                moved.server
            );
            one.ask()
                .with_context(|| format!("{family}: {leaving} has left"))?;
        }
        stage.serve(&SERVING, Affinity::ClientIp)?;
    }
    Ok(())
}

/// Failure story T343: a connection is active until it is closed, and is counted as inactive until IPVS
/// has forgotten it. A flow of UDP is inactive from the start.
pub(super) fn are_counted() -> Result<()> {
    let mut stage = Stage::build()?;
    stage.serve(&SERVING[..1], Affinity::None)?;
    set_udp_timeout(&stage)?;
    let mut closed = Vec::new();
    let mut reset = Vec::new();
    for family in Family::ALL {
        let destination = cluster_ip(family);
        closed.push(stage.connect(destination)?);
        let stream = stage
            .client()?
            .enter(|| TcpStream::connect(destination))??;
        stream.set_read_timeout(Some(PATIENCE))?;
        // Only then is the connection established for IPVS.
        BufReader::new(&stream).read_line(&mut String::new())?;
        reset.push(stream);
    }
    let is_flow = |way: &Way| way.protocol == Protocol::Udp && way.from == "a pod";
    for (_, way) in ways(&stage)?.into_iter().filter(|(_, way)| is_flow(way)) {
        let outcome = way.observe_once(PATIENCE)?;
        ensure!(is_by(&outcome, &server(SERVING[0])), "{way}: {outcome}");
    }
    expect_counted(&mut stage, (2, 1)).context("two connections and a flow")?;
    drop(closed);
    expect_counted(&mut stage, (1, 2)).context("one connection is closed")?;
    for stream in reset {
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    }
    expect_counted(&mut stage, (0, 3)).context("the other one is reset")?;
    // The closed one is remembered for two minutes.
    expect_counted(&mut stage, (0, 1)).context("flow and reset connection are forgotten")
}

fn set_udp_timeout(stage: &Stage) -> Result<()> {
    let mut socket = stage.node()?.enter(|| IpvsSocket::open(MARKS))??;
    let before = socket.observe_timeouts()?.context("IPVS is loaded")?;
    let udp = Seconds(NonZeroU32::new(UDP_REMEMBERED).context("it is some time")?);
    socket.commit_timeouts(Timeouts { udp, ..before })?;
    Ok(())
}

/// Waits until each family has so many active and inactive connections.
fn expect_counted(stage: &mut Stage, expected: (u64, u64)) -> Result<()> {
    for (backend, held) in &mut stage.backends {
        let family = backend.family();
        let mut last = None;
        let what = format!("{family}: {expected:?} active and inactive connections");
        let counted = wait_for(&what, FORGOTTEN_WITHIN, || {
            backend.observe()?;
            let counted = backend.connections(&held.rules).context("IPVS counts")?;
            let counted = (counted.active, counted.inactive);
            last = Some(counted);
            Ok((counted == expected).then_some(()))
        });
        counted.with_context(|| format!("they were last {last:?}"))?;
    }
    Ok(())
}
