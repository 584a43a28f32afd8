//! A kernel that rejects Signpost's table of one family: the other family is served, and the node
//! is healthy.
//!
//! No kernel unloads a module that is in use. A table owned by another process stands in for a
//! missing module: Signpost can never write it, and learns this from its first attempt.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use backend_ipvs::MARKS;
use crds::condition::{IPV4_PROGRAMMED, IPV6_PROGRAMMED, READY};
use dataplane::Family;
use netlink::ipvs::IpvsSocket;
use tempfile::TempDir;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{Namespace, Network};
use tests::table_owner::TableOwner;
use tests::xtables_lock::xtables_lock_folder;

use crate::manifests;
use crate::node::{PROMPTLY, Place, Setting, iptables, program, shell};

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
pub(crate) fn ipv6_switched_off(place: Place) -> Result<()> {
    let mut network = Network::new()?;
    let [node] = network.add_namespaces(["node"])?;
    if Path::new("/proc/sys/net/ipv6").exists() {
        node.set_sysctls(&[("net/ipv6/conf/all/disable_ipv6", "1")])?;
    }
    node.configure("link set lo up\n")?;
    let folder = xtables_lock_folder()?;
    let workplace = workplace(&node, &folder, (place, "1h"))?;
    if let Place::Iptables(variant) = place {
        // Signpost uses the variant of the other programs.
        let rule = "-A INPUT -s 203.0.113.1 -j ACCEPT";
        iptables(&workplace, variant, Family::Ipv4, rule)?;
    }
    let agent = LoneAgent::start(&workplace)?;
    agent.wait_until_ready()?;
    let answer = node.get(HEALTHZ, PROMPTLY)?;
    ensure!(answer.status() == 200, "{answer:?}");
    let mode = agent.status()?.unwrap_or_default().mode;
    ensure!(mode == Some(manifests::mode(place)), "{mode:?}");
    let (rules, expected) = match place {
        Place::Nftables => (node.nft(&["list", "tables"])?, "table ip signpost\n"),
        Place::Ipvs => (node.nft(&["list", "tables"])?, "table ip signpost-ipvs\n"),
        Place::Iptables(variant) => {
            let save = program(variant, Family::Ipv4, "-save");
            let saved = shell(&workplace, &format!("{save} -t nat"))?;
            (
                saved,
                "-A PREROUTING -m comment --comment signpost -j SIGNPOST-",
            )
        }
    };
    ensure!(rules.contains(expected), "{rules}");
    Ok(())
}

fn start_agent(
    node: &Namespace,
    folder: &TempDir,
    setting: (Place, &'static str),
) -> Result<LoneAgent> {
    LoneAgent::start(&workplace(node, folder, setting)?)
}

fn workplace(
    node: &Namespace,
    folder: &TempDir,
    (place, sync_period): (Place, &'static str),
) -> Result<Workplace> {
    let setting = Setting {
        place,
        sync_period,
        others: Vec::new(),
    };
    Ok(Workplace {
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
    let owner = TableOwner::start(&node, Family::Ipv6, tables(place))?;
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
    if place == Place::Ipvs {
        expect_no_ipvs(&node, Family::Ipv6)?;
    }
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

/// Failure story T341: what comes before the table is not there either.
fn expect_no_ipvs(node: &Namespace, family: Family) -> Result<()> {
    let mut servers = node.enter(|| IpvsSocket::open(MARKS))??;
    let mut own = servers.observe_virtual_servers()?.own;
    ensure!(!own.is_empty(), "the other family has virtual servers");
    own.retain(|key, _| key.family == family);
    ensure!(own.is_empty(), "{own:?}");
    let option = match family {
        Family::Ipv4 => "-4",
        Family::Ipv6 => "-6",
    };
    for listed in [&["rule", "list"][..], &["route", "list", "table", "all"]] {
        let mut command = node.command("ip");
        let output = command.arg(option).args(listed).output()?;
        ensure!(output.status.success(), "{output:?}");
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_ours = output.contains("0x53400000") || output.contains("1396703232");
        ensure!(!is_ours, "{output}");
    }
    Ok(())
}
