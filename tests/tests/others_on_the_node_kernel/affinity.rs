//! Clients of one Service use up the whole capacity of session affinity.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use backend_iptables::Iptables;
use dataplane::Packet;
use tests::deadline::wait_for;
use tests::network::Namespace;
use tests::scenario::{Depth, RealKernel, Script};

use crate::stage::{connect, ipvs, nftables, packets, play};

const STORY: &str = r#"
apply   shop game slices
keeps   pod 10.0.1.9 -> 10.96.0.10:80/tcp   = 10.0.1.5:8080, 10.0.2.7:8080
packet  pod 10.0.1.8 -> 10.0.1.5:8080/tcp   = untouched

-- shop --
kind: Service
metadata: {namespace: shop, name: cart}
spec: {clusterIP: 10.96.0.10, sessionAffinity: ClientIP, ports: [{port: 80}]}
-- game --
kind: Service
metadata: {namespace: game, name: lobby}
spec: {clusterIP: 10.96.0.11, sessionAffinity: ClientIP, ports: [{name: a, port: 80}, {name: b, port: 9999, protocol: UDP}]}
-- slices --
kind: EndpointSlice
metadata: {namespace: shop, name: cart-1, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [10.0.1.5], nodeName: node-1}, {addresses: [10.0.2.7], nodeName: node-2}]
---
kind: EndpointSlice
metadata: {namespace: game, name: lobby-1, labels: {kubernetes.io/service-name: lobby}}
addressType: IPv4
ports: [{name: a, port: 8080}, {name: b, port: 9999, protocol: UDP}]
endpoints: [{addresses: [10.0.1.5], nodeName: node-1}, {addresses: [10.0.2.7], nodeName: node-2}]
"#;

/// Clients of the Services in [`STORY`].
struct Clients {
    /// Has an endpoint before the flood.
    old: Packet,
    /// Connects to the same Service after it.
    new: Packet,
    /// Connects to the flooded Service.
    flooded: Packet,
}

/// If each connection were placed independently, all would reach the same one of two endpoints once
/// in a thousand.
const CONNECTIONS: usize = 11;
/// The first source address of the flood.
const SOURCES: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 0);
/// More clients than the capacity of the Service's own set and the shared one together.
pub(crate) const CLIENTS: u32 = 8_192 + 262_144 + 5_000;
/// Far more than mode iptables remembers of two endpoints: 100 each.
const CLIENTS_OF_IPTABLES: u32 = 2_000;
pub(crate) const LONG: Duration = Duration::from_secs(240);

/// Enough sources to use up the capacity connect to one Service. A client of another Service keeps
/// its endpoint, and new clients of it get session affinity; the kernel tells which Service has
/// exhausted its capacity.
pub(crate) fn a_flood_of_clients() -> Result<()> {
    let (mut kernel, script) = play(STORY, nftables)?;
    let clients = Clients::of(&script)?;
    let before = connect(&mut kernel, &clients.old)?;
    let node = kernel.node()?.clone();
    let_flood_through(&node, kernel.pod(1, 9)?)?;
    let is_full = || {
        let listed = node.nft(&["list", "map", "ip", "signpost", "crowded"])?;
        anyhow::Ok(listed.contains("10.96.0.11 . udp . 9999"))
    };
    wait_for("the affinity map to be full", LONG, || {
        kernel.pod(1, 9)?.enter(|| flood(CLIENTS))??;
        Ok(is_full()?.then_some(()))
    })?;
    clients.expect_affinity_of_one(&mut kernel, &before)
}

/// The same in mode iptables, where each endpoint remembers its own clients, and forgets the oldest
/// ones: what new clients of the flooded Service get is not limited, only for how long.
pub(crate) fn a_flood_in_mode_iptables(
    build: impl FnOnce(&Script) -> Result<RealKernel<Iptables>>,
) -> Result<()> {
    let (mut kernel, script) = play(STORY, build)?;
    let clients = Clients::of(&script)?;
    let before = connect(&mut kernel, &clients.old)?;
    let node = kernel.node()?.clone();
    let_flood_through(&node, kernel.pod(1, 9)?)?;
    kernel.pod(1, 9)?.enter(|| flood(CLIENTS_OF_IPTABLES))??;
    let mut remembered = node.command("sh");
    remembered.args(["-c", "cat /proc/net/xt_recent/*"]);
    let remembered = String::from_utf8(remembered.output()?.stdout)?;
    let remembered = remembered
        .lines()
        .filter(|line| line.starts_with("src=11."))
        .count();
    let few = 1..usize::try_from(CLIENTS_OF_IPTABLES)? / 2;
    ensure!(few.contains(&remembered), "{remembered} are remembered");
    clients.expect_affinity_of_others(&mut kernel, &before)
}

/// Lets `pod` send from the addresses of the flood. Their flows expire at once, so that the
/// conntrack table does not fill up.
pub(crate) fn let_flood_through(node: &Namespace, pod: &Namespace) -> Result<()> {
    pod.configure("route add local 11.0.0.0/8 dev lo")?;
    node.set_sysctls(&[("net/netfilter/nf_conntrack_udp_timeout", "1")])
}

/// Sends one datagram from each of many addresses.
pub(crate) fn flood(clients: u32) -> Result<()> {
    for client in 0..clients {
        let source = Ipv4Addr::from_bits(SOURCES.to_bits() + client);
        let socket = UdpSocket::bind((source, 0))?;
        // A full queue drops a datagram, which the next pass sends again.
        let _ = socket.send_to(b"?", (Ipv4Addr::new(10, 96, 0, 11), 9999));
    }
    Ok(())
}

/// The same in mode ipvs, where the maps are filled with entries in the place of packets: sending
/// as many takes an emulated machine a quarter of an hour.
pub(crate) fn full_maps_of_mode_ipvs() -> Result<()> {
    let (mut kernel, script) = play(STORY, ipvs)?;
    let clients = Clients::of(&script)?;
    let before = connect(&mut kernel, &clients.old)?;
    let node = kernel.node()?.clone();
    let list = |map| node.nft(&["list", "map", "ip", "signpost-ipvs", map]);
    let services = list("services")?;
    // nft 1.0.6 lists a mark with its bytes reversed, except in a concatenation.
    let reversed = value_of(&services, "10.96.0.11 . tcp . 80")?;
    let affinities = list("affinities")?;
    let (mark, group) = value_of(&affinities, reversed)?
        .split_once(" . ")
        .context("a mark and a number")?;
    let group = u32::from_str_radix(group.trim_start_matches("0x"), 16)?;
    fill(&node, &format!("clients-{}", group >> 17), mark, 8_192)?;
    fill(&node, "clients", mark, 262_144)?;

    clients.expect_affinity_of_one(&mut kernel, &before)?;
    let crowded = list("crowded")?;
    ensure!(crowded.contains(mark), "{mark} is not in {crowded}");
    Ok(())
}

// === impl Clients ===

impl Clients {
    fn of(script: &Script) -> Result<Clients> {
        let packets = packets(script);
        let old = packets.first().context("the story has a client")?;
        Ok(Clients {
            old: old.clone(),
            new: Packet {
                source: "10.0.1.8".parse()?,
                ..old.clone()
            },
            flooded: Packet {
                destination: "10.96.0.11".parse()?,
                ..old.clone()
            },
        })
    }

    /// The old client stays at `before`, and a new one stays somewhere.
    fn expect_affinity_of_others(&self, kernel: &mut impl Depth, before: &str) -> Result<()> {
        let Clients { old, new, .. } = self;
        for _ in 0..CONNECTIONS {
            let now = connect(kernel, old)?;
            ensure!(now == before, "{old} = {now}, not {before}");
        }
        let first = connect(kernel, new)?;
        for _ in 0..CONNECTIONS {
            let next = connect(kernel, new)?;
            ensure!(next == first, "{new} = {next}, not {first}");
        }
        Ok(())
    }

    /// The same, and the client of the flooded Service does not stay.
    fn expect_affinity_of_one(&self, kernel: &mut impl Depth, before: &str) -> Result<()> {
        self.expect_affinity_of_others(kernel, before)?;
        let flooded = &self.flooded;
        let mut ends = BTreeSet::new();
        for _ in 0..4 * CONNECTIONS {
            ends.insert(connect(kernel, flooded)?);
        }
        ensure!(
            ends.len() == 2,
            "{flooded} has an endpoint to stay with: {ends:?}"
        );
        Ok(())
    }
}

/// Returns the value that nft lists for `key`.
fn value_of<'a>(listed: &'a str, key: &str) -> Result<&'a str> {
    let (_, value) = listed
        .split_once(&format!("{key} : "))
        .with_context(|| format!("no {key} in {listed}"))?;
    let end = value.find([',', '\n', '}']).unwrap_or(value.len());
    Ok(value[..end].trim())
}

/// Adds entries of clients from [`SOURCES`] on to `map`, as many as it takes.
fn fill(node: &Namespace, map: &str, mark: &str, capacity: u32) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("entries");
    let sources = (0..capacity).map(|client| Ipv4Addr::from_bits(SOURCES.to_bits() + client));
    let entries = sources.map(|source| format!("{source} . {mark} : {mark} . 0x40000001"));
    let entries: Vec<String> = entries.collect();
    let commands = entries.chunks(8_192).map(|entries| {
        let entries = entries.join(", ");
        format!("add element ip signpost-ipvs {map} {{ {entries} }}\n")
    });
    fs::write(&path, commands.collect::<String>())?;
    let path = path.to_str().context("a path of text")?;
    node.nft(&["-f", path]).map(drop)
}
