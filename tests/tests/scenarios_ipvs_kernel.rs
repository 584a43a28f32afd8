//! Runs every scenario in a kernel with the rules of mode ipvs, with real connections.
//!
//! They are skipped on a kernel without IPVS; `tests/kernel-rig/run` has one with IPVS.

use std::path::Path;

use anyhow::Result;
use backend_ipvs::{Ipvs, open};
use libtest_mimic::{Arguments, Trial};
use tests::ipvs_support::find_ipvs;
use tests::network::enter_private_namespaces;
use tests::scenario::{
    Dump, RealKernel, Script, Update, believe_no_lie, ipvs_form, skipped_for_want_of_sctp, trials,
};
use tests::trial::trial;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let missing = find_ipvs(&["rr"])?;
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

fn build(script: &Script) -> Result<RealKernel<Ipvs>> {
    RealKernel::build(script, || open(Path::new("/proc/sys")), ipvs_form())
}
