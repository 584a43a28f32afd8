//! Every scenario, told to kernels that hold the rules of iptables, in both variants, with real
//! connections.

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

/// Nobody else has the lock of a story.
const PATIENCE: Duration = Duration::from_secs(10);
/// When a client who is remembered for a second is surely forgotten.
const FORGOTTEN: Duration = Duration::from_millis(1500);

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let locks = tempfile::tempdir()?;
    let mut trials: Vec<Trial> = Vec::new();
    for variant in [Variant::NfTables, Variant::Legacy] {
        let folder = locks.path().to_owned();
        let build = move |script: &Script| build(script, variant, &folder);
        // Goldens are written by the simulated rules, and the kernel must hold the same.
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

/// Stories are told beside each other, in namespaces of their own: the lock of each is, too.
fn build(script: &Script, variant: Variant, folder: &Path) -> Result<RealKernel<Iptables>> {
    static STORIES: AtomicU32 = AtomicU32::new(0);
    let story = STORIES.fetch_add(1, Ordering::Relaxed);
    let lock = Lock {
        path: folder.join(story.to_string()),
        patience: PATIENCE,
    };
    RealKernel::build(script, || open(variant, &lock), iptables_form())
}

/// Each connection is remembered anew, so every one of them waits until the one before is forgotten:
/// half of them go to the other endpoint.
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
