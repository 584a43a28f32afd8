//! Established connections to Services bypass all rules on the interfaces that a profile selects, and
//! nothing else about them changes. A kernel without flowtables serves everything as before, and the node
//! says so.
//!
//! A counter in a chain of another program shows which packets traverse the rules of the node.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::condition::FEATURES_HONOURED;
use libtest_mimic::Arguments;
use testkit::address_plan as addresses;
use tests::deadline::{patience, wait_for};
use tests::forwarding_node::connect;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{Link, Namespace, Network, enter_private_namespaces};
use tests::trial::trial;

/// How long the agent may take for anything.
const PROMPTLY: Duration = Duration::from_secs(30);
/// How long an answer may take: far more than it does.
const ANSWERED: Duration = Duration::from_secs(10);
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const PORT: u16 = 80;
/// The endpoints, both in the namespace of the server.
const ENDPOINT: Ipv4Addr = Ipv4Addr::new(192, 168, 2, 2);
const OTHER_ENDPOINT: Ipv4Addr = Ipv4Addr::new(192, 168, 2, 3);
const SERVED: u16 = 8080;
/// How often a question is asked to see whether it is counted.
const QUESTIONS: u32 = 50;
/// What selects the two interfaces of the node, and one that comes later.
const SELECTED: &str = "{flowtableInterfaces: [client, 'serv*', 'late*']}";
const UNSELECTED: &str = "{}";
/// Counts the packets of connections to the Service by the interface on which they arrive, after DNAT.
const WITNESS: &str = "
    table ip witness {
        counter client {}
        counter server {}
        counter late {}
        chain forward {
            type filter hook forward priority 0;
            iifname client counter name client
            iifname server counter name server
            iifname late counter name late
        }
    }";

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let has_flowtables = has_flowtables()?;
    match has_flowtables {
        true => println!("SKIPPED: a kernel without flowtables: this one has them"),
        false => println!("SKIPPED: connections in a flowtable: this kernel has none"),
    }
    let trials = vec![
        trial(
            "established_connections_bypass_the_rules_where_the_profile_selects_it",
            bypass,
        )
        .with_ignored_flag(!has_flowtables),
        trial(
            "a_kernel_without_flowtables_serves_everything_and_the_node_says_so",
            without_flowtables,
        )
        .with_ignored_flag(has_flowtables),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn has_flowtables() -> Result<bool> {
    let mut network = Network::new()?;
    let [namespace] = network.add_namespaces(["asked"])?;
    let flowtable = "add table ip asked; add flowtable ip asked f { hook ingress priority 0; }";
    Ok(namespace.nft(&[flowtable]).is_ok())
}

/// A client, a node with an agent, and a server.
struct Stage {
    agent: LoneAgent,
    client: Namespace,
    node: Namespace,
    manifests: PathBuf,
    listeners: [TcpListener; 2],
    network: Network,
    _folder: tempfile::TempDir,
}

/// Both ends of a connection through the Service.
struct Connection {
    client: TcpStream,
    server: TcpStream,
}

fn bypass() -> Result<()> {
    let mut stage = Stage::start(UNSELECTED)?;
    let mut connection = stage.connect(&stage.client, 0)?;
    let counted = stage.counted(|| connection.ask(QUESTIONS))?;
    ensure!(
        counted[0] >= QUESTIONS && counted[1] >= QUESTIONS,
        "the witness sees {counted:?} of {QUESTIONS} questions and answers"
    );
    ensure!(
        !stage
            .node
            .nft(&["list", "ruleset"])?
            .contains("established {"),
        "it is on"
    );

    stage.select(SELECTED)?;
    stage.wait_for_devices(&["client", "server"])?;
    stage.expect_bypass(&mut connection, "one that began before")?;
    let tracked = stage
        .node
        .enter(|| fs::read_to_string("/proc/thread-self/net/nf_conntrack"))??;
    ensure!(tracked.contains("[OFFLOAD]"), "conntrack has\n{tracked}");
    connection.carry_a_megabyte()?;
    let mut another = stage.connect(&stage.client, 0)?;
    stage.expect_bypass(&mut another, "one that began after")?;

    // Another program deletes it.
    let repaired = stage.agent.metric("signpost_drift_total")?;
    stage.node.nft(&["flush chain ip signpost filter-forward-established; delete flowtable ip signpost established"])?;
    connection.ask(1)?;
    stage.wait_for_devices(&["client", "server"])?;
    stage.expect_bypass(&mut connection, "one whose flowtable was deleted")?;
    let repairs = stage.agent.metric("signpost_drift_total")? - repaired;
    ensure!(repairs == 1.0, "{repairs} repairs of one change");

    // An interface comes.
    let [late] = stage.network.add_namespaces(["late"])?;
    let link = Link {
        from: (&late, "uplink"),
        to: (&stage.node, "late"),
    };
    stage.network.add_links(&[link])?;
    stage
        .node
        .configure("link set late up\naddr add 10.201.0.1/24 dev late\n")?;
    late.configure(
        "link set uplink up\naddr add 10.201.0.2/24 dev uplink\nroute add default via 10.201.0.1\n",
    )?;
    late.wait_for_links()?;
    stage.wait_for_devices(&["client", "late", "server"])?;
    let mut of_late = stage.connect(&late, 0)?;
    stage.expect_bypass(&mut of_late, "one of an interface that came")?;
    // Another one takes its name, before the agent has listed interfaces. The kernel removes the first one
    // from the flowtable by itself.
    drop(of_late);
    let other = "link delete late\nlink add late type veth peer name again\n";
    stage.node.configure(other)?;
    stage.wait_for_devices(&["client", "late", "server"])?;
    // It is renamed, and the profile does not select its new name. Then it goes.
    stage
        .node
        .configure("link set late down\nlink set late name other\n")?;
    stage.wait_for_devices(&["client", "server"])?;
    stage.node.configure("link delete other\n")?;
    stage.wait_for_devices(&["client", "server"])?;
    stage.expect_bypass(&mut connection, "one of an interface that stays")?;

    // The endpoint leaves: as without a flowtable, its connections go on and new ones go elsewhere.
    stage.write(SELECTED, OTHER_ENDPOINT)?;
    let mut elsewhere = stage.agent.wait_for("the other endpoint", |_| {
        Ok(stage.connect(&stage.client, 1).ok())
    })?;
    stage.expect_bypass(&mut elsewhere, "one to the other endpoint")?;
    stage.expect_bypass(&mut connection, "one to the endpoint that left")?;
    elsewhere.end()?;

    stage.select(UNSELECTED)?;
    wait_for("the flowtable to go", patience(PROMPTLY), || {
        let rules = stage.node.nft(&["list", "ruleset"])?;
        Ok((!rules.contains("established")).then_some(()))
    })?;
    connection.ask(1)?;
    let counted = stage.counted(|| connection.ask(QUESTIONS))?;
    ensure!(
        counted[0] >= QUESTIONS && counted[1] >= QUESTIONS,
        "without a flowtable the witness sees {counted:?}"
    );
    connection.end()?;
    another.end()?;
    ensure!(stage.agent.is_ready(), "{}", stage.agent.log());
    let log = stage.agent.log();
    ensure!(!log.contains("failed to commit"), "{log}");
    Ok(())
}

fn without_flowtables() -> Result<()> {
    let mut stage = Stage::start(SELECTED)?;
    let honoured = stage.agent.wait_for("a report", |agent| {
        let honoured = agent.condition(FEATURES_HONOURED)?;
        Ok(honoured.filter(|honoured| honoured.status == "False"))
    })?;
    let says = "nftables.flowtableInterfaces has no effect";
    ensure!(honoured.message.contains(says), "{}", honoured.message);
    println!("    {}", honoured.message);
    let mut connection = stage.connect(&stage.client, 0)?;
    let counted = stage.counted(|| connection.ask(QUESTIONS))?;
    ensure!(counted[0] >= QUESTIONS, "{counted:?}");
    connection.end()?;
    ensure!(
        !stage.agent.log().contains("ERROR"),
        "{}",
        stage.agent.log()
    );
    // Turned off, there is nothing to report.
    stage.select(UNSELECTED)?;
    stage.agent.wait_for("another report", |agent| {
        let honoured = agent.condition(FEATURES_HONOURED)?;
        Ok(honoured.filter(|honoured| honoured.status == "True"))
    })?;
    Ok(())
}

// === impl Stage ===

impl Stage {
    fn start(nftables: &str) -> Result<Stage> {
        let mut network = Network::new()?;
        let [client, node, server] = network.add_namespaces(["client", "node", "server"])?;
        let more = format!("addr add {OTHER_ENDPOINT}/24 dev uplink\n");
        connect(&network, [&client, &node, &server], "10.200.0", [&more, ""])?;
        for namespace in [&client, &node, &server] {
            namespace.wait_for_links()?;
        }
        node.nft(&[WITNESS])?;
        let listen = |address: Ipv4Addr| -> Result<TcpListener> {
            Ok(server.enter(|| TcpListener::bind((address, SERVED)))??)
        };
        let listeners = [listen(ENDPOINT)?, listen(OTHER_ENDPOINT)?];
        let folder = tempfile::tempdir()?;
        let manifests = folder.path().join("manifests");
        fs::create_dir(&manifests)?;
        fs::write(manifests.join("all.yaml"), objects(nftables, ENDPOINT))?;
        let agent = LoneAgent::start(&Workplace {
            node: node.clone(),
            source: Source::Manifests(manifests.clone()),
            folder: folder.path().to_owned(),
            sysctls: Sysctls::Writable,
            deadline: patience(PROMPTLY),
        })?;
        agent.wait_until_ready()?;
        Ok(Stage {
            agent,
            client,
            node,
            manifests,
            listeners,
            network,
            _folder: folder,
        })
    }

    fn select(&mut self, nftables: &str) -> Result<()> {
        self.write(nftables, ENDPOINT)
    }

    fn write(&mut self, nftables: &str, endpoint: Ipv4Addr) -> Result<()> {
        Ok(fs::write(
            self.manifests.join("all.yaml"),
            objects(nftables, endpoint),
        )?)
    }

    /// Waits until the flowtables of both families have exactly these devices, and the rule.
    fn wait_for_devices(&self, devices: &[&str]) -> Result<()> {
        let list = devices.join(", ");
        let what = format!("flowtables with {list}");
        self.agent.wait_for(&what, |_| {
            let listed = self.node.nft(&["list", "ruleset"])?;
            let devices = format!("devices = {{ {list} }}");
            let quoted = format!("devices = {{ \"{}\" }}", list.replace(", ", "\", \""));
            let is_complete =
                listed.matches(&devices).count() == 2 || listed.matches(&quoted).count() == 2;
            let rules = listed.matches("flow add @established").count();
            Ok((is_complete && rules == 2).then_some(()))
        })
    }

    /// A connection from `client` to the Service, which this listener must get.
    fn connect(&self, client: &Namespace, listener: usize) -> Result<Connection> {
        let service = SocketAddr::from((SERVICE, PORT));
        let listener = &self.listeners[listener];
        listener.set_nonblocking(true)?;
        let client =
            client.enter(|| TcpStream::connect_timeout(&service, patience(ANSWERED)))??;
        let accept = || match listener.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        };
        // It is there once the client is connected.
        let server = wait_for("the connection", Duration::from_secs(1), accept)?;
        server.set_nonblocking(false)?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(patience(ANSWERED)))?;
        }
        Ok(Connection { client, server })
    }

    /// How many packets the witness counts during `work`, by the interface on which they arrive.
    fn counted(&self, work: impl FnOnce() -> Result<()>) -> Result<[u32; 3]> {
        let before = self.packets()?;
        work()?;
        let after = self.packets()?;
        Ok([0, 1, 2].map(|at| after[at] - before[at]))
    }

    fn packets(&self) -> Result<[u32; 3]> {
        let packets = |name: &str| -> Result<u32> {
            let listed = self.node.nft(&["list", "counter", "ip", "witness", name])?;
            let mut words = listed
                .split_whitespace()
                .skip_while(|word| *word != "packets");
            let number = words.nth(1).context("a number of packets")?;
            Ok(number.parse()?)
        };
        Ok([packets("client")?, packets("server")?, packets("late")?])
    }

    /// Fails unless questions and answers soon traverse no rules.
    fn expect_bypass(&self, connection: &mut Connection, which: &str) -> Result<()> {
        // The first packets take the connection there.
        connection.ask(3)?;
        let counted = self.counted(|| connection.ask(QUESTIONS))?;
        println!("    {which}: {counted:?} of {QUESTIONS} traversed the rules");
        ensure!(
            counted == [0; 3],
            "{which}: {counted:?} traversed the rules"
        );
        Ok(())
    }
}

// === impl Connection ===

impl Connection {
    fn ask(&mut self, times: u32) -> Result<()> {
        for number in 0..times {
            let question = number.to_be_bytes();
            let mut received = [0; 4];
            self.client.write_all(&question)?;
            self.server
                .read_exact(&mut received)
                .context("no question")?;
            self.server.write_all(&received)?;
            self.client.read_exact(&mut received).context("no answer")?;
            ensure!(received == question, "{received:?} instead of {question:?}");
        }
        Ok(())
    }

    /// Carries a megabyte in each direction, unharmed.
    fn carry_a_megabyte(&self) -> Result<()> {
        let sent: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_be_bytes).collect();
        for (mut from, mut to) in [(&self.client, &self.server), (&self.server, &self.client)] {
            let mut received = vec![0; sent.len()];
            std::thread::scope(|scope| -> Result<()> {
                let writer = scope.spawn(|| from.write_all(&sent));
                to.read_exact(&mut received)?;
                Ok(writer.join().expect("it does not panic")?)
            })?;
            ensure!(received == sent, "the data has changed");
        }
        Ok(())
    }

    /// Ends it from both sides, as it ends without a flowtable.
    fn end(mut self) -> Result<()> {
        self.client.shutdown(Shutdown::Write)?;
        let read = self.server.read(&mut [0; 4]).context("no end")?;
        ensure!(read == 0, "something arrived after the end");
        self.server.shutdown(Shutdown::Write)?;
        let read = self.client.read(&mut [0; 4]).context("no end")?;
        ensure!(read == 0, "something arrived after the end");
        Ok(())
    }
}

/// A Node, a Service with this endpoint, and a profile with this section.
fn objects(nftables: &str, endpoint: Ipv4Addr) -> String {
    let node = addresses::NODE;
    format!(
        "apiVersion: signpost.dev/v1alpha1
kind: ProxyProfile
metadata: {{name: default}}
spec: {{nftables: {nftables}, syncPeriod: 5s}}
---
apiVersion: v1
kind: Node
metadata: {{name: {node}}}
status: {{addresses: [{{type: InternalIP, address: 192.168.2.1}}]}}
---
apiVersion: v1
kind: Service
metadata: {{namespace: shop, name: web}}
spec:
  clusterIP: {SERVICE}
  clusterIPs: [{SERVICE}]
  ipFamilies: [IPv4]
  ports: [{{protocol: TCP, port: {PORT}}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{namespace: shop, name: web-1, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: \"\", protocol: TCP, port: {SERVED}}}]
endpoints: [{{addresses: [{endpoint}], nodeName: elsewhere, conditions: {{ready: true}}}}]
"
    )
}
