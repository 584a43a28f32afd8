//! Helm, as a person runs it beside the control plane, but with nothing of the person's own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::RealCluster;
use crate::build_script;
use crate::network::Namespace;

/// Helm for a cluster.
#[derive(Debug)]
pub struct Helm {
    program: PathBuf,
    kubeconfig: PathBuf,
    network: Namespace,
    /// Its caches and what it keeps about a person.
    home: TempDir,
}

/// Builds Helm unless it is built: some minutes, with progress on standard error.
pub fn build() -> Result<PathBuf> {
    build_script::run("../tools/helm/build", &[]).context("failed to build helm")
}

/// The folder of our chart.
pub fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/signpost")
}

// === impl Helm ===

impl Helm {
    /// For the administrator.
    pub fn new(cluster: &RealCluster) -> Result<Helm> {
        Ok(Helm {
            program: build()?,
            kubeconfig: super::kubeconfig(cluster)?,
            network: cluster.lan().control().clone(),
            home: tempfile::tempdir().context("failed to make a folder for helm")?,
        })
    }

    /// Runs it with these arguments, and returns what it prints. The error has what it complains of.
    pub fn run(&self, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        let mut command = self.network.command(&self.program);
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, self.home.path());
        }
        let output = command
            .env("KUBECONFIG", &self.kubeconfig)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .context("failed to run helm")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "helm failed: {}", said.trim());
        String::from_utf8(output.stdout).context("helm printed no text")
    }
}
