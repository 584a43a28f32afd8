//! A node whose kernel holds the rules of one mode, and checks of where packets go.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use backend_iptables::{Iptables, Lock};
use backend_ipvs::Ipvs;
use backend_nftables::Nftables;
use dataplane::{Packet, Verdict};
use tests::scenario::{
    Action, Depth, Goldens, RealKernel, Script, Update, iptables_form, ipvs_form, nftables_form,
    run,
};
use xtables::Variant;

/// A test holds the iptables lock for milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Mode nftables.
pub(crate) fn nftables(script: &Script) -> Result<RealKernel<Nftables>> {
    RealKernel::build(script, backend_nftables::open, nftables_form())
}

/// Mode iptables. All tests share the lock at `lock`.
pub(crate) fn iptables(
    variant: Variant,
    lock: &Path,
) -> impl Fn(&Script) -> Result<RealKernel<Iptables>> + Clone + Send + 'static {
    let lock = Lock {
        path: lock.to_owned(),
        patience: PATIENCE,
    };
    move |script| {
        let open = || backend_iptables::open(variant, &lock);
        RealKernel::build(script, open, iptables_form())
    }
}

/// Mode ipvs.
pub(crate) fn ipvs(script: &Script) -> Result<RealKernel<Ipvs>> {
    let open = || backend_ipvs::open(Path::new("/proc/sys"));
    RealKernel::build(script, open, ipvs_form())
}

/// Runs all steps of the script `text`, which must succeed; returns the kernel afterwards.
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

/// Returns the packets in `script` in order.
pub(crate) fn packets(script: &Script) -> Vec<Packet> {
    let asked = script.steps.iter().filter_map(|step| match &step.action {
        Action::Packet { packet, .. } | Action::Keeps { packet, .. } => Some(packet.clone()),
        _ => None,
    });
    asked.collect()
}

/// Makes one connection; returns the result in the notation of scenarios.
pub(crate) fn connect(kernel: &mut impl Depth, packet: &Packet) -> Result<String> {
    let verdicts = kernel.connect(packet, 1)?.context("it is a kernel")?;
    let first = verdicts.first().map(Verdict::to_string);
    first.context("one connection has one end")
}
