//! A second agent on the node waits for the end of the first. A thread that writes the agent's
//! rules is reported by the name of its program.

use std::collections::BTreeSet;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dataplane::Family;
use netlink::Socket;
use netlink::nf_tables::{self, Operation, Transaction};
use rustix::process::{Pid, Signal, Uid, kill_process};
use rustix::thread::set_thread_uid;
use tempfile::TempDir;
use tests::deadline::patience;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{Connections, Kind, Network};

use crate::agent::{AT_ONCE, expect_repair};
use crate::manifests;
use crate::node::{Node, PROMPTLY, Place, Setting};

/// The interval of each client's requests.
const INTERVAL: Duration = Duration::from_millis(20);
/// The name of the abstract socket of which each node has one.
const NAME: &str = "signpost-agent";
/// A user ID that no agent has.
const ANOTHER_USER: u32 = 65534;
/// The name of the agent's writing thread.
const WRITER: &str = "reconciler";

/// Failure story T83, with continuous connections: the first agent is killed, the second is
/// stopped, and each time the other one takes over.
pub(crate) fn it_waits_and_takes_over(place: Place) -> Result<()> {
    let mut node = Node::start(place)?;
    let ways = Family::ALL.map(|family| node.way(family));
    let ways: Vec<_> = ways.into_iter().collect::<Result<_>>()?;
    let connections = Connections::start(&ways, &[Kind::New, Kind::Kept], INTERVAL)?;

    let folder = TempDir::new()?;
    let first = node.workplace().clone();
    let second = Workplace {
        folder: folder.path().to_owned(),
        ..first.clone()
    };
    let agent = start_waiting(&second, node.agent.process_id())?;
    expect_idle(&agent, folder.path())?;
    ensure!(node.is_as_before()?, "it has written rules");
    // A killed agent cannot notify the other one.
    std::mem::replace(&mut node.agent, agent).kill()?;
    expect_takeover(&node)?;

    let agent = start_waiting(&first, node.agent.process_id())?;
    let before = std::mem::replace(&mut node.agent, agent);
    let process = i32::try_from(before.process_id())?;
    kill_process(
        Pid::from_raw(process).context("no process has the id 0")?,
        Signal::TERM,
    )?;
    expect_takeover(&node)?;
    drop(before);
    ensure!(node.is_as_before()?, "the rules are others than before");
    connections.finish_unharmed()
}

/// Starts an agent next to the one with ID `process`, and waits until it reports that it waits.
fn start_waiting(workplace: &Workplace, process: u32) -> Result<LoneAgent> {
    let before = fs::read_to_string(workplace.folder.join("agent.log"));
    let before = before.unwrap_or_default().len();
    let agent = LoneAgent::start(workplace)?;
    let named = format!("process {process}, for node node-1 since ");
    agent.wait_for("it to name the other agent", |agent| {
        let log = agent.log();
        let since = log.get(before..).unwrap_or_default();
        let said = since.contains("another agent serves this node") && since.contains(&named);
        Ok(said.then_some(()))
    })?;
    Ok(agent)
}

/// Fails if a waiting agent listens anywhere or has written anything but its log.
fn expect_idle(agent: &LoneAgent, folder: &Path) -> Result<()> {
    let process = agent.process_id();
    let mut open = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
        // One of its descriptors may have been closed meanwhile.
        let link = fs::read_link(entry?.path()).unwrap_or_default();
        let link = link.to_string_lossy().into_owned();
        let inode = link
            .strip_prefix("socket:[")
            .map(|rest| rest.trim_end_matches(']').to_owned());
        open.extend(inode);
    }
    for table in ["tcp", "tcp6", "udp", "udp6", "netlink"] {
        let sockets = fs::read_to_string(format!("/proc/{process}/net/{table}"))?;
        let mut fields = sockets.lines().flat_map(str::split_whitespace);
        let one = fields.find(|field| open.contains(*field));
        ensure!(one.is_none(), "it has a socket of {table}");
    }
    let mut files: Vec<_> = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<Result<_>>()?;
    files.sort();
    ensure!(files == ["agent.log"], "it has written {files:?}");
    Ok(())
}

/// Waits until the waiting agent serves.
fn expect_takeover(node: &Node) -> Result<()> {
    let began = Instant::now();
    let agent = &node.agent;
    agent.wait_for("the other agent to serve", |agent| {
        Ok(agent.is_ready().then_some(()))
    })?;
    let took = began.elapsed();
    println!("    served again after {took:.1?}");
    ensure!(
        took < patience(AT_ONCE),
        "it took {took:.1?}\n{}",
        agent.log()
    );
    Ok(())
}

/// Any process that can create sockets on the node can create the one that agents use as a lock.
pub(crate) fn another_programs_socket() -> Result<()> {
    let mut network = Network::new()?;
    let [node] = network.add_namespaces(["node"])?;
    node.configure("link set lo up\n")?;
    let socket = node.enter(|| -> Result<UnixListener> {
        set_thread_uid(Uid::from_raw(ANOTHER_USER))?;
        let name = SocketAddr::from_abstract_name(NAME)?;
        Ok(UnixListener::bind_addr(&name)?)
    })??;
    let folder = TempDir::new()?;
    let setting = Setting {
        place: Place::Nftables,
        sync_period: "1h",
        others: Vec::new(),
    };
    let agent = LoneAgent::start(&Workplace {
        node,
        source: Source::Manifests(manifests::write(folder.path(), &setting)?),
        folder: folder.path().to_owned(),
        sysctls: Sysctls::Writable,
        deadline: PROMPTLY,
    })?;
    agent.wait_until_ready()?;
    let expected = format!("belongs to a process of user {ANOTHER_USER}, which is not an agent");
    ensure!(agent.log().contains(&expected), "{}", agent.log());
    drop(socket);
    Ok(())
}

/// Agents from before the lock write from a thread, and the kernel reports the thread's name.
pub(crate) fn a_thread_is_named_by_its_program() -> Result<()> {
    let node = Node::start(Place::Nftables)?;
    let program = fs::read_to_string("/proc/self/comm")?;
    let actor = format!("{} (process {})", program.trim_end(), std::process::id());
    let drifts = node.agent.metric("signpost_drift_total")?;
    let namespace = node.namespace()?.clone();
    let (named, until_named) = mpsc::channel::<()>();
    let writer = thread::Builder::new().name(WRITER.to_owned());
    let writer = writer.spawn(move || -> Result<()> {
        let mut socket = namespace.enter(Socket::open)??;
        let mut damage = Transaction::new(nf_tables::Family::Ipv4, "signpost".into());
        damage.operations = vec![Operation::AddTable, Operation::DeleteTable];
        socket.commit(&damage)?;
        // For a process that has ended, only the kernel's information is available.
        let _ = until_named.recv();
        Ok(())
    })?;
    let repaired = expect_repair(&node, "a table removed by a thread", drifts, &actor);
    drop(named);
    let written = writer.join();
    written.map_err(|_| anyhow::anyhow!("the thread panicked"))??;
    repaired
}
