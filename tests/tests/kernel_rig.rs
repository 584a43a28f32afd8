//! Runs the tests that use a kernel on Debian kernels, see `tests/kernel-rig`.
//!
//! A selection of the tests of the kernel's state and of packets always runs on Linux 6.1, as a
//! program (user-mode Linux). What takes a module that is not loaded runs in an emulated machine. All
//! tests run there with `SIGNPOST_KERNELS='5.10 6.1 6.12'`, as on other kernels, and on such programs
//! with `SIGNPOST_KERNELS='5.10-user-mode 6.12-user-mode'`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use libtest_mimic::{Arguments, Trial};
use tests::control_plane::build_programs;
use tests::kernel_rig::{
    Ended, HostControlPlane, KernelRig, Machine, prepare, run_in_rig, test_program,
};
use tests::network::enter_private_namespaces;
use tests::trial::trial;

/// Far more than needed on two idle processors: other tests run concurrently.
const OF_SELECTION: Duration = Duration::from_secs(1800);
/// The same for whole targets.
const OF_ALL: Duration = Duration::from_secs(7200);
/// Long enough for the machine to boot, but not for the command.
const TOO_SHORT: Duration = Duration::from_secs(15);

/// The kernel on which a selection always runs, as a program.
const SELECTED: &str = "6.1-user-mode";
/// The same, emulated, for what a program cannot have.
const SELECTED_EMULATED: &str = "6.1";

/// The test targets that always run.
const ALWAYS: [&str; 3] = [
    "nftables_kernel",
    "scenarios_nftables_kernel",
    "ipvs_kernel",
];

/// Tests of [`ALWAYS`] that only a whole run has: they show parsing, compiling, rendering or
/// bounds, or use the kernel as others of them do. All of them also run on this machine's kernel.
const NOT_IN_SELECTION: [&str; 27] = [
    "affinity-ipv6",
    "bad-input",
    "claims",
    "draining",
    "dual-stack",
    "every_law_of_backends_holds",
    "hairpin",
    "headless",
    "host-network",
    "internal-local",
    "load-balancer",
    "local-cluster-ip",
    "local-detection",
    "named-ports",
    "node-port-link-local",
    "node-port-local",
    "other-proxy",
    "publish-not-ready",
    "scaling",
    "scheduler",
    "shared-external-ip",
    "slices",
    "source-ranges",
    "t25_one_service_the_kernel_refuses",
    "ten_thousand_elements_go_in_bounded_transactions",
    "wrong-port",
    "zones",
];

/// The target whose tests start a control plane.
const WITH_CONTROL_PLANE: &str = "takeover_kernel";

/// The targets that take longest, in the order of their start, so that none ends long after all
/// others.
const LONGEST: [&str; 4] = [
    "mode_kernel",
    WITH_CONTROL_PLANE,
    "steps_kernel",
    "xtables_kernel",
];

/// The target whose packets must all be sent, as those of [`ALWAYS`].
const SCENARIOS_OF_IPVS: &str = "scenarios_ipvs_kernel";

/// Tests of other targets that limit the processor time, which an emulated machine exceeds.
const ABOUT_SPEED: [&str; 1] = ["t38_a_program_that_does_not_stop_is_not_answered_every_time"];

/// The extent of the tests on a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// A selection, for `make test`.
    Selection,
    /// What a kernel that runs as a program cannot have: modules that are not loaded.
    Emulated,
    /// All tests.
    All,
}

/// A kernel that tests run on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kernel {
    /// Its series, such as 6.1, and whether it runs as a program, as in 6.1-user-mode.
    series: String,
    extent: Extent,
}

fn main() -> Result<()> {
    let mut kernels: Vec<Kernel> = match env::var("SIGNPOST_KERNELS") {
        Ok(all) => all.split_whitespace().map(Kernel::with_all_tests).collect(),
        Err(_) => vec![
            Kernel::new(SELECTED, Extent::Selection),
            Kernel::new(SELECTED_EMULATED, Extent::Emulated),
        ],
    };
    let rigs = kernels.iter().map(|kernel| prepare(&kernel.series));
    let rigs = rigs.collect::<Result<Vec<_>>>()?;
    if let [selected, emulated] = &mut *kernels
        && selected.extent == Extent::Selection
        && let KernelRig::Missing(_) = rigs[0]
    {
        // It takes longer there, and proves the same.
        emulated.extent = Extent::Selection;
    }
    build_programs()?;
    // What is downloaded is here.
    enter_private_namespaces()?;
    let mut trials = vec![];
    for (kernel, rig) in kernels.iter().zip(rigs) {
        match rig {
            KernelRig::Ready => trials.extend(kernel.trials()?),
            KernelRig::Missing(why) => {
                println!("SKIPPED: the tests on Linux {}: {why}", kernel.series);
                let name = format!("SKIPPED_everything_on_{}", kernel.in_names());
                trials.push(Trial::test(name, || Ok(())).with_ignored_flag(true));
            }
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Returns all other test targets that use a kernel, recognized by the end of their names.
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

// === impl Kernel ===

impl Kernel {
    fn new(series: &str, extent: Extent) -> Kernel {
        Kernel {
            series: series.to_owned(),
            extent,
        }
    }

    fn with_all_tests(series: &str) -> Kernel {
        Kernel::new(series, Extent::All)
    }

    fn is_a_program(&self) -> bool {
        self.series.ends_with("-user-mode")
    }

    fn in_names(&self) -> String {
        format!("linux_{}", self.series.replace(['.', '-'], "_"))
    }

    fn trials(&self) -> Result<Vec<Trial>> {
        let mut trials =
            vec![self.trial("says_outside_what_goes_wrong_inside", Kernel::rig_itself)];
        match self.extent {
            Extent::Selection => trials.extend(self.parts_of_targets()),
            Extent::Emulated => {}
            Extent::All => trials.extend(self.whole_targets()?),
        }
        if self.extent != Extent::Emulated {
            trials.extend([
                self.trial("sends_packets_where_scenarios_say", |kernel| {
                    kernel.scenarios(ALWAYS[1], kernel.skipped())
                }),
                self.trial("holds_what_was_rendered", |kernel| {
                    kernel.run(ALWAYS[0], kernel.skipped()).map(drop)
                }),
                self.trial("has_the_virtual_servers_of_ipvs", |kernel| {
                    kernel.run(ALWAYS[2], &[]).map(drop)
                }),
                self.trial("compares_mode_ipvs_with_that_of_kube_proxy", |kernel| {
                    kernel.expect_with_control_plane("differential_kube_proxy", "ipvs", 2)
                }),
            ]);
        }
        if !self.is_a_program() {
            trials.push(self.trial(
                "t26_without_hashes_loses_affinity_alone",
                Kernel::without_hashes,
            ));
        }
        if self.extent != Extent::All && !self.is_a_program() {
            // The program has all schedulers built in.
            trials.push(
                self.trial("names_a_scheduler_that_the_kernel_lacks", |kernel| {
                    kernel.expect_named("ipvs_kernel", "looking_loads_no_module", 1)?;
                    kernel.expect_named("mode_kernel", "t165", 1)
                }),
            );
        }
        Ok(trials)
    }

    /// Of targets that only a whole run has whole: the tests of mode ipvs, which this machine's
    /// kernel may lack.
    fn parts_of_targets(&self) -> Vec<Trial> {
        vec![
            self.trial("has_what_mode_ipvs_rendered", |kernel| {
                kernel.run("ipvs_backend_kernel", &[]).map(drop)
            }),
            self.trial("sends_packets_through_virtual_servers", |kernel| {
                kernel.scenarios(SCENARIOS_OF_IPVS, &[])
            }),
            self.trial("has_the_timeouts_of_the_profile", |kernel| {
                kernel.expect_named("mode_kernel", "t124", 1)
            }),
            self.trial("treats_packets_in_mode_ipvs_as_in_other_modes", |kernel| {
                kernel.expect_named("mode_kernel", "::ipvs", 7)
            }),
            self.trial(
                "refuses_no_connection_at_a_step_of_a_switch_to_mode_ipvs",
                |kernel| kernel.expect_named("steps_kernel", "::nftables_to_ipvs", 2),
            ),
            self.trial(
                "refuses_no_connection_at_a_step_of_a_change_in_mode_ipvs",
                |kernel| {
                    let name = "a_change_is_a_healthy_service_refused::ipvs";
                    kernel.expect_named("steps_kernel", name, 2)
                },
            ),
            self.trial(
                "lets_no_excluded_source_pass_at_a_step_of_mode_ipvs",
                |kernel| {
                    let name = "t52_at_no_step_of_closing_does_an_excluded_source_pass::ipvs";
                    kernel.expect_named("steps_kernel", name, 2)
                },
            ),
            self.trial("keeps_connections_through_mode_ipvs", |kernel| {
                kernel.expect_named("mode_kernel", "t166", 1)
            }),
            self.trial("keeps_connections_through_every_switch", |kernel| {
                let to_and_from = "t120_connections_outlive_every_switch_to_mode_ipvs";
                kernel.expect_named("mode_kernel", to_and_from, 1)?;
                kernel.expect_named("mode_kernel", "t121", 1)
            }),
            self.trial("keeps_associations_through_all_modes", |kernel| {
                kernel.expect_named("mode_kernel", "::among_all_modes", 2)
            }),
            self.trial("does_not_begin_mode_ipvs_without_its_settings", |kernel| {
                kernel.expect_named("mode_kernel", "t129", 1)
            }),
            self.trial("has_nothing_of_mode_ipvs_after_a_cleanup", |kernel| {
                kernel.expect_named("mode_kernel", "t122", 1)
            }),
            self.trial(
                "completes_a_switch_of_mode_ipvs_that_was_killed",
                |kernel| kernel.expect_named("mode_kernel", "::middle_of_nftables_and_ipvs", 1),
            ),
            self.trial("completes_a_start_of_mode_ipvs_that_was_killed", |kernel| {
                let name = "killed_is_completed::of_mode_ipvs";
                kernel.expect_named("mode_kernel", name, 5)
            }),
            self.trial("harms_nobody_where_an_allocation_fails", |kernel| {
                kernel.expect_named("steps_kernel", "t327", 4)
            }),
            self.trial(
                "sends_established_connections_through_a_flowtable",
                |kernel| kernel.expect_named("flowtable_kernel", "bypass_the_rules", 1),
            ),
            self.trial("explains_virtual_servers", |kernel| {
                kernel.expect_named("explain_kernel", "ipvs", 3)
            }),
            self.trial("repairs_virtual_servers", |kernel| {
                kernel.expect_named("drift_kernel", "ipvs/t32", 1)
            }),
            self.trial(
                "keeps_connections_of_virtual_servers_through_a_flush",
                |kernel| {
                    kernel.expect_named("drift_kernel", "ipvs/t356", 1)?;
                    kernel.expect_named("drift_kernel", "ipvs/t366", 1)
                },
            ),
            self.trial("serves_beside_other_programs_in_mode_ipvs", |kernel| {
                kernel.expect_named("others_on_the_node_kernel", "ipvs/", 8)
            }),
            self.trial("has_every_scheduler_of_ipvs", |kernel| {
                // Debian's kernel lacks `twos`.
                let schedulers = if kernel.is_a_program() { 19 } else { 18 };
                kernel.expect_named("schedulers_kernel", "ipvs/", schedulers)
            }),
            self.trial("places_clients_of_new_nodes_alike_in_mode_ipvs", |kernel| {
                // Those of T279 without affinity: with it they take as long again.
                kernel.expect_named("schedulers_kernel", "::None", 3)
            }),
            self.bench_of_ipvs(),
            self.trial(
                "takes_over_from_mode_ipvs_of_kube_proxy_and_back",
                |kernel| {
                    let name = "kube_proxy_in_mode_ipvs";
                    kernel.expect_with_control_plane("takeover_kernel", name, 2)
                },
            ),
        ]
    }

    /// All targets that [`trials`](Kernel::trials) has not, and what takes another kernel
    /// parameter.
    fn whole_targets(&self) -> Result<Vec<Trial>> {
        let mut trials = Vec::new();
        let mut others: Vec<String> = others()?.into_iter().collect();
        others.sort_by_key(|target| {
            LONGEST
                .iter()
                .position(|long| long == target)
                .unwrap_or(LONGEST.len())
        });
        for target in others {
            let name = target.clone();
            trials.push(self.trial(&name, move |kernel| match &*target {
                WITH_CONTROL_PLANE => {
                    let passed = kernel.run_with_control_plane(&target, &[])?;
                    ensure!(passed > 0, "nothing was tested");
                    Ok(())
                }
                SCENARIOS_OF_IPVS => kernel.scenarios(&target, &[]),
                _ => kernel.run(&target, &ABOUT_SPEED).map(drop),
            }));
        }
        let without_ipv6 = "serves_a_node_without_ipv6";
        trials.push(self.trial(without_ipv6, Kernel::without_ipv6));
        if self.is_a_program() {
            trials.push(self.bench_of_ipvs());
        }
        Ok(trials)
    }

    /// Its control plane runs inside, which takes an emulated machine minutes.
    fn bench_of_ipvs(&self) -> Trial {
        self.trial("measures_mode_ipvs_beside_that_of_kube_proxy", |kernel| {
            kernel.expect_named("bench_small", "ipvs_has_figures", 1)
        })
    }

    fn trial(
        &self,
        name: &str,
        test: impl FnOnce(&Kernel) -> Result<()> + Send + 'static,
    ) -> Trial {
        let kernel = self.clone();
        trial(&format!("{}_{name}", self.in_names()), move || {
            test(&kernel)
        })
    }

    fn skipped(&self) -> &'static [&'static str] {
        match self.extent {
            Extent::Selection => &NOT_IN_SELECTION,
            Extent::Emulated | Extent::All => &[],
        }
    }

    fn deadline(&self) -> Duration {
        match self.extent {
            Extent::Selection | Extent::Emulated => OF_SELECTION,
            Extent::All => OF_ALL,
        }
    }

    fn command<A: AsRef<OsStr>>(
        &self,
        name: &str,
        deadline: Duration,
        command: impl IntoIterator<Item = A>,
    ) -> Result<Ended> {
        run_in_rig(self.machine(), name, deadline, command)
    }

    /// Returns a machine without control plane and kernel parameters.
    fn machine(&self) -> Machine<'_> {
        Machine {
            series: &self.series,
            boot: "",
            control_plane: None,
        }
    }

    /// Runs the tests of a test target whose names contain `part`.
    fn run_named(&self, target: &str, part: &str) -> Result<Ended> {
        let command = [test_program(target)?.into_os_string(), part.into()];
        self.command(target, self.deadline(), command)
    }

    /// The same; exactly `count` must pass, and none fail.
    fn expect_named(&self, target: &str, part: &str, count: u32) -> Result<()> {
        let passed = self.run_named(target, part)?.expect_passed()?;
        ensure!(passed == count, "{passed} tests of {count} ran");
        Ok(())
    }

    /// The same for tests that start a control plane: theirs runs here.
    fn expect_with_control_plane(&self, target: &str, part: &str, count: u32) -> Result<()> {
        let passed = self.run_with_control_plane(target, &[part])?;
        ensure!(passed == count, "{passed} tests of {count} ran");
        Ok(())
    }

    /// Runs a test target with these arguments, and a control plane here; returns how many passed.
    fn run_with_control_plane(&self, target: &str, arguments: &[&str]) -> Result<u32> {
        let control_plane = HostControlPlane::start()?;
        let machine = Machine {
            control_plane: Some(&control_plane),
            ..self.machine()
        };
        let mut command = vec![test_program(target)?.into_os_string()];
        command.extend(arguments.iter().map(Into::into));
        run_in_rig(machine, target, self.deadline(), command)?.expect_passed()
    }

    /// Runs a test target of this package without the tests in `skipped`; at least one must pass.
    fn run(&self, target: &str, skipped: &[&str]) -> Result<Ended> {
        let mut command = vec![test_program(target)?.into_os_string()];
        for name in skipped {
            command.extend(["--skip".into(), name.into()]);
        }
        let ended = self.command(target, self.deadline(), command)?;
        ensure!(ended.expect_passed()? > 0, "nothing was tested");
        Ok(ended)
    }

    fn scenarios(&self, target: &str, skipped: &[&str]) -> Result<()> {
        let ended = self.run(target, skipped)?;
        // These kernels support SCTP, so its packets must really have been sent here.
        let unasked = ended.lines.iter().find(|line| {
            line.contains("NOT ASKED") && line.contains("/sctp") || line.contains("SKIPPED")
        });
        ensure!(unasked.is_none(), "{unasked:?}");
        Ok(())
    }

    /// Runs tests after unloading `nft_hash` and preventing the kernel from loading any module
    /// again: what else they need is loaded before.
    fn without_hashes(&self) -> Result<()> {
        let test = test_program("without_nft_hash")?.display().to_string();
        let script = r#"ipvsadm -A -f 1 -s rr && ipvsadm -C &&
            echo /bin/false >/proc/sys/kernel/modprobe && busybox rmmod nft_hash &&
            SIGNPOST_TESTS_WITHOUT_NFT_HASH=1 exec "$1""#;
        let command = ["sh", "-c", script, "sh", &test];
        let ended = self.command("without nft_hash", self.deadline(), command)?;
        let passed = ended.expect_passed()?;
        ensure!(passed == 2, "{passed} tests of 2 ran");
        Ok(())
    }

    fn without_ipv6(&self) -> Result<()> {
        let drift = test_program("drift_kernel")?.into_os_string();
        let test = "a_node_with_ipv6_switched_off_is_served";
        let command = [drift, "--exact".into(), test.into()];
        let machine = Machine {
            boot: "ipv6.disable=1",
            ..self.machine()
        };
        let ended = run_in_rig(machine, "without IPv6", self.deadline(), command)?;
        ensure!(ended.expect_passed()? == 1, "nothing was tested");
        Ok(())
    }

    /// Tests the rig itself: it must detect a machine that fails, hangs or writes.
    fn rig_itself(&self) -> Result<()> {
        let name = format!("written-inside-{}", self.series);
        let written = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let path = written.display().to_string();
        let failing = r#"uname -r; touch "$1" && ls "$1"; exit 3"#;
        let ended = self.command("rig", self.deadline(), ["sh", "-c", failing, "sh", &path])?;
        ensure!(ended.status == Some(3), "{ended:?}");
        let (version, _) = self.series.split_once('-').unwrap_or((&self.series, ""));
        let version = format!("{version}.");
        ensure!(
            ended.lines.iter().any(|l| l.starts_with(&version)),
            "{ended:?}"
        );
        ensure!(ended.lines.contains(&path), "{ended:?}");
        ensure!(!written.exists(), "{path} reached this machine");
        let ended = self.command("rig", TOO_SHORT, ["sleep", "600"])?;
        ensure!(ended.status == Some(124), "{ended:?}");
        Ok(())
    }
}
