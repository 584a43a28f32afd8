//! The real agent in mode iptables, variant legacy, while another process holds the lock.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use backend::{Backend, Rendered};
use backend_iptables::{Lock, Rules, open_with_listener};
use crds::condition::reason::XTABLES_LOCK_HELD;
use crds::condition::{IPV4_PROGRAMMED, IPV6_PROGRAMMED, READY};
use dataplane::Family;
use testkit::address_plan as addresses;
use tests::deadline::wait_for;
use tests::network::{Connections, Kind, Namespace, Process};
use tests::xtables_lock::xtables_lock_folder;
use xtables::Variant;

use crate::families::{kernel, services};
use crate::node::{Node, Place, SERVING, server};

/// The number of failed waits, of a little more than five seconds each, in twenty seconds.
const ATTEMPTS: f64 = 4.0;
/// How long they may take together.
const A_WHILE: Duration = Duration::from_secs(40);
/// How soon a change is made once the lock is free. That the agent notices the release itself, and
/// not only at its next attempt, is tested by [`a_release_is_noticed`].
const RIGHT_AFTER: Duration = Duration::from_secs(10);
/// The timeout of an answer to a datagram or to a health check.
const AN_ANSWER: Duration = Duration::from_secs(5);
/// The interval between two connections of one client.
const EVERY: Duration = Duration::from_millis(20);
/// kube-proxy's metric for failed changes.
const FAILURES: &str = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total";

/// Another process that holds the lock.
struct Holder(Process);

// === impl Holder ===

impl Holder {
    fn start(lock: &Path) -> Result<Holder> {
        let mut command = Command::new("flock");
        command.arg(lock);
        // The process ends with its input if this test does not end it.
        command.args(["sh", "-c", "echo held && exec cat"]);
        let mut process = Process::start("flock", command).context("install util-linux")?;
        process.wait_for_line("held", Duration::from_secs(5))?;
        Ok(Holder(process))
    }

    /// Releases the lock; returns when.
    fn release(self) -> Result<Instant> {
        let released = Instant::now();
        self.0.finish(Duration::from_secs(5))?;
        Ok(released)
    }
}

/// Failure story T37 (kubernetes#105742, amazon-vpc-cni-k8s#2948): another process holds the lock
/// for twenty seconds. The agent names it, all clients are served as before, the family with
/// nothing to write is healthy, and the pending changes are written right after the release.
pub(crate) fn a_lock_held_for_long() -> Result<()> {
    let node = Node::start(Place::Iptables(Variant::Legacy))?;
    let ways = [node.way(Family::Ipv4)?, node.way(Family::Ipv6)?];
    let clients = Connections::start(&ways, &[Kind::New, Kind::Kept], EVERY)?;
    let holder = Holder::start(&node.lock())?;
    let began = Instant::now();
    let [gone, left @ ..] = SERVING;
    let address = addresses::pod_address(1, gone, Family::Ipv4);
    node.take_out("web-endpoints.yaml", address)?;

    let said = node.agent.wait_for("the condition", |agent| {
        let said = agent.condition(READY)?;
        Ok(said.filter(|said| said.status == "False"))
    })?;
    let named = format!("flock (process {})", holder.0.id());
    ensure!(said.message.contains(&named), "no {named:?} in {said:?}");
    let ipv4 = node.agent.condition(IPV4_PROGRAMMED)?;
    let ipv4 = ipv4.context("it says something of IPv4")?;
    ensure!(ipv4.reason == XTABLES_LOCK_HELD.name, "{ipv4:?}");
    let (status, message) = node.condition(IPV6_PROGRAMMED)?;
    ensure!(status == "True", "{message}");
    ensure!(!node.agent.is_ready(), "it is ready while the lock is held");
    wait_for("it to be tried again and again", A_WHILE, || {
        Ok((node.agent.metric(FAILURES)? >= ATTEMPTS).then_some(()))
    })?;
    // The health check for load balancers fails only after an update is late by two sync periods.
    let health = "http://127.0.0.1:10256/healthz";
    let answer = node.namespace()?.get(health, AN_ANSWER)?;
    ensure!(answer.status().is_success(), "{}", answer.into_body());
    let all: BTreeSet<String> = SERVING.into_iter().map(server).collect();
    ways[0].wait_for_servers(&all, Duration::ZERO)?;

    let held = began.elapsed();
    let committed = "signpost_syncs_total{ip_family=\"IPv4\",outcome=\"committed\"}";
    let before = node.agent.metric(committed)?;
    let released = holder.release()?;
    wait_for("the change", RIGHT_AFTER, || {
        Ok((node.agent.metric(committed)? > before).then_some(()))
    })?;
    println!(
        "    held {held:.1?}; written {:.0?} later",
        released.elapsed()
    );
    let rest: BTreeSet<String> = left.into_iter().map(server).collect();
    ways[0].wait_for_servers(&rest, RIGHT_AFTER)?;
    ways[1].wait_for_servers(&all, RIGHT_AFTER)?;
    node.agent.wait_until_ready()?;
    let status = node.agent.status()?.unwrap_or_default();
    let iptables = status.iptables.context("it tells of iptables")?;
    let longest = iptables.longest_lock_wait.duration();
    ensure!((5..10).contains(&longest.as_secs()), "{longest:?}");
    clients.finish_unharmed()
}

/// Failure story T19 (kubernetes#112604): one commit fails, and the cleanup after it must still
/// happen: a UDP client that keeps its port is moved away from the removed endpoint.
pub(crate) fn one_commit_that_fails() -> Result<()> {
    let node = Node::start(Place::Iptables(Variant::Legacy))?;
    let client = open_client(node.asking()?)?;
    let first = ask(&client).context("a server answers")?;
    let pod = SERVING.into_iter().find(|pod| server(*pod) == first);
    let pod = pod.with_context(|| format!("{first:?} is a server"))?;
    let deleted = "kubeproxy_conntrack_reconciler_deleted_entries_total";
    let before = node.agent.metric(deleted)?;

    let holder = Holder::start(&node.lock())?;
    let began = Instant::now();
    let address = addresses::pod_address(1, pod, Family::Ipv4);
    node.take_out("dns.yaml", address)?;
    wait_for("a commit to fail", A_WHILE, || {
        Ok((node.agent.metric(FAILURES)? >= 1.0).then_some(()))
    })?;
    ensure!(ask(&client).as_deref() == Some(&first), "it moved too soon");
    let released = holder.release()?;
    wait_for("another to answer", RIGHT_AFTER, || {
        let now = ask(&client);
        Ok(now.is_some_and(|now| now != first).then_some(()))
    })?;
    let (after, since) = (released.elapsed(), began.elapsed());
    println!("    moved {after:.0?} after the release, {since:.1?} after the change");
    // The removal is counted after the whole conntrack table has been read.
    wait_for("the removal to be counted", RIGHT_AFTER, || {
        Ok((node.agent.metric(deleted)? > before).then_some(()))
    })?;
    node.agent.wait_until_ready()
}

/// The same story without an agent: after a minute the attempts are seconds apart, so they alone
/// would find the free lock too late. The wait is reported once, for the family that waits.
pub(crate) fn a_release_is_noticed() -> Result<()> {
    let (_network, namespace) = kernel()?;
    let folder = xtables_lock_folder()?;
    let lock = Lock {
        path: folder.path().join("lock"),
        patience: Duration::from_millis(50),
    };
    let open = || open_with_listener(Variant::Legacy, &lock);
    let ([mut backend, mut other], mut notification_listener) = namespace.enter(open)??;
    for family in [&mut backend, &mut other] {
        family.observe()?;
    }
    let holder = Holder::start(&lock.path)?;
    let expected = backend.render(&services(1..=3, &[8080]), &Rendered::default());
    let change = backend.diff(&Rules::default(), &expected);
    ensure!(backend.commit(change.clone()).is_err(), "it has the lock");
    let heard = notification_listener.receive()?;
    ensure!(heard.is_none(), "it is still held: {heard:?}");
    holder.release()?;
    let heard = notification_listener.receive()?;
    let heard = heard.context("no notification was received")?;
    ensure!(heard.families == [Family::Ipv4].into(), "{heard:?}");
    let again = notification_listener.receive()?;
    ensure!(again.is_none(), "it was reported before: {again:?}");
    let _ = backend.commit(change)?;
    let nothing = notification_listener.receive()?;
    ensure!(
        nothing.is_none(),
        "there was nothing to receive: {nothing:?}"
    );
    Ok(())
}

/// Opens a UDP client with a permanent source port.
fn open_client(inside: &Namespace) -> Result<UdpSocket> {
    let destination = SocketAddr::new(addresses::cluster_ip(53, Family::Ipv4), 53);
    let socket = inside.enter(|| -> std::io::Result<UdpSocket> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(destination)?;
        socket.set_read_timeout(Some(AN_ANSWER))?;
        Ok(socket)
    })??;
    Ok(socket)
}

/// Returns the server that answers, if any.
fn ask(client: &UdpSocket) -> Option<String> {
    let mut buffer = [0; 256];
    client.send(b"who is there?").ok()?;
    let length = client.recv(&mut buffer).ok()?;
    let answer = String::from_utf8_lossy(&buffer[..length]);
    answer.split(' ').next().map(str::to_owned)
}
