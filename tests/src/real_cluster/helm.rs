//! Runs Helm as a user would next to the control plane, but without the user's own configuration.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::RealCluster;
use crate::build_script;
use crate::network::Namespace;

/// Helm with a connection to a cluster.
#[derive(Debug)]
pub struct Helm {
    program: PathBuf,
    kubeconfig: PathBuf,
    network: Namespace,
    /// Its caches and configuration.
    home: TempDir,
}

/// Builds Helm if needed: some minutes, with progress on standard error.
pub fn build() -> Result<PathBuf> {
    build_script::run("../tools/helm/build", &[]).context("failed to build helm")
}

/// Returns the folder of Signpost's chart.
pub fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/signpost")
}

// === impl Helm ===

impl Helm {
    /// Creates a Helm with the administrator's credentials.
    pub fn new(cluster: &RealCluster) -> Result<Helm> {
        Ok(Helm {
            program: build()?,
            kubeconfig: super::kubeconfig(cluster)?,
            network: cluster.lan().control().clone(),
            home: tempfile::tempdir().context("failed to make a folder for helm")?,
        })
    }

    /// Runs Helm with these arguments; returns its output. The error contains its error output.
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
