//! Migrations from a kube-proxy in mode iptables and back, with either variant of iptables.
//!
//! Mode nftables is in `takeover.rs`. For mode ipvs the machine's kernel would need `ip_vs`: see
//! `tests/takeover_kernel`.

use std::collections::BTreeSet;
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use tests::real_cluster::Node;
use tests::real_cluster::kube_proxy::{self, Mode};
use xtables::Variant;

use crate::shop::STEADY;
use crate::stage::{DEADLINE, Stage};
use crate::takeover::{
    DETECTED, hand_back, set_handover, start_kube_proxy, stop_kube_proxy, wait_for_condition,
};

/// The chain that every packet to a Service passes in kube-proxy's mode iptables.
const SERVICES: &str = "KUBE-SERVICES";
/// The chains that stay after a takeover, because kubelets and port mappings use them, too
/// (docs/takeover.md), and one that is empty in table mangle of the legacy variant.
const STAYING: [&str; 4] = [
    "KUBE-FIREWALL",
    "KUBE-MARK-MASQ",
    "KUBE-POSTROUTING",
    "KUBE-PROXY-CANARY",
];
/// The programs that list the rules of each variant.
const LISTERS: [(Variant, [&str; 2]); 2] = [
    (
        Variant::NfTables,
        ["iptables-nft-save", "ip6tables-nft-save"],
    ),
    (
        Variant::Legacy,
        ["iptables-legacy-save", "ip6tables-legacy-save"],
    ),
];

/// A chain of the proxies or of the kubelet: the program that lists it, and its name.
type Chain = (&'static str, String);

pub(crate) fn nf_tables(stage: &mut Stage) -> Result<()> {
    from_mode_iptables_and_back(stage, Variant::NfTables)
}

pub(crate) fn legacy(stage: &mut Stage) -> Result<()> {
    from_mode_iptables_and_back(stage, Variant::Legacy)
}

/// kube-proxy serves a cluster, Signpost takes over from it and hands back to it, with the same
/// clients all the time.
fn from_mode_iptables_and_back(stage: &mut Stage, variant: Variant) -> Result<()> {
    // Left by a test that has failed.
    kube_proxy::remove(&stage.cluster)?;
    kube_proxy::clean_up(&stage.cluster)?;
    let without: Vec<BTreeSet<Chain>> = observe_all(stage)?;
    kube_proxy::install(&stage.cluster, Mode::Iptables(variant))?;
    stage.ensure_installed()?;
    set_handover(stage, "Manual")?;
    wait_for_condition(stage, DETECTED, "True", "KubeProxyIptables")?;
    let servers = stage.observe_servers(STEADY)?;
    stage.wait_until_served(STEADY, &servers, DEADLINE)?;
    let connections = stage.connect()?;

    stop_kube_proxy(stage)?;
    take_over(stage)?;
    expect_signpost_alone(stage, &without)?;
    wait_for_condition(stage, DETECTED, "False", "NoneFound")?;

    start_kube_proxy(stage)?;
    println!("{}", hand_back(stage)?);
    expect_kube_proxy_alone(stage, variant, &without)?;
    wait_for_condition(stage, "Ready", "False", "HandedBack")?;
    kube_proxy::remove(&stage.cluster)?;
    stage.wait_until_served(STEADY, &servers, DEADLINE)?;
    connections.finish_unharmed()
}

/// Takes over all nodes at once. How they are taken over in turn is in `takeover.rs`.
fn take_over(stage: &Stage) -> Result<()> {
    let mut running = Vec::new();
    for node in stage.cluster.nodes() {
        let mut command = stage.plugin()?;
        command.args(["migrate", "takeover", "--node", &node.name()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        running.push(command.spawn().context("it runs")?);
    }
    // None goes on when this returns.
    let ended: Vec<_> = running.into_iter().map(Child::wait_with_output).collect();
    for output in ended {
        let output = output.context("it ends")?;
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{said}\n{errors}");
        println!("{said}");
    }
    Ok(())
}

/// Nodes have Signpost's tables, and of other programs the chains that they had before kube-proxy,
/// and those of kube-proxy that stay.
fn expect_signpost_alone(stage: &Stage, without: &[BTreeSet<Chain>]) -> Result<()> {
    for (node, without) in stage.cluster.nodes().zip(without) {
        let there = observe(node)?;
        let added = there.difference(without);
        let added: Vec<&Chain> = added
            .filter(|(_, name)| !STAYING.contains(&name.as_str()))
            .collect();
        ensure!(
            added.is_empty() && without.is_subset(&there),
            "{} has the chains {there:?} and had {without:?} without kube-proxy",
            node.name()
        );
        ensure!(
            has_signpost(node)?,
            "{} has no rules of Signpost",
            node.name()
        );
    }
    Ok(())
}

/// Nodes have no rule of Signpost, and in this variant alone the rules of kube-proxy.
fn expect_kube_proxy_alone(
    stage: &Stage,
    variant: Variant,
    without: &[BTreeSet<Chain>],
) -> Result<()> {
    for (node, without) in stage.cluster.nodes().zip(without) {
        let there = observe(node)?;
        let added = there.difference(without);
        let with_services = added.clone().filter(|(_, chain)| chain == SERVICES);
        let with_services: BTreeSet<&str> = with_services.map(|(program, _)| *program).collect();
        let changed: BTreeSet<&str> = added.map(|(program, _)| *program).collect();
        let expected = LISTERS.into_iter().filter(|(of, _)| *of == variant);
        let expected: BTreeSet<&str> = expected.flat_map(|(_, programs)| programs).collect();
        ensure!(
            with_services == expected && changed == expected,
            "{} has the chains {there:?} and had {without:?} without kube-proxy",
            node.name()
        );
        ensure!(
            !has_signpost(node)?,
            "{} has rules of Signpost",
            node.name()
        );
    }
    Ok(())
}

fn has_signpost(node: &Node) -> Result<bool> {
    let tables = node.namespace().nft(&["list", "tables"])?;
    // The tables of the hooks go a moment after those of the rules.
    Ok(tables.lines().any(|table| table.ends_with(" signpost")))
}

fn observe_all(stage: &Stage) -> Result<Vec<BTreeSet<Chain>>> {
    stage.cluster.nodes().map(observe).collect()
}

/// Returns the chains of kube-proxy and the kubelet in both variants and families, and those of
/// Signpost's own mode iptables.
fn observe(node: &Node) -> Result<BTreeSet<Chain>> {
    let mut chains = BTreeSet::new();
    for (_, programs) in LISTERS {
        for program in programs {
            let listed = node.run(&[program])?;
            let names = listed.lines().filter_map(|line| line.strip_prefix(':'));
            let names = names.filter_map(|line| line.split(' ').next());
            let names =
                names.filter(|name| name.starts_with("KUBE-") || name.starts_with("SIGNPOST"));
            chains.extend(names.map(|name| (program, name.to_owned())));
        }
    }
    Ok(chains)
}
