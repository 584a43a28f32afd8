//! What `ipvsadm -Ln` lists and what `explain` prints are the same.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tests::deadline::{patience, wait_for};

use crate::stage::Stage;
use crate::{PATIENCE, contains_all};

/// A connection on one node takes far less.
const PROMPTLY: Duration = Duration::from_secs(5);

/// What the Services of the example lack: a hash, which has a flag, a scheduler that looks at loads, and
/// ports with more than one virtual server.
const SERVICES: &str = r#"
apiVersion: v1
kind: Service
metadata: {namespace: demo, name: cache, annotations: {signpost.dev/scheduler: maglev}}
spec:
  type: NodePort
  externalTrafficPolicy: Local
  ipFamilyPolicy: PreferDualStack
  ipFamilies: [IPv4, IPv6]
  clusterIP: 10.96.0.20
  clusterIPs: [10.96.0.20, "fd00:10:96::20"]
  ports:
  - {name: http, protocol: TCP, port: 80, nodePort: 30090}
---
apiVersion: v1
kind: Service
metadata: {namespace: demo, name: queue, annotations: {signpost.dev/scheduler: lc}}
spec:
  type: ClusterIP
  clusterIP: 10.96.0.21
  clusterIPs: [10.96.0.21]
  ipFamilies: [IPv4]
  ports:
  - {name: tasks, protocol: TCP, port: 70}
  - {name: notes, protocol: UDP, port: 70}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: demo, name: cache-ipv6, labels: {kubernetes.io/service-name: cache}}
addressType: IPv6
ports:
- {name: http, protocol: TCP, port: 9000}
endpoints:
- {addresses: ["fd00:10:0:1::5"], nodeName: node-1, conditions: {ready: true}}
- {addresses: ["fd00:10:0:2::7"], nodeName: node-2, conditions: {ready: true}}
"#;

/// Their slices of IPv4, without endpoints.
const SLICES: [&str; 2] = [
    r#"---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: demo, name: cache-ipv4, labels: {kubernetes.io/service-name: cache}}
addressType: IPv4
ports:
- {name: http, protocol: TCP, port: 9000}
"#,
    r#"---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: demo, name: queue-ipv4, labels: {kubernetes.io/service-name: queue}}
addressType: IPv4
ports:
- {name: tasks, protocol: TCP, port: 7001}
- {name: notes, protocol: UDP, port: 7002}
"#,
];
const ON_THE_NODE: &str = "endpoints:
- {addresses: [192.168.0.1], nodeName: node-1, conditions: {ready: true}}
";
const IN_PODS: &str = "endpoints:
- {addresses: [10.0.1.5], nodeName: node-1, conditions: {ready: true}}
- {addresses: [10.0.2.7], nodeName: node-2, conditions: {ready: true}}
";

/// The node's address, and an address and a port of each Service with the port of its endpoints.
const NODE: [u8; 4] = [192, 168, 0, 1];
const WAYS: [(([u8; 4], u16), u16); 2] =
    [(([10, 96, 0, 20], 80), 9000), (([10, 96, 0, 21], 70), 7001)];

/// The Services, with a port of each by the port of its endpoints.
const OWNERS: [(&str, u16, &str); 5] = [
    ("demo/web", 8080, "port http (tcp)"),
    ("demo/dns", 5353, "port dns (udp)"),
    ("demo/cache", 9000, "port http (tcp)"),
    ("demo/queue", 7001, "port tasks (tcp)"),
    ("demo/queue", 7002, "port notes (udp)"),
];

/// Virtual servers of other programs, by the options that create them.
const OTHERS: [&[&str]; 3] = [
    &["-t", "192.0.2.1:80", "-s", "wlc", "-p", "300"],
    &["-u", "[2001:db8::1]:53", "-s", "rr"],
    &["-f", "7", "-6", "-s", "rr"],
];
const NAMES_OF_OTHERS: [&str; 3] = ["TCP 192.0.2.1:80", "UDP [2001:db8::1]:53", "FWM 7 IPv6"];

/// A virtual server as `ipvsadm -Ln` lists it.
#[derive(Debug)]
struct Listed {
    /// `FWM 1396703233 IPv6` or `TCP 192.0.2.1:80`.
    name: String,
    scheduler: String,
    flags: String,
    destinations: Vec<ListedDestination>,
}

/// A destination as `ipvsadm -Ln` lists it, column by column.
#[derive(Debug)]
struct ListedDestination {
    address: SocketAddr,
    forward: String,
    weight: String,
    active: String,
    inactive: String,
}

/// Failure story T378: for a virtual server `explain` prints another scheduler, flag, endpoint, forwarding
/// method or weight than `ipvsadm -Ln`, names another Service, or passes it over.
pub(super) fn lists_what_is_explained(stage: &Stage) -> Result<()> {
    let _open = drain_endpoints(stage)?;
    for other in OTHERS {
        stage.ipvsadm(&[&["-A"], other].concat())?;
    }
    let listed = list(stage)?;
    let (others, own): (Vec<_>, Vec<_>) = listed
        .into_iter()
        .partition(|server| NAMES_OF_OTHERS.contains(&&*server.name));
    ensure!(others.len() == OTHERS.len(), "{others:?}");

    for server in &own {
        let text = stage.agent.ask(&["explain", &server.name])?;
        expect_owner(server, &text)?;
        let (mut printed, expected) = (printed(&text), server.lines());
        // An address may lead to more than one.
        printed.retain(|line| server.is_named_in(line));
        ensure!(printed == expected, "{printed:#?}\nand not\n{expected:#?}");
    }

    let services: BTreeSet<&str> = OWNERS.iter().map(|(service, ..)| *service).collect();
    let mut explained = BTreeSet::new();
    for service in services {
        let text = stage.agent.ask(&["explain", service])?;
        explained.extend(printed(&text));
        let words: Vec<&str> = text.split_whitespace().collect();
        contains_all(&words.join(" "), &NAMES_OF_OTHERS)?;
    }
    let expected: BTreeSet<String> = own.iter().flat_map(Listed::lines).collect();
    ensure!(
        explained == expected,
        "{explained:#?}\nand not\n{expected:#?}"
    );
    expect_variety(&own)
}

/// Failure story T378: another program changes what Signpost wrote, and `explain` names the change in
/// other words than `ipvsadm`, or not at all.
pub(super) fn lists_what_is_explained_to_differ(stage: &Stage) -> Result<()> {
    serve(stage, IN_PODS)?;
    let endpoint = SocketAddr::from(([10, 0, 1, 5], 7001));
    let server = wait_for("a virtual server of the Service", PATIENCE, || {
        let mut own = list(stage)?.into_iter();
        Ok(own.find(|server| server.destination(endpoint).is_some()))
    })?;
    let name = server.name;
    let mark = name.trim_start_matches("FWM ");
    // The agent repairs the first changes at once, and leaves the mark: the Service asks for no hash.
    wait_for("all changes to be explained", PATIENCE, || {
        let scheduler = ["-s", "mh", "-b", "mh-fallback,mh-port", "--ops"];
        stage.ipvsadm(&[&["-E", "-f", mark][..], &scheduler].concat())?;
        let destination = ["-r", &endpoint.to_string(), "-i", "-w", "3"];
        stage.ipvsadm(&[&["-e", "-f", mark][..], &destination].concat())?;
        let mut listed = list(stage)?.into_iter();
        let listed = listed.find(|server| server.name == name);
        let listed = listed.context("the virtual server is gone")?;
        let changed = listed.destination(endpoint).context("it is gone")?;
        let (text, agrees) = stage.agent.compare(&["explain", "demo/queue"])?;
        let expected = [listed.line(), changed.line(&name)];
        let are_named = expected
            .iter()
            .all(|line| text.contains(&format!("\n      in the kernel: {line}\n")));
        Ok((are_named && !agrees).then_some(()))
    })
}

/// Has a connection to an endpoint of each Service, all of which then leave: it gets weight 0. Of a hash
/// so does its whole virtual server, in whose place another one comes.
fn drain_endpoints(stage: &Stage) -> Result<Vec<(TcpListener, TcpStream)>> {
    // It has no device, and no route, but that to itself.
    let to_itself = "route add 10.96.0.0/16 dev lo src 192.168.0.1";
    stage.node.configure(to_itself)?;
    serve(stage, ON_THE_NODE)?;
    wait_for_weights(stage, NODE, "1")?;
    let mut open = Vec::new();
    for (address, port) in WAYS {
        let listener = stage
            .node
            .enter(|| TcpListener::bind(SocketAddr::from((NODE, port))))??;
        let connected = stage
            .node
            .enter(|| TcpStream::connect_timeout(&address.into(), patience(PROMPTLY)))?;
        let connected = connected.with_context(|| format!("{address:?} does not answer"))?;
        open.push((listener, connected));
    }
    serve(stage, IN_PODS)?;
    wait_for_weights(stage, [10, 0, 2, 7], "1")?;
    wait_for_weights(stage, NODE, "0")?;
    Ok(open)
}

/// Waits until every Service has an endpoint at this address, wherever it is listed with this weight.
fn wait_for_weights(stage: &Stage, address: [u8; 4], weight: &str) -> Result<()> {
    wait_for("endpoints with these weights", PATIENCE, || {
        let own = list(stage)?;
        let are_so = WAYS.iter().all(|(_, port)| {
            let endpoint = SocketAddr::from((address, *port));
            let listed = own.iter().filter_map(|own| own.destination(endpoint));
            let weights: BTreeSet<&str> = listed.map(|listed| &*listed.weight).collect();
            weights == [weight].into()
        });
        Ok(are_so.then_some(()))
    })
}

/// Writes the Services, with these endpoints of IPv4.
fn serve(stage: &Stage, endpoints: &str) -> Result<()> {
    let slices = SLICES.map(|slice| format!("{slice}{endpoints}"));
    stage.write_manifest("services.yaml", &format!("{SERVICES}{}", slices.concat()))
}

/// The virtual servers in the kernel, by `ipvsadm`.
fn list(stage: &Stage) -> Result<Vec<Listed>> {
    let text = stage.ipvsadm(&["-Ln"])?;
    let mut listed: Vec<Listed> = Vec::new();
    // Below a line about the version and two of titles.
    for line in text.lines().skip(3) {
        let columns: Vec<&str> = line.split_whitespace().collect();
        match columns[..] {
            ["->", address, forward, weight, active, inactive] => {
                let server = listed.last_mut().context("a destination comes first")?;
                server.destinations.push(ListedDestination {
                    address: address.parse()?,
                    forward: forward.to_owned(),
                    weight: weight.to_owned(),
                    active: active.to_owned(),
                    inactive: inactive.to_owned(),
                });
            }
            [kind, number, ref rest @ ..] => {
                let (family, rest) = match rest {
                    ["IPv6", rest @ ..] => (" IPv6", rest),
                    rest => ("", rest),
                };
                let (scheduler, flags) = rest.split_first().context("it has no scheduler")?;
                listed.push(Listed {
                    name: format!("{kind} {number}{family}"),
                    scheduler: (*scheduler).to_owned(),
                    flags: flags.iter().map(|flag| format!(" {flag}")).collect(),
                    destinations: Vec::new(),
                });
            }
            _ => bail!("{line:?} is no line of ipvsadm"),
        }
    }
    Ok(listed)
}

/// The lines of an explanation about virtual servers and destinations. What is marked with `!`
/// stays so.
fn printed(text: &str) -> BTreeSet<String> {
    let text = text.replace("\n        ", " ");
    let lines = text.lines().map(str::trim_start);
    let lines = lines.map(|line| line.strip_prefix("draining: ").unwrap_or(line));
    let are_of_servers = |line: &&str| line.contains("virtual server FWM") || line.contains(" -> ");
    lines.filter(are_of_servers).map(str::to_owned).collect()
}

/// An explanation begins with the Service of the virtual server that it was asked about, or says that it
/// stays for its connections.
fn expect_owner(server: &Listed, text: &str) -> Result<()> {
    let Listed {
        name, destinations, ..
    } = server;
    let family = match name.ends_with("IPv6") {
        true => "IPv6",
        false => "IPv4",
    };
    let port = destinations.first().map(|own| own.address.port());
    let owner = OWNERS.iter().find(|(_, own, _)| Some(*own) == port);
    let (service, _, port) = owner.with_context(|| format!("no Service has {server:?}"))?;
    let owner = match destinations.iter().all(|own| own.weight == "0") {
        true => format!("Signpost's for {family} that no address leads to any more"),
        false => format!("Service {service}, {port} for {family}"),
    };
    let expected = format!("{name} is a virtual server of {owner}");
    ensure!(text.starts_with(&expected), "no {expected:?} in:\n{text}");
    Ok(())
}

/// What was compared has every form that Signpost writes.
fn expect_variety(own: &[Listed]) -> Result<()> {
    let lines: Vec<String> = own.iter().flat_map(Listed::lines).collect();
    for part in [
        " IPv6, scheduler rr",
        "scheduler mh (mh-fallback)",
        "scheduler lc",
        "10.0.2.7:7002, Masq, weight 1, 0 active",
        "192.168.0.1:7001, Masq, weight 0, 1 active",
        "192.168.0.1:9000, Masq, weight 0, 1 active",
    ] {
        let has_it = lines.iter().any(|line| line.contains(part));
        ensure!(has_it, "no {part:?} in {lines:#?}");
    }
    let of_cache = lines.iter().filter(|line| line.contains("scheduler mh"));
    ensure!(of_cache.count() > 2, "one of each family: {lines:#?}");
    Ok(())
}

// === impl Listed ===

impl Listed {
    fn destination(&self, address: SocketAddr) -> Option<&ListedDestination> {
        let mut destinations = self.destinations.iter();
        destinations.find(|destination| destination.address == address)
    }

    /// Whether a line of `explain` is about it.
    fn is_named_in(&self, line: &str) -> bool {
        line.starts_with(&format!("virtual server {},", self.name))
            || line.starts_with(&format!("{} -> ", self.name))
    }

    /// As `explain` prints it.
    fn line(&self) -> String {
        let Listed {
            name,
            scheduler,
            flags,
            ..
        } = self;
        format!("virtual server {name}, scheduler {scheduler}{flags}")
    }

    /// The same with all destinations and their connections.
    fn lines(&self) -> BTreeSet<String> {
        let destinations = self.destinations.iter().map(|destination| {
            let ListedDestination {
                active, inactive, ..
            } = destination;
            let line = destination.line(&self.name);
            format!("{line}, {active} active, {inactive} inactive connections")
        });
        destinations.chain([self.line()]).collect()
    }
}

// === impl ListedDestination ===

impl ListedDestination {
    /// As `explain` prints it, without its connections.
    fn line(&self, server: &str) -> String {
        let ListedDestination {
            address,
            forward,
            weight,
            ..
        } = self;
        format!("{server} -> {address}, {forward}, weight {weight}")
    }
}
