//! Runs every scenario in kernels with the iptables rules, in both variants, with real connections.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use backend_iptables::{Iptables, Lock, open};
use libtest_mimic::{Arguments, Trial};
use tests::deadline::wait_for;
use tests::network::enter_private_namespaces;
use tests::scenario::{
    Depth, Dump, RealKernel, Script, Update, believe_no_lie, iptables_form, remember_for_a_second,
    skipped_for_want_of_sctp, trials_named,
};
use tests::trial::trial;
use xtables::Variant;

/// No other process holds the lock of a scenario.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it takes until a client with an affinity timeout of a second has certainly expired.
const FORGOTTEN: Duration = Duration::from_millis(1500);

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let locks = tempfile::tempdir()?;
    let mut trials: Vec<Trial> = Vec::new();
    for variant in [Variant::NfTables, Variant::Legacy] {
        let folder = locks.path().to_owned();
        let build = move |script: &Script| build(script, variant, &folder);
        // The simulated tests write the golden sections, and the kernel must match them.
        let prefix = format!("{variant}/");
        trials.extend(trials_named(&prefix, Update::Never, build.clone())?);
        let liar = build.clone();
        trials.push(trial(&format!("{prefix}no_lie_is_believed"), || {
            believe_no_lie(Dump::Iptables, liar)
        }));
        trials.push(trial(
            &format!("{prefix}a_client_is_forgotten_after_its_timeout"),
            || forgotten_client(build),
        ));
    }
    trials.extend(skipped_for_want_of_sctp()?);
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    drop(locks);
    conclusion.exit();
}

/// Scenarios run concurrently in separate namespaces, so each has a separate lock.
fn build(script: &Script, variant: Variant, folder: &Path) -> Result<RealKernel<Iptables>> {
    static STORIES: AtomicU32 = AtomicU32::new(0);
    let story = STORIES.fetch_add(1, Ordering::Relaxed);
    let lock = Lock {
        path: folder.join(story.to_string()),
        patience: PATIENCE,
    };
    RealKernel::build(script, || open(variant, &lock), iptables_form())
}

/// Each connection refreshes the affinity, so each waits until the previous one has expired: half
/// of them then reach the other endpoint.
fn forgotten_client(build: impl FnOnce(&Script) -> Result<RealKernel<Iptables>>) -> Result<()> {
    let (mut kernel, packet) = remember_for_a_second(build)?;
    let first = kernel.connect(&packet, 1)?;
    let mut connected = Instant::now();
    wait_for(
        "the client to find another endpoint",
        Duration::from_secs(60),
        || {
            if connected.elapsed() < FORGOTTEN {
                return Ok(None);
            }
            let next = kernel.connect(&packet, 1)?;
            connected = Instant::now();
            Ok((next != first).then_some(()))
        },
    )
}
