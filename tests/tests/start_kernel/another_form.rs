//! A table left by another version serves until the new version does. Failure story T87.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use backend::{Backend, Rendered};
use backend_nftables::{NEXT, Nftables, TABLE};
use dataplane::{Dataplane, Family, Protocol};
use netlink::Socket;
use testkit::address_plan as addresses;
use tests::network::{
    Connections, Kind, Namespace, Plan, PlannedNode, Server, Topology, Way, start_server,
};
use tests::programmed::program;

use crate::many;

/// The serving pod, with a server on [`SERVED`], and the client pod.
const SERVING: u8 = 5;
const ASKING: u8 = 9;
const SERVED: u16 = 8080;
/// A cluster IP after all others, so that it is written last.
const SERVICE: ([u8; 4], u16) = ([10, 96, 250, 10], 80);
/// The interval between two connections of one client.
const EVERY: Duration = Duration::from_millis(5);
/// The maximum number of transactions before the test fails for lack of progress.
const ENOUGH: usize = 40;

/// The leftovers of an older version.
#[derive(Debug, Clone, Copy)]
enum Left {
    /// A table with one Service, and a map with the name of one of this version but with other
    /// values.
    OtherMap,
    /// The same table that this version writes, except that NAT has the usual priority.
    OtherPriority,
}

/// A node with clients that connect through a table from another version.
struct Stage {
    clients: Connections,
    dataplane: Dataplane,
    _server: Server,
    topology: Topology,
}

// === impl Stage ===

impl Stage {
    fn start(left: Left) -> Result<Stage> {
        let topology = Topology::build(&Plan {
            nodes: vec![PlannedNode {
                number: 1,
                pods: [SERVING, ASKING].into(),
            }],
            ..Plan::default()
        })?;
        let endpoint = addresses::pod_address(1, SERVING, Family::Ipv4);
        let listening = [SocketAddr::new(endpoint, SERVED)];
        let server = start_server(topology.pod(1, SERVING)?, "pod-5", &listening)?;
        let node = topology.node(1)?;
        let (address, port) = SERVICE;
        let address = IpAddr::from(address);
        let mut dataplane = many();
        let service = testkit::mk_service("shop/web")
            .cluster_ip(&address.to_string())
            .port("http", port)
            .build();
        let endpoints = testkit::mk_endpoints()
            .tcp("http")
            .ready(&format!("{endpoint}:{SERVED}"), "node-1")
            .build();
        let rules = dataplane::compile(&service, &endpoints, dataplane.node(), dataplane.config());
        dataplane.set(rules.into());
        match left {
            Left::OtherMap => leave_other_map(node, SocketAddr::new(endpoint, SERVED))?,
            Left::OtherPriority => leave_other_priority(node, &dataplane)?,
        }
        let way = |from: &str, inside: &Namespace| Way {
            from: from.to_owned(),
            inside: inside.clone(),
            protocol: Protocol::Tcp,
            destination: SocketAddr::new(address, port),
        };
        let ways = [
            way("a pod", topology.pod(1, ASKING)?),
            way("the node", node),
        ];
        let clients = Connections::start(&ways, &[Kind::New, Kind::Kept], EVERY)?;
        Ok(Stage {
            clients,
            dataplane,
            _server: server,
            topology,
        })
    }

    fn node(&self) -> Result<&Namespace> {
        self.topology.node(1)
    }

    /// Opens the backend of a new agent, and reads the existing rules.
    fn open(&self) -> Result<(Nftables, Rendered<backend_nftables::Table>)> {
        let [mut ipv4, _] = self.node()?.enter(backend_nftables::open)??;
        let from = Rendered {
            dataplane: Dataplane::default(),
            rules: ipv4.observe()?,
        };
        Ok((ipv4, from))
    }

    fn finish(self) -> Result<()> {
        let (mut backend, from) = self.open()?;
        let expected = backend.render(&self.dataplane, &from);
        ensure!(
            backend.observe()? == expected,
            "the kernel holds something else"
        );
        let tables = self.node()?.nft(&["list", "tables"])?;
        let tables: BTreeSet<&str> = tables.split_whitespace().collect();
        ensure!(tables.contains(TABLE), "{tables:?}");
        ensure!(!tables.contains(NEXT), "{tables:?}");
        self.clients.finish_unharmed()
    }
}

fn leave_other_map(node: &Namespace, endpoint: SocketAddr) -> Result<()> {
    let (address, port) = SERVICE;
    let address = IpAddr::from(address);
    let redirect = format!("ip daddr {address} tcp dport {port} dnat to {endpoint}");
    for command in [
        "add table ip signpost".to_owned(),
        "add map ip signpost services { type ipv4_addr : ipv4_addr; }".to_owned(),
        "add chain ip signpost old { type nat hook prerouting priority -100; }".to_owned(),
        "add chain ip signpost old-output { type nat hook output priority -100; }".to_owned(),
        format!("add rule ip signpost old {redirect}"),
        format!("add rule ip signpost old-output {redirect}"),
    ] {
        let _ = node.nft(&[&command])?;
    }
    Ok(())
}

fn leave_other_priority(node: &Namespace, dataplane: &Dataplane) -> Result<()> {
    let [mut ipv4, _] = node.enter(backend_nftables::open)??;
    let _ = program(&mut ipv4, dataplane, &Rendered::default())?;
    for hook in ["prerouting", "output"] {
        let chain = format!("ip signpost nat-{hook}");
        let _ = node.nft(&[&format!(
            "delete chain {chain}; \
             add chain {chain} {{ type nat hook {hook} priority -100; }}; \
             add rule {chain} jump dispatch"
        )])?;
    }
    Ok(())
}

/// Replaces the table without an interruption.
pub(crate) fn replaced() -> Result<()> {
    replaced_at_once(Left::OtherMap)
}

/// Failure story T92.
pub(crate) fn moved_to_another_priority() -> Result<()> {
    replaced_at_once(Left::OtherPriority)
}

fn replaced_at_once(left: Left) -> Result<()> {
    let stage = Stage::start(left)?;
    let (mut backend, from) = stage.open()?;
    let expected = backend.render(&stage.dataplane, &from);
    let change = backend.diff(&from.rules, &expected);
    let transactions = change.transactions().len();
    ensure!(transactions > 6, "{transactions} tell little");
    let committed = backend.commit(change);
    let _ = committed.context("it is refused")?;
    stage.finish()
}

/// Each agent starts anew, makes one transaction of its first change, and is killed.
pub(crate) fn replaced_by_many_that_are_killed() -> Result<()> {
    let stage = Stage::start(Left::OtherMap)?;
    let mut socket = stage.node()?.enter(Socket::open)??;
    for transactions in 0.. {
        let (backend, from) = stage.open()?;
        let expected = backend.render(&stage.dataplane, &from);
        let change = backend.diff(&from.rules, &expected);
        let Some(first) = change.transactions().first() else {
            break;
        };
        ensure!(
            transactions < ENOUGH,
            "still to do: {} transactions",
            change.transactions().len()
        );
        socket.commit(first)?;
    }
    stage.finish()
}

/// The cleanup removes the half-built replacement of a killed agent together with the old table.
pub(crate) fn what_is_half_built_is_cleaned_up() -> Result<()> {
    let stage = Stage::start(Left::OtherMap)?;
    let mut socket = stage.node()?.enter(Socket::open)??;
    let (mut backend, from) = stage.open()?;
    let expected = backend.render(&stage.dataplane, &from);
    let change = backend.diff(&from.rules, &expected);
    let first = change.transactions().first();
    socket.commit(first.context("there is something to do")?)?;
    let tables = stage.node()?.nft(&["list", "tables"])?;
    ensure!(tables.contains(NEXT), "{tables}");
    let _ = backend.commit_removal()?;
    let tables = stage.node()?.nft(&["list", "tables"])?;
    ensure!(!tables.contains(TABLE), "{tables}");
    Ok(())
}
