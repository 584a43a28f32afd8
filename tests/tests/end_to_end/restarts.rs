//! Signpost's programs end and restart.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use crds::condition::reason::AGENT_SILENT;
use crds::condition::{self, API_SERVICE_REACHABLE, READY, Status};
use crds::node_proxy::{Heartbeat, LEASE_PREFIX};
use crds::{NodeProxy, NodeProxyStatus};
use dataplane::Family;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Value, json};
use tests::cluster::resources::{is_node_ready, says};
use tests::cluster::shop::{Readiness, WEB, cluster_address};
use tests::cluster::{Cluster, DEADLINE};
use tests::deadline::wait_for;
use tests::network::{Namespace, Process};

use crate::outages::CONTROLLERS_ARE_BACK_WITHIN;

/// The node whose agent is killed.
const NODE: u8 = 2;
/// How soon a profile and a NodeProxy report that an agent is gone.
const NOTICED_WITHIN: Duration = Duration::from_secs(120);

pub(crate) fn agent(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.topology().node(NODE)?.clone();
    let mut flows = Flows::open(cluster.client_pod(NODE)?)?;
    let clients = cluster.start_clients(Duration::from_millis(10))?;
    let mut monitor = Monitor::start(&node)?;
    let name = format!("node-{NODE}");
    let proxies = cluster.wait_for_node_proxies("all checks", DEADLINE, |proxies| {
        let conditions = status_of(&proxies[&name]).conditions;
        condition::status_of(&conditions, API_SERVICE_REACHABLE) == Status::True
    })?;
    let before = status_of(&proxies[&name]);

    cluster.take_agent(NODE)?.kill()?;
    flows.go_on()?;
    cluster.start_agent(NODE)?;
    wait_for("the new agent to be ready", DEADLINE, || {
        // The request fails until the agent listens.
        Ok(cluster
            .ask_agent(NODE, "/readyz")
            .ok()
            .filter(|(code, _)| *code == 200))
    })?;
    let syncs = wait_for("a sync of each family", DEADLINE, || {
        let (_, syncs) = cluster.ask_agent(NODE, "/debug/syncs")?;
        Ok(["IPv4", "IPv6"]
            .iter()
            .all(|family| syncs.contains(family))
            .then_some(syncs))
    })?;
    let wrote = syncs.lines().find(|sync| !sync.contains("): unchanged"));
    ensure!(
        wrote.is_none(),
        "a sync after the restart was not of nothing:\n{syncs}"
    );
    // Its report carries on that of the agent before: a restart is no transition.
    let proxies =
        cluster.wait_for_node_proxies("a report of the new agent", DEADLINE, |proxies| {
            status_of(&proxies[&name]).last_sync_time != before.last_sync_time
        })?;
    let after = status_of(&proxies[&name]);
    let said = |status: &NodeProxyStatus| -> BTreeMap<String, (String, Time)> {
        let conditions = status.conditions.iter().cloned();
        conditions
            .map(|c| (c.type_, (c.status, c.last_transition_time)))
            .collect()
    };
    ensure!(said(&after) == said(&before), "{after:?} after {before:?}");
    cluster.wait_until_ready(DEADLINE)?;
    let mut seen = monitor.finish()?;
    // The tables that keep the kernel's hooks are those of a process, not of its rules.
    seen.retain(|change| !change.contains(" signpost-hooks-"));
    ensure!(seen.is_empty(), "rules were written:\n{}", seen.join("\n"));
    flows.go_on()?;
    // The new agent writes when something changes. It also moves a UDP flow of web-2.
    cluster.set_readiness(WEB[1], Readiness::NotReady)?;
    cluster.wait_until_served_by(&["web-1", "web-3", "web-4"], DEADLINE)?;
    clients.finish_unharmed()
}

pub(crate) fn status_of(proxy: &NodeProxy) -> NodeProxyStatus {
    proxy.status.clone().unwrap_or_default()
}

/// Restarts the agent only after its silence is reported. The others meanwhile renew their Leases a few
/// times, and write no status that says the same again.
pub(crate) fn silent_agent(cluster: &mut Cluster) -> Result<()> {
    let name = format!("node-{NODE}");
    cluster.wait_for_node_proxies("all agents to have Leases", DEADLINE, |proxies| {
        let mut statuses = proxies.values().map(|proxy| proxy.status.as_ref());
        statuses.all(|status| status.is_some_and(|s| s.heartbeat == Some(Heartbeat::Lease)))
    })?;
    let lease = format!("{LEASE_PREFIX}{name}");
    let lease: Value = cluster.get(&["lease", &lease, "--namespace=signpost-system"])?;
    let owner = &lease["metadata"]["ownerReferences"][0];
    ensure!(
        owner["kind"] == "NodeProxy" && owner["name"] == *name,
        "{lease}"
    );

    let killed = Instant::now();
    cluster.take_agent(NODE)?.kill()?;
    let seen = RefCell::new(BTreeMap::new());
    let repetitions = RefCell::new(Vec::new());
    let noticed = cluster.wait_for_node_proxies("the silence", NOTICED_WITHIN, |proxies| {
        for (other, proxy) in proxies.iter().filter(|(other, _)| **other != name) {
            let before = seen.borrow_mut().insert(other.clone(), proxy.clone());
            if before.is_some_and(|before| repeats(&before, proxy)) {
                repetitions.borrow_mut().push(other.clone());
            }
        }
        let status = proxies[&name].status.as_ref();
        status.is_some_and(|s| says(&s.conditions, READY, Status::Unknown, AGENT_SILENT))
    });
    let after = killed.elapsed();
    let others = cluster.observe_node_proxies()?;
    cluster.start_agent(NODE)?;
    noticed?;
    println!("    noticed {after:.1?} after the agent was killed");
    let repetitions = repetitions.into_inner();
    ensure!(
        repetitions.is_empty(),
        "agents wrote again what they had written: {repetitions:?}"
    );
    for (other, proxy) in others.iter().filter(|(other, _)| **other != name) {
        ensure!(is_node_ready(proxy), "{other} is silent, too");
    }
    cluster.wait_until_ready(DEADLINE).map(drop)
}

/// Whether `after` is a later version of `before` whose status says nothing else.
fn repeats(before: &NodeProxy, after: &NodeProxy) -> bool {
    // What is no reason to write.
    let news = |proxy: &NodeProxy| NodeProxyStatus {
        last_sync_time: None,
        conntrack: None,
        drift: Vec::new(),
        ..status_of(proxy)
    };
    before.metadata.resource_version != after.metadata.resource_version
        && before.spec == after.spec
        && news(before) == news(after)
}

/// SIGTERM: the process exits successfully, and its rules stay.
pub(crate) fn stopped_agent(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.topology().node(NODE)?.clone();
    let mut flows = Flows::open(cluster.client_pod(NODE)?)?;
    let clients = cluster.start_clients(Duration::from_millis(10))?;
    let mut monitor = Monitor::start(&node)?;
    cluster.take_agent(NODE)?.stop(DEADLINE)?;
    flows.go_on()?;
    let seen = monitor.finish()?;
    ensure!(seen.is_empty(), "it took rules along:\n{}", seen.join("\n"));
    cluster.start_agent(NODE)?;
    cluster.wait_until_ready(DEADLINE)?;
    flows.go_on()?;
    clients.finish_unharmed()
}

/// An agent must not treat unreadable objects as absent. It loads its configuration from disk.
pub(crate) fn agent_without_api_server(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.topology().node(NODE)?.clone();
    let mut flows = Flows::open(cluster.client_pod(NODE)?)?;
    let clients = cluster.start_clients(Duration::from_millis(10))?;
    let mut monitor = Monitor::start(&node)?;
    // The token was issued earlier, as for a Pod that is restarted.
    let kubeconfig = cluster.kubeconfig_of_agent(NODE)?;
    cluster.control_plane_mut().stop_api_server();
    let restarted = cluster.take_agent(NODE).and_then(|agent| {
        agent.kill()?;
        let agent = cluster.start_agent_with(NODE, &kubeconfig)?;
        wait_for("the new agent to say what it waits for", DEADLINE, || {
            flows.go_on()?;
            let answer = cluster.ask_agent(NODE, "/readyz").ok();
            Ok(answer.filter(|(code, text)| *code == 503 && text.contains("list of Services")))
        })?;
        Ok(agent)
    });
    let seen = monitor.finish();
    cluster.control_plane_mut().start_api_server()?;
    let agent = restarted?;
    flows.go_on()?;
    let seen = seen?;
    ensure!(seen.is_empty(), "rules were written:\n{}", seen.join("\n"));
    wait_for(
        "the agent to have listed everything",
        CONTROLLERS_ARE_BACK_WITHIN,
        || {
            flows.go_on()?;
            let answer = cluster.ask_agent(NODE, "/readyz").ok();
            Ok(answer.filter(|(code, _)| *code == 200))
        },
    )?;
    flows.go_on()?;
    agent.stop(DEADLINE)?;
    cluster.start_agent(NODE)?;
    cluster.wait_until_ready(CONTROLLERS_ARE_BACK_WITHIN)?;
    clients.finish_unharmed()
}

/// Established connections, which must stay with their server.
#[derive(Debug)]
struct Flows {
    tcp: TcpStream,
    udp: UdpSocket,
    server: String,
}

// === impl Flows ===

impl Flows {
    fn open(inside: &Namespace) -> Result<Flows> {
        let to = cluster_address(Family::Ipv4);
        let (mut tcp, udp) = inside.enter(|| -> Result<(TcpStream, UdpSocket)> {
            let udp = UdpSocket::bind(SocketAddr::from(([0, 0, 0, 0], 0)))?;
            udp.connect(to)?;
            udp.set_read_timeout(Some(DEADLINE))?;
            let tcp = TcpStream::connect(to)?;
            tcp.set_read_timeout(Some(DEADLINE))?;
            Ok((tcp, udp))
        })??;
        // The server sends its name once.
        let mut greeting = [0; 128];
        ensure!(
            tcp.read(&mut greeting)? > 0,
            "a server closed the connection"
        );
        let server = ask_udp(&udp)?;
        Ok(Flows { tcp, udp, server })
    }

    /// Fails if a flow has ended or has moved to another server. The kernel removes a UDP flow
    /// after half a minute without packets, and later only if packets were sent after its first two
    /// seconds.
    fn go_on(&mut self) -> Result<()> {
        let question = b"still there?";
        self.tcp.write_all(question)?;
        let mut answer = [0; 12];
        self.tcp
            .read_exact(&mut answer)
            .context("an old TCP connection is dead")?;
        ensure!(
            answer == *question,
            "an old TCP connection answers {answer:?}"
        );
        let server = ask_udp(&self.udp).context("an old UDP flow is dead")?;
        ensure!(
            server == self.server,
            "a UDP flow moved from {} to {server}",
            self.server
        );
        Ok(())
    }
}

/// Returns the name of the server that a flow reaches.
fn ask_udp(socket: &UdpSocket) -> Result<String> {
    socket.send(b"who is there?")?;
    let mut answer = [0; 256];
    let length = socket.recv(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
    Ok(answer.split(' ').next().unwrap_or_default().to_owned())
}

/// Monitors all changes in the rules of a node.
#[derive(Debug)]
struct Monitor {
    node: Namespace,
    process: Process,
}

// === impl Monitor ===

impl Monitor {
    /// Starts monitoring; returns once the monitor has reported a first change, which this makes
    /// itself.
    fn start(node: &Namespace) -> Result<Monitor> {
        let mut command = node.command("stdbuf");
        command.args(["--output=L", "nft", "monitor"]);
        let process = Process::start("nft monitor", command)?;
        let mut monitor = Monitor {
            node: node.clone(),
            process,
        };
        wait_for("nft monitor to hear a change", DEADLINE, || {
            monitor.change("begins")?;
            Ok(monitor.process.next_line(Duration::from_millis(200)).ok())
        })?;
        monitor.change("heard")?;
        monitor.lines_until("heard")?;
        Ok(monitor)
    }

    /// Returns the changes since the start, without the monitor's own.
    fn finish(&mut self) -> Result<Vec<String>> {
        self.change("ends")?;
        let lines = self.lines_until("ends")?;
        // Every transaction adds a line with its generation number.
        Ok(lines
            .into_iter()
            .filter(|line| !line.starts_with("# new generation"))
            .collect())
    }

    /// Adds and removes a table of a family that Signpost does not use: adding an existing table
    /// would be no change.
    fn change(&self, name: &str) -> Result<()> {
        let table = format!("test-{name}");
        for action in ["add", "delete"] {
            let output = self
                .node
                .command("nft")
                .args([action, "table", "bridge", &table])
                .output()?;
            let complaint = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "nft failed: {complaint}");
        }
        Ok(())
    }

    /// Returns the lines before that of the monitor's own change, without earlier own changes.
    fn lines_until(&mut self, name: &str) -> Result<Vec<String>> {
        let expected = format!("test-{name}");
        let mut lines = Vec::new();
        loop {
            let line = self.process.next_line(DEADLINE)?;
            if line.contains(&expected) {
                return Ok(lines);
            }
            if !line.contains("test-") {
                lines.push(line);
            }
        }
    }
}

/// The parts of a node's object that the operator writes, and the proof of a write.
#[derive(Debug, PartialEq)]
struct Written {
    uid: Option<String>,
    generation: Option<i64>,
    content: Value,
}

fn observe_written(cluster: &Cluster) -> Result<BTreeMap<String, Written>> {
    let written = |proxy: NodeProxy| {
        let ObjectMeta {
            uid,
            generation,
            labels,
            annotations,
            owner_references,
            ..
        } = proxy.metadata;
        Written {
            uid,
            generation,
            content: json!([proxy.spec, labels, annotations, owner_references]),
        }
    };
    let proxies = cluster.observe_node_proxies()?.into_iter();
    Ok(proxies
        .map(|(name, proxy)| (name, written(proxy)))
        .collect())
}

pub(crate) fn operator(cluster: &mut Cluster) -> Result<()> {
    let before = observe_written(cluster)?;
    cluster.stop_operator()?;
    cluster.start_operator()?;
    cluster.wait_for_leader()?;
    // The operator's reactions to changes without effect on nodes prove that it has evaluated
    // everything and written its changes.
    for priority in [501, 500] {
        cluster.patch_profile("default", &json!({"priority": priority}))?;
        cluster.wait_until_ready(DEADLINE)?;
    }
    let after = observe_written(cluster)?;
    ensure!(after == before, "before: {before:#?}\nafter: {after:#?}");
    Ok(())
}

pub(crate) fn rollout(cluster: &mut Cluster) -> Result<()> {
    let before = cluster.observe_node_proxies()?;
    let clients = cluster.start_clients(Duration::from_millis(20))?;
    cluster.patch_profile("default", &json!({"minSyncPeriod": "30ms"}))?;
    let generation = |proxy: &NodeProxy| proxy.metadata.generation.unwrap_or_default();
    let changed = |name: &String, proxy: &NodeProxy| {
        before.get(name).map(generation) != Some(generation(proxy))
    };
    let seen = cluster.wait_for_node_proxies("the first node to change", DEADLINE, |proxies| {
        proxies.iter().any(|(name, proxy)| changed(name, proxy))
    })?;
    cluster.kill_operator()?;
    let at_death = seen
        .iter()
        .filter(|(name, proxy)| changed(name, proxy))
        .count();
    println!(
        "    the operator was killed when {at_death} of {} nodes were changed",
        seen.len()
    );
    // All agents keep running without the operator.
    cluster.ensure_agents_run()?;
    cluster.start_operator()?;
    cluster.wait_until_ready(DEADLINE)?;
    let after = cluster.observe_node_proxies()?;
    for (name, proxy) in &after {
        ensure!(is_node_ready(proxy), "{name} is not ready: {proxy:#?}");
        let times = generation(proxy) - before.get(name).map_or(0, generation);
        ensure!(
            times == 1,
            "{name} was given {times} configurations for one change"
        );
    }
    clients.finish_unharmed()
}
