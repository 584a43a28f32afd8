//! Endpoints that send without being asked, over connections that are open while another program
//! removes all tables.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use conntrack::KeptHooks;
use dataplane::Family;
use runtime::chain;
use testkit::address_plan as addresses;
use tests::deadline::wait_for;
use tests::lone_agent::LoneAgent;
use tests::network::{Plan, PlannedNode, Topology};

use crate::manifests;
use crate::node::{Node, PROMPTLY, Place, SERVING, shell};

/// The number of the Service, and the port of its endpoint.
const SERVICE: u8 = 90;
const PORT: u16 = 9000;
/// The time between two bytes.
const EVERY: Duration = Duration::from_millis(2);
/// The number of bytes that show that a connection goes on.
const SOME: u64 = 100;
/// How often all tables are removed.
const FLUSHES: usize = 5;

/// Failure story T356: nftables.service was restarted, which removes all tables. An endpoint's next
/// answer reached the client from the endpoint's own address, the client reset the connection, and a
/// download or a watch ended. In mode ipvs the repair removed the virtual servers with their connections
/// (T358).
pub(crate) fn connections_outlive_a_flushed_ruleset(place: Place) -> Result<()> {
    let node = Node::start(place)?;
    let received = begin(&node)?;
    wait_for("the tables that keep the hooks", PROMPTLY, || {
        let tables = node.nft("list tables")?;
        let has = |family: &str| tables.contains(&format!("table {family} signpost-hooks-"));
        Ok((has("ip") && has("ip6")).then_some(()))
    })?;
    for _ in 0..FLUSHES {
        node.nft("flush ruleset")?;
        wait_for("the repair", PROMPTLY, || Ok(node.answers()?.then_some(())))?;
        wait_until_each_goes_on(&received)?;
    }
    Ok(())
}

/// Failure story T366: in mode ipvs no agent ran while all tables were removed. The next one knew no owner
/// of a virtual server, so it removed all of them with their connections.
pub(crate) fn connections_outlive_a_flush_while_no_agent_runs() -> Result<()> {
    let mut node = Node::start(Place::Ipvs)?;
    let received = begin(&node)?;
    let workplace = node.workplace().clone();
    node.agent.kill()?;
    shell(&workplace, "nft flush ruleset")?;
    node.agent = LoneAgent::start(&workplace)?;
    wait_for("the next agent", PROMPTLY, || {
        Ok(node.answers()?.then_some(()))
    })?;
    wait_until_each_goes_on(&received)
}

/// Failure story T357: an administrator saved the ruleset of a node. When nftables.service was
/// restarted later, the kernel refused the file, because it contains a table that belongs to the agent,
/// and the node had no firewall.
pub(crate) fn a_saved_ruleset_can_be_loaded_again() -> Result<()> {
    let topology = Topology::build(&Plan {
        nodes: vec![PlannedNode {
            number: 1,
            pods: BTreeSet::new(),
        }],
        ..Plan::default()
    })?;
    let node = topology.node(1)?;
    node.nft(&["add table inet firewall"])?;
    let mut hooks = node.enter(|| KeptHooks::commit(Family::Ipv4))??;
    let saved = node.nft(&["list", "ruleset"])?;
    ensure!(saved.contains("flags owner"), "{saved}");
    wait_for("the next name", PROMPTLY, || {
        hooks.renew()?;
        let tables = node.nft(&["list", "tables"])?;
        let is_saved = |table: &str| table.contains("hooks") && saved.contains(table);
        Ok((!tables.lines().any(is_saved)).then_some(()))
    })?;
    node.nft(&["flush", "ruleset"])?;
    node.nft(&[&saved])
        .context("the saved ruleset is refused")?;
    let loaded = node.nft(&["list", "tables"])?;
    ensure!(loaded.contains("table inet firewall"), "{loaded}");
    Ok(())
}

/// Returns why a kernel cannot keep the hooks, if it cannot.
pub(crate) fn find_unable() -> Option<String> {
    let error = KeptHooks::commit(Family::Ipv4).err()?;
    Some(chain(&error).to_string())
}

/// Connects to a Service whose endpoint sends over each connection, once over each family.
fn begin(node: &Node) -> Result<Vec<(Family, Arc<AtomicU64>)>> {
    let manifest = manifests::folder(&node.workplace().folder).join("pushing.yaml");
    fs::write(manifest, service()?)?;
    let mut received = Vec::new();
    for family in Family::ALL {
        lead_nowhere(node, family)?;
        listen(node, family)?;
        received.push((family, connect(node, family)?));
    }
    wait_until_each_goes_on(&received)?;
    Ok(received)
}

/// Waits until the client of each connection has received more.
fn wait_until_each_goes_on(received: &[(Family, Arc<AtomicU64>)]) -> Result<()> {
    for (family, count) in received {
        let before = count.load(Ordering::Relaxed);
        let more = || Ok((count.load(Ordering::Relaxed) >= before + SOME).then_some(()));
        wait_for("more of what the endpoint sends", PROMPTLY, more)
            .with_context(|| format!("the connection over {family} was lost"))?;
    }
    Ok(())
}

/// Drops packets that no rule redirects, as hosts beyond most nodes do. In mode ipvs those of a client are
/// among them while the rules are missing. Where a router sends them back, the node sends a redirect, and
/// the client does not send by way of the node for as long as it believes that.
fn lead_nowhere(node: &Node, family: Family) -> Result<()> {
    let service = addresses::cluster_ip(SERVICE, family);
    node.shell(&format!("ip route add blackhole {service}"))?;
    Ok(())
}

/// Starts an endpoint that sends a byte every few milliseconds over its first connection.
fn listen(node: &Node, family: Family) -> Result<()> {
    let address = addresses::pod_address(1, SERVING[0], family);
    let listener = node
        .pod(SERVING[0])?
        .enter(|| TcpListener::bind(SocketAddr::new(address, PORT)))??;
    thread::spawn(move || {
        let Ok((mut connection, _)) = listener.accept() else {
            return;
        };
        // Fails once the client has ended.
        while connection.write_all(b".").is_ok() {
            thread::sleep(EVERY);
        }
    });
    Ok(())
}

/// Connects the client pod; returns how many bytes it has received.
fn connect(node: &Node, family: Family) -> Result<Arc<AtomicU64>> {
    let service = SocketAddr::new(addresses::cluster_ip(SERVICE, family), 80);
    let mut connection = wait_for("a connection to the Service", PROMPTLY, || {
        let connecting = || TcpStream::connect_timeout(&service, Duration::from_secs(1));
        Ok(node.asking()?.enter(connecting)?.ok())
    })?;
    let received = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&received);
    thread::spawn(move || {
        let mut bytes = [0; 256];
        while let Ok(some @ 1..) = connection.read(&mut bytes) {
            count.fetch_add(u64::try_from(some).unwrap_or(0), Ordering::Relaxed);
        }
    });
    Ok(received)
}

/// Returns the manifest of the Service.
fn service() -> Result<String> {
    let [ipv4, ipv6] = Family::ALL.map(|family| addresses::cluster_ip(SERVICE, family));
    let mut text = format!(
        r#"apiVersion: v1
kind: Service
metadata: {{namespace: others, name: pushing}}
spec:
  ipFamilies: [IPv4, IPv6]
  clusterIP: {ipv4}
  clusterIPs: [{ipv4}, "{ipv6}"]
  ports: [{{name: http, protocol: TCP, port: 80}}]
"#
    );
    for family in Family::ALL {
        let endpoint = addresses::pod_address(1, SERVING[0], family);
        let name = family.to_string().to_lowercase();
        write!(
            text,
            r#"---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{namespace: others, name: pushing-{name}, labels: {{kubernetes.io/service-name: pushing}}}}
addressType: {family}
ports: [{{name: http, protocol: TCP, port: {PORT}}}]
endpoints: [{{addresses: ["{endpoint}"], nodeName: node-1, conditions: {{ready: true}}}}]
"#
        )?;
    }
    Ok(text)
}
