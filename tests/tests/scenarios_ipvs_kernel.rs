//! Runs every scenario in a kernel with the rules of mode ipvs, with real connections.
//!
//! They are skipped on a kernel without IPVS; `tests/kernel-rig/run` has one with IPVS.

use std::path::Path;

use anyhow::{Context, Result};
use backend_ipvs::{Ipvs, open};
use dataplane::Family;
use libtest_mimic::{Arguments, Trial};
use netlink::ipvs::{IpvsSocket, SchedulerName};
use tests::network::{Network, enter_private_namespaces};
use tests::scenario::{
    Dump, RealKernel, Script, Update, believe_no_lie, ipvs_form, skipped_for_want_of_sctp, trials,
};
use tests::trial::trial;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let missing = find_ipvs()?;
    // The simulated tests write the golden sections, and the kernel must match them.
    let mut trials: Vec<Trial> = trials(Update::Never, build)?;
    trials.push(trial("no_lie_is_believed", || {
        believe_no_lie(Dump::Ipvs, build)
    }));
    trials.extend(skipped_for_want_of_sctp()?);
    if let Some(why) = missing {
        println!("SKIPPED: every scenario of mode ipvs: {why}");
        trials = trials
            .into_iter()
            .map(|trial| trial.with_ignored_flag(true))
            .collect();
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Returns why IPVS cannot be tested; `None` if it can.
fn find_ipvs() -> Result<Option<String>> {
    let mut network = Network::new()?;
    let [namespace] = network.add_namespaces(["ipvs"])?;
    let mut socket = namespace.enter(|| IpvsSocket::open(backend_ipvs::MARKS))??;
    let scheduler = SchedulerName::new("rr").context("it is a name")?;
    let found = socket.check_scheduler(Family::Ipv4, &scheduler);
    Ok(found.err().map(|error| error.to_string()))
}

fn build(script: &Script) -> Result<RealKernel<Ipvs>> {
    RealKernel::build(script, || open(Path::new("/proc/sys")), ipvs_form())
}
