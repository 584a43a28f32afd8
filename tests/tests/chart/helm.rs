//! Runs Helm as a user would, but without the user's own configuration.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// The namespace of the installation.
pub(crate) const NAMESPACE: &str = "signpost-system";

/// Helm with a cluster.
#[derive(Debug)]
pub(crate) struct Helm {
    program: PathBuf,
    cluster: Cluster,
    /// Its caches and configuration; removed on drop.
    home: TempDir,
}

/// The cluster that answers Helm's requests.
#[derive(Debug, Clone)]
pub(crate) enum Cluster {
    /// None: templates are rendered as by `helm template`.
    None,
    /// The cluster of this kubeconfig file.
    Kubeconfig(PathBuf),
    /// A server without TLS at this URL.
    Server(String),
}

// === impl Helm ===

impl Helm {
    /// Creates a Helm for a cluster. Builds Helm if needed: some minutes, with progress on standard
    /// error.
    pub(crate) fn new(cluster: Cluster) -> Result<Helm> {
        Ok(Helm {
            program: build()?,
            cluster,
            home: tempfile::tempdir().context("failed to make a folder for Helm")?,
        })
    }

    /// Runs Helm with these arguments; returns its output. The error contains its error output.
    pub(crate) fn run(&self, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        let mut command = Command::new(&self.program);
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, self.home.path());
        }
        // Otherwise Helm would use the user's kubeconfig, or the cluster in which this test runs.
        command.env("KUBECONFIG", self.home.path().join("no-cluster"));
        command.env_remove("KUBERNETES_SERVICE_HOST");
        command.arg("--namespace").arg(NAMESPACE);
        match &self.cluster {
            Cluster::None => {}
            Cluster::Kubeconfig(file) => {
                command.env("KUBECONFIG", file);
            }
            Cluster::Server(url) => {
                command.arg("--kube-apiserver").arg(url);
            }
        }
        let output = command
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .context("failed to run helm")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "helm failed: {}", said.trim());
        String::from_utf8(output.stdout).context("helm printed no text")
    }

    /// Renders the chart with these arguments. Requests data from the cluster if there is one.
    pub(crate) fn render(&self, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        // Without the first argument, Helm requests objects from the cluster but not its version.
        let ask: &[&str] = match self.cluster {
            Cluster::None => &["--dry-run=client"],
            Cluster::Kubeconfig(_) | Cluster::Server(_) => &[
                "--validate",
                "--dry-run=server",
                "--disable-openapi-validation",
            ],
        };
        let chart = chart();
        let mut all = [OsStr::new("template"), "signpost".as_ref(), chart.as_ref()].to_vec();
        all.extend(ask.iter().map(OsStr::new));
        all.extend(arguments.iter().map(AsRef::as_ref));
        self.run(&all)
    }
}

fn build() -> Result<PathBuf> {
    let script = repository().join("tools/helm/build");
    let output = Command::new(&script)
        .stdin(Stdio::null())
        // Show the progress, because the build takes minutes.
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("failed to run {}", script.display()))?;
    let status = output.status;
    ensure!(status.success(), "failed to build helm: {status}");
    let printed = String::from_utf8(output.stdout).context("the program's name is not UTF-8")?;
    let program = printed.lines().last();
    program
        .map(PathBuf::from)
        .context("the build has printed no program")
}

/// Returns the root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the folder of the chart.
pub(crate) fn chart() -> PathBuf {
    repository().join("charts/signpost")
}

/// Returns a folder of fixtures for these tests.
pub(crate) fn fixtures(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/chart")
        .join(name)
}
