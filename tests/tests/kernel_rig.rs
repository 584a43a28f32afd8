//! The tests that ask a kernel, on Linux 6.1: an emulated machine, see `tests/kernel-rig`.
//!
//! What a kernel holds and where packets go is always run; the other targets, and the scenarios that
//! are the same on any kernel, only with `SIGNPOST_KERNEL_RIG=all`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use libtest_mimic::{Arguments, Trial};
use tests::kernel_rig::{Ended, KernelRig, prepare, run_in_rig, test_program};
use tests::trial::trial;

/// Far more than it takes alone on two processors: the machine is emulated, and others want them too.
const DEADLINE: Duration = Duration::from_secs(1200);
/// Long enough for the machine to start, not for what is run then.
const TOO_SHORT: Duration = Duration::from_secs(15);

/// The test targets that are always run.
const ALWAYS: [&str; 3] = [
    "nftables_kernel",
    "scenarios_nftables_kernel",
    "ipvs_kernel",
];

/// Scenarios about what is read, compiled and rendered, which is the same on any kernel.
const NOT_ABOUT_THE_KERNEL: [&str; 10] = [
    "bad-input",
    "draining",
    "headless",
    "host-network",
    "named-ports",
    "other-proxy",
    "publish-not-ready",
    "shared-external-ip",
    "slices",
    "zones",
];

/// Tests of the other targets that bound the share of a processor, which an emulated one exceeds.
const ABOUT_SPEED: [&str; 1] = ["t38_somebody_who_does_not_stop_is_not_answered_every_time"];

/// How much is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// What takes some seven minutes beside other programs.
    Selection,
    /// Everything.
    All,
}

fn main() -> Result<()> {
    let extent = match env::var("SIGNPOST_KERNEL_RIG").as_deref() {
        Ok("all") => Extent::All,
        _ => Extent::Selection,
    };
    let trials = match prepare()? {
        KernelRig::Ready => trials(extent)?,
        KernelRig::Missing(why) => {
            println!("SKIPPED: the tests on Linux 6.1: {why}");
            let skipped = Trial::test("SKIPPED_everything_on_linux_6_1", || Ok(()));
            vec![skipped.with_ignored_flag(true)]
        }
    };
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn trials(extent: Extent) -> Result<Vec<Trial>> {
    let mut trials = vec![
        trial("linux_6_1_sends_packets_where_scenarios_say", move || {
            scenarios(extent)
        }),
        trial("linux_6_1_holds_what_was_rendered", || {
            run(ALWAYS[0], &[]).map(drop)
        }),
        trial("linux_6_1_has_the_virtual_servers_of_ipvs", || {
            run(ALWAYS[2], &[]).map(drop)
        }),
        trial("linux_6_1_sends_packets_through_virtual_servers", || {
            let scenarios = test_program("scenarios_ipvs_kernel")?.into_os_string();
            let command = [scenarios, "affinity".into()];
            let ended = run_in_rig("6.1 scenarios_ipvs_kernel", DEADLINE, command)?;
            ensure!(ended.expect_passed()? > 0, "nothing was tested");
            Ok(())
        }),
        trial("linux_6_1_keeps_connections_through_mode_ipvs", || {
            let modes = test_program("mode_kernel")?.into_os_string();
            let command = [modes, "t166".into()];
            let ended = run_in_rig("6.1 mode_kernel", DEADLINE, command)?;
            ensure!(ended.expect_passed()? == 1, "nothing was tested");
            Ok(())
        }),
        trial(
            "t26_linux_6_1_without_hashes_loses_affinity_alone",
            without_hashes,
        ),
        trial("what_goes_wrong_inside_is_told_outside", rig_itself),
    ];
    if extent == Extent::All {
        let on_6_1 = |target: String| {
            trial(&format!("linux_6_1_{target}"), move || {
                run(&target, &ABOUT_SPEED).map(drop)
            })
        };
        trials.extend(others()?.into_iter().map(on_6_1));
    }
    Ok(trials)
}

/// All other test targets that ask a kernel, which is what their names end with.
fn others() -> Result<BTreeSet<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut targets = BTreeSet::new();
    for entry in fs::read_dir(folder).context("failed to list the test targets")? {
        let path = entry?.path();
        let name = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        if name.ends_with("_kernel") && !ALWAYS.contains(&name) {
            targets.insert(name.to_owned());
        }
    }
    Ok(targets)
}

/// Runs a test target of this package without the tests in `skipped`; at least one has to pass.
fn run(target: &str, skipped: &[&str]) -> Result<Ended> {
    let mut command = vec![test_program(target)?.into_os_string()];
    for name in skipped {
        command.extend(["--skip".into(), name.into()]);
    }
    let ended = run_in_rig(&format!("6.1 {target}"), DEADLINE, command)?;
    ensure!(ended.expect_passed()? > 0, "nothing was tested");
    Ok(ended)
}

fn scenarios(extent: Extent) -> Result<()> {
    let skipped: &[&str] = match extent {
        Extent::Selection => &NOT_ABOUT_THE_KERNEL,
        Extent::All => &[],
    };
    let ended = run(ALWAYS[1], skipped)?;
    // This kernel has SCTP: it is here that its packets are really sent.
    let unasked = ended.lines.iter().find(|line| {
        line.contains("NOT ASKED") && line.contains("/sctp") || line.contains("SKIPPED")
    });
    ensure!(unasked.is_none(), "{unasked:?}");
    Ok(())
}

/// Takes `nft_hash` away first, and keeps the kernel from loading it again.
fn without_hashes() -> Result<()> {
    let test = test_program("without_nft_hash")?.display().to_string();
    let script = r#"echo /bin/false >/proc/sys/kernel/modprobe && busybox rmmod nft_hash &&
        SIGNPOST_TESTS_WITHOUT_NFT_HASH=1 exec "$1""#;
    let command = ["sh", "-c", script, "sh", &test];
    let ended = run_in_rig("6.1 without nft_hash", DEADLINE, command)?;
    ensure!(ended.expect_passed()? == 1, "nothing was tested");
    Ok(())
}

/// A test of the tests: a machine that fails, hangs or writes does not pass for one that did well.
fn rig_itself() -> Result<()> {
    let written = Path::new(env!("CARGO_MANIFEST_DIR")).join("written-inside");
    let path = written.display().to_string();
    let failing = r#"uname -r; touch "$1" && ls "$1"; exit 3"#;
    let ended = run_in_rig("6.1 rig", DEADLINE, ["sh", "-c", failing, "sh", &path])?;
    ensure!(ended.status == Some(3), "{ended:?}");
    ensure!(
        ended.lines.iter().any(|l| l.starts_with("6.1.")),
        "{ended:?}"
    );
    ensure!(ended.lines.contains(&path), "{ended:?}");
    ensure!(!written.exists(), "{path} reached this machine");
    let ended = run_in_rig("6.1 rig", TOO_SHORT, ["sleep", "600"])?;
    ensure!(ended.status == Some(124), "{ended:?}");
    Ok(())
}
