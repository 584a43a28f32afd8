//! A kernel that rejects Signpost's table of one family: the other family is served, and the node
//! is healthy.
//!
//! No kernel unloads a module that is in use. A table owned by another process stands in for a
//! missing module: Signpost can never write it, and learns this from its first attempt.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use crds::condition::{IPV4_PROGRAMMED, IPV6_PROGRAMMED, READY};
use tempfile::TempDir;
use tests::deadline::wait_for;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{Namespace, Network};

use crate::manifests;
use crate::node::{PROMPTLY, Place, Setting};

/// The address of the health check for load balancers.
const HEALTHZ: &str = "http://127.0.0.1:10256/healthz";

/// The tables for IPv6 that the agent needs in a mode, and in the one that it uses if it cannot have
/// that mode.
fn tables(place: Place) -> &'static [&'static str] {
    match place {
        Place::Nftables => &["signpost"],
        Place::Iptables(_) => &["nat", "filter", "signpost"],
        Place::Ipvs => &["signpost-ipvs", "signpost"],
    }
}

/// A node on which IPv6 was switched off after the boot, in every network namespace, or on a kernel
/// booted without IPv6. No IPv6 address is available, not even `::1`.
pub(crate) fn ipv6_switched_off() -> Result<()> {
    let mut network = Network::new()?;
    let [node] = network.add_namespaces(["node"])?;
    if Path::new("/proc/sys/net/ipv6").exists() {
        node.set_sysctls(&[("net/ipv6/conf/all/disable_ipv6", "1")])?;
    }
    node.configure("link set lo up\n")?;
    let folder = TempDir::new()?;
    let agent = start_agent(&node, &folder, (Place::Nftables, "1h"))?;
    agent.wait_until_ready()?;
    let answer = node.get(HEALTHZ, PROMPTLY)?;
    ensure!(answer.status() == 200, "{answer:?}");
    let tables = node.nft(&["list", "tables"])?;
    ensure!(tables.contains("table ip signpost"), "{tables}");
    Ok(())
}

fn start_agent(
    node: &Namespace,
    folder: &TempDir,
    (place, sync_period): (Place, &'static str),
) -> Result<LoneAgent> {
    let setting = Setting {
        place,
        sync_period,
        others: Vec::new(),
    };
    LoneAgent::start(&Workplace {
        node: node.clone(),
        source: Source::Manifests(manifests::write(folder.path(), &setting)?),
        folder: folder.path().to_owned(),
        sysctls: Sysctls::Writable,
        deadline: PROMPTLY,
    })
}

/// Failure story T84.
pub(crate) fn the_other_family_is_served_and_the_node_healthy(place: Place) -> Result<()> {
    let mut network = Network::new()?;
    let [node] = network.add_namespaces(["node"])?;
    node.configure("link set lo up\n")?;
    let owner = Owner::start(&node, tables(place))?;
    let folder = TempDir::new()?;
    let agent = start_agent(&node, &folder, (place, "1s"))?;
    let expect = |kind: &str, status: &str, reason: &str| {
        agent.wait_for(&format!("{kind} to be {status}"), |agent| {
            let said = agent.condition(kind)?;
            let said = said.filter(|said| said.status == status && said.reason == reason);
            Ok(said)
        })
    };
    let said = expect(IPV6_PROGRAMMED, "False", "KernelUnsupported")?.message;
    // The kernel has all features, which Signpost checked after the rejection.
    ensure!(
        said.contains("not permitted") && !said.contains("lacks"),
        "{said}"
    );
    expect(IPV4_PROGRAMMED, "True", "FamilyProgrammed")?;
    let answer = node.get(HEALTHZ, PROMPTLY)?;
    ensure!(answer.status() == 200, "{answer:?}");
    // The node has an IPv6 address and Services with that family.
    expect(READY, "False", "PartiallyProgrammed")?;
    let status = agent.status()?.context("it was written")?;
    let mut named = status.rejections.first.iter();
    let shop = named.find(|rejection| {
        rejection.field == "spec.ipFamilies" && rejection.message.starts_with("not served: IPv6: ")
    });
    ensure!(shop.is_some(), "{:?}", status.rejections);
    ensure!(status.applied_hash.is_some(), "a rollout would wait for it");
    // The attempts at every periodic check are logged once.
    let log = fs::read_to_string(folder.path().join("agent.log"))?;
    let warnings = log
        .lines()
        .filter(|line| line.contains("WARN") && line.contains("periodic check"));
    ensure!(warnings.count() <= 1, "{log}");

    drop(owner);
    expect(IPV6_PROGRAMMED, "True", "FamilyProgrammed")?;
    agent.wait_until_ready()?;
    let status = agent.status()?.context("it was written")?;
    ensure!(status.rejections.total == 0, "{:?}", status.rejections);
    Ok(())
}

/// A process that owns tables for IPv6 until it is dropped.
struct Owner(Child);

impl Owner {
    fn start(node: &Namespace, tables: &[&str]) -> Result<Owner> {
        let mut command = node.command("nft");
        command.arg("--interactive");
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        let mut owner = Owner(child);
        let stdin = owner.0.stdin.as_mut().context("it was piped")?;
        for table in tables {
            // Removed with its owner.
            writeln!(stdin, "add table ip6 {table} {{ flags owner; }}")?;
        }
        stdin.flush()?;
        wait_for("the tables of another program", PROMPTLY, || {
            let listed = node.nft(&["list", "tables"])?;
            let listed = listed.lines().filter(|line| line.starts_with("table ip6 "));
            Ok((listed.count() == tables.len()).then_some(()))
        })?;
        Ok(owner)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // An error means that the process has already ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
