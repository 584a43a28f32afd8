//! Helm, as a person would run it, but with nothing of the person's own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// The namespace that everything is installed into.
pub(crate) const NAMESPACE: &str = "signpost-system";

/// Helm, and which cluster it is for.
#[derive(Debug)]
pub(crate) struct Helm {
    program: PathBuf,
    cluster: Cluster,
    /// Its caches and what it keeps about a person; removed when this is dropped.
    home: TempDir,
}

/// Who answers what Helm wants to know of a cluster.
#[derive(Debug, Clone)]
pub(crate) enum Cluster {
    /// Nobody: templates are rendered as `helm template` does.
    None,
    /// The one that this kubeconfig file is for.
    Kubeconfig(PathBuf),
    /// A server without certificates at this URL.
    Server(String),
}

// === impl Helm ===

impl Helm {
    /// Helm for a cluster; built first, unless it is there: some minutes, with progress on standard
    /// error.
    pub(crate) fn new(cluster: Cluster) -> Result<Helm> {
        Ok(Helm {
            program: build()?,
            cluster,
            home: tempfile::tempdir().context("failed to make a folder for Helm")?,
        })
    }

    /// Runs it with these arguments, and returns what it prints. The error has what it complains of.
    pub(crate) fn run(&self, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        let mut command = Command::new(&self.program);
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, self.home.path());
        }
        // Without a file, Helm would take the person's own, or the cluster we run in.
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

    /// What the chart comes to with these arguments, the cluster being asked where there is one.
    pub(crate) fn render(&self, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        // Without the first of them, Helm asks for objects but not for the version.
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
        // Its progress goes where ours does: nobody waits for minutes in silence.
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

/// The top of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folder of the chart.
pub(crate) fn chart() -> PathBuf {
    repository().join("charts/signpost")
}

/// The folder with what these tests hold against the chart.
pub(crate) fn fixtures(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/chart")
        .join(name)
}
