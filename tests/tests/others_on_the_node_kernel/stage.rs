//! A node whose kernel holds the rules of one mode, and questions about where a packet ended.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use backend_iptables::{Iptables, Lock};
use backend_nftables::Nftables;
use dataplane::{Packet, Verdict};
use tests::scenario::{
    Action, Depth, Goldens, RealKernel, Script, Update, iptables_form, nftables_form, run,
};
use xtables::Variant;

/// Nobody else has the lock of the tables of iptables.
const PATIENCE: Duration = Duration::from_secs(10);

/// Mode nftables.
pub(crate) fn nftables(script: &Script) -> Result<RealKernel<Nftables>> {
    RealKernel::build(script, backend_nftables::open, nftables_form())
}

/// Mode iptables, variant nf_tables.
pub(crate) fn iptables(script: &Script) -> Result<RealKernel<Iptables>> {
    let folder = tempfile::tempdir()?;
    let lock = Lock {
        path: folder.path().join("xtables.lock"),
        patience: PATIENCE,
    };
    let open = || backend_iptables::open(Variant::NfTables, &lock);
    RealKernel::build(script, open, iptables_form())
}

/// A kernel that has been through all steps of `text` and did in each what it says there.
pub(crate) fn play<D: Depth>(
    text: &str,
    build: impl FnOnce(&Script) -> Result<D>,
) -> Result<(D, Script)> {
    let script = Script::parse(text)?;
    let mut kernel = build(&script)?;
    let mut goldens = Goldens::new(Path::new("others-on-the-node.txt"), Update::Never);
    let failures = run(&script, &mut kernel, &mut goldens)?;
    ensure!(failures.is_empty(), "{failures:#?}");
    Ok((kernel, script))
}

/// The packets that `script` asks about, in order.
pub(crate) fn packets(script: &Script) -> Vec<Packet> {
    let asked = script.steps.iter().filter_map(|step| match &step.action {
        Action::Packet { packet, .. } | Action::Keeps { packet, .. } => Some(packet.clone()),
        _ => None,
    });
    asked.collect()
}

/// What comes of one connection, as a scenario writes it.
pub(crate) fn connect(kernel: &mut impl Depth, packet: &Packet) -> Result<String> {
    let verdicts = kernel.connect(packet, 1)?.context("it is a kernel")?;
    let first = verdicts.first().map(Verdict::to_string);
    first.context("one connection has one end")
}
