//! Runs every scenario in a kernel with the nftables rules, with real connections.

use std::time::Duration;

use anyhow::{Context, Result};
use backend_nftables::{Nftables, open};
use libtest_mimic::Arguments;
use tests::deadline::wait_for;
use tests::network::enter_private_namespaces;
use tests::scenario::{
    Depth, Dump, RealKernel, Script, Update, believe_no_lie, nftables_form, remember_for_a_second,
    skipped_for_want_of_sctp, trials,
};
use tests::trial::trial;

const PROMPTLY: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    enter_private_namespaces()?;
    // The simulated tests write the golden sections, and the kernel must match them.
    let mut trials = trials(Update::Never, build)?;
    trials.push(trial("no_lie_is_believed", || {
        believe_no_lie(Dump::Nftables, build)
    }));
    trials.push(trial(
        "a_client_is_forgotten_after_its_timeout",
        forgotten_client,
    ));
    trials.extend(skipped_for_want_of_sctp()?);
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn forgotten_client() -> Result<()> {
    let (mut kernel, packet) = remember_for_a_second(build)?;
    let clients = |kernel: &RealKernel<Nftables>| {
        let mut list = kernel.node()?.command("nft");
        list.args(["list", "map", "ip", "signpost", "clients-1"]);
        let listed = list.output().context("failed to run nft")?;
        anyhow::Ok(String::from_utf8_lossy(&listed.stdout).into_owned())
    };
    wait_for("the client to be remembered", PROMPTLY, || {
        // The entry must be listed within a second after this.
        kernel.connect(&packet, 1)?;
        let remembered = "10.0.1.9 . 10.96.0.10 . tcp . 80 timeout 1s";
        Ok(clients(&kernel)?.contains(remembered).then_some(()))
    })?;
    wait_for("the client to be forgotten", PROMPTLY, || {
        let is_forgotten = !clients(&kernel)?.contains("10.0.1.9");
        Ok(is_forgotten.then_some(()))
    })
}

fn build(script: &Script) -> Result<RealKernel<Nftables>> {
    RealKernel::build(script, open, nftables_form())
}
