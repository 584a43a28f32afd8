//! Runs Kubernetes' test program against a cluster.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use super::ginkgo::Report;
use super::selection::Selection;
use crate::build_script;
use crate::real_cluster::{self, RealCluster};

/// The built programs and images of the tests.
#[derive(Debug, Clone)]
pub struct Suite {
    folder: PathBuf,
}

/// What to run and how.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    /// The tests to run.
    pub selection: &'a Selection,
    /// The number of concurrent tests.
    pub processes: u8,
    /// The folder for ginkgo's report and its output.
    pub folder: &'a Path,
    /// The name of both files without their extensions.
    pub name: &'a str,
}

/// A finished test, as ginkgo prints it during a concurrent run.
#[derive(Debug, PartialEq, Eq)]
struct Ended<'a> {
    how: &'a str,
    /// Its duration in seconds.
    seconds: &'a str,
    /// Its full name.
    name: &'a str,
}

// === impl Suite ===

impl Suite {
    /// Builds the suite if needed: some minutes, with progress on standard error.
    pub fn build() -> Result<Suite> {
        let folder = build_script::run("cluster/build", &["e2e"]);
        let folder = folder.context("failed to build Kubernetes' own tests")?;
        Ok(Suite { folder })
    }

    /// Returns the archives of images that the tests need in addition to those of every cluster.
    pub fn images(&self) -> Vec<PathBuf> {
        vec![self.folder.join("images/e2e.tar")]
    }

    /// Runs tests from the network of the control plane; returns the outcomes. Calls `say` with
    /// each finished test. Failed tests are not an error; that none could be run is one.
    pub fn run(
        &self,
        cluster: &RealCluster,
        order: Order<'_>,
        say: &dyn Fn(&str),
    ) -> Result<Report> {
        let Order {
            selection,
            processes,
            folder,
            name,
        } = order;
        fs::create_dir_all(folder)
            .with_context(|| format!("failed to make {}", folder.display()))?;
        let report = folder.join(format!("{name}.json"));
        // The report of an earlier run must not be mistaken for this one.
        drop(fs::remove_file(&report));
        let log = folder.join(format!("{name}.log"));
        let programs = cluster.control_plane().programs();
        let mut command = cluster.lan().control().command(self.folder.join("ginkgo"));
        command
            .arg(format!("--procs={processes}"))
            .args(["-v", "--no-color", "--timeout=4h"])
            .arg(format!("--json-report={name}.json"))
            .arg(format!("--output-dir={}", folder.display()))
            .args(selection.arguments())
            .arg(self.folder.join("e2e.test"))
            .args(["--", "--provider=skeleton", "--disable-log-dump"])
            // The skeleton provider does not count the nodes, and tests that require two would skip
            // themselves.
            .arg(format!("--num-nodes={}", cluster.nodes().count()))
            .arg(format!(
                "--kubeconfig={}",
                real_cluster::kubeconfig(cluster)?.display()
            ))
            .arg(format!(
                "--kubectl-path={}",
                programs.join("kubectl").display()
            ))
            .env("KUBE_TEST_REPO_LIST", self.folder.join("repositories.yaml"))
            // The cache of the kubectl that the tests call: separate from the user's own.
            .env("HOME", std::env::temp_dir())
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(folder.join(format!("{name}.errors")))?);
        let mut child = command.spawn().context("failed to start ginkgo")?;
        let output = child.stdout.take().context("the output is a pipe")?;
        let mut kept =
            File::create(&log).with_context(|| format!("failed to write {}", log.display()))?;
        let mut previous = String::new();
        let mut count = 0_usize;
        for line in BufReader::new(output).split(b'\n') {
            let line = line.context("failed to read what ginkgo prints")?;
            let line = String::from_utf8_lossy(&line).into_owned();
            writeln!(kept, "{line}").context("failed to keep what ginkgo prints")?;
            if let Some(ended) = Ended::parse(&previous, &line) {
                count += 1;
                let Ended { how, seconds, name } = ended;
                say(&format!("{count} {how} after {seconds} s: {name}"));
            }
            previous = line;
        }
        let status = child.wait().context("failed to wait for ginkgo")?;
        // ginkgo fails if any test fails; the report decides.
        ensure!(
            report.exists(),
            "ginkgo ended with {status} and no report; see {}",
            log.display()
        );
        let text = fs::read_to_string(&report)
            .with_context(|| format!("failed to read {}", report.display()))?;
        Report::parse(&text).with_context(|| format!("see {}", log.display()))
    }
}

// === impl Ended ===

impl<'a> Ended<'a> {
    /// Parses two consecutive lines. `DidRun` in ginkgo's reporters/default_reporter.go prints the
    /// outcome on one line, and the name and the labels on the next.
    fn parse(line: &'a str, next: &'a str) -> Option<Ended<'a>> {
        let (states, seconds) = line.strip_suffix(" seconds]")?.rsplit_once('[')?;
        let how = match states {
            "• " => "passed",
            "S [SKIPPED] " => "skipped",
            states if states.starts_with("• [") => "FAILED",
            _ => return None,
        };
        // Steps before and after all tests do not have such a name.
        let name = next.starts_with("[sig-").then_some(next)?;
        let name = name.split_once(" [sig-").map_or(name, |(name, _)| name);
        Some(Ended { how, seconds, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_ended_are_seen_in_what_ginkgo_prints() {
        let name = "[sig-network] Services should serve [Conformance]";
        let next = format!("{name} [sig-network, Conformance]");
        for (line, how, seconds) in [
            ("• [12.345 seconds]", "passed", "12.345"),
            ("• [FAILED] [312.345 seconds]", "FAILED", "312.345"),
            ("• [TIMEDOUT] [312.345 seconds]", "FAILED", "312.345"),
            ("S [SKIPPED] [0.345 seconds]", "skipped", "0.345"),
        ] {
            let expected = Some(Ended { how, seconds, name });
            assert_eq!(Ended::parse(line, &next), expected, "{line}");
        }
    }

    #[test]
    fn nothing_else_ended() {
        let name = "[sig-network] Services should serve";
        for (line, next) in [
            ("------------------------------", name),
            ("SSSSSSSSS•SSS", name),
            ("[SynchronizedBeforeSuite] PASSED [1.250 seconds]", name),
            ("• [12.345 seconds]", "------------------------------"),
            ("  STEP: waiting [12.3 seconds]", name),
        ] {
            assert_eq!(Ended::parse(line, next), None, "{line}");
        }
    }
}
