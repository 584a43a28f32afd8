//! `kubectl signpost` as an administrator of the cluster runs it.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use tests::binaries;
use tests::real_cluster::kubeconfig;

use crate::stage::Stage;

/// A command that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) text: String,
    /// Standard error.
    pub(crate) errors: String,
}

// === impl Stage ===

impl Stage {
    /// Returns `kubectl signpost`, to be run where the API server is.
    pub(crate) fn plugin(&self) -> Result<Command> {
        let network = self.cluster.lan().control();
        let mut command = network.command(binaries::find("kubectl-signpost")?);
        command.arg("--kubeconfig").arg(kubeconfig(&self.cluster)?);
        Ok(command)
    }

    /// Runs a command, however it ends.
    pub(crate) fn run_plugin(&self, arguments: &[&str]) -> Result<Ran> {
        let output = self.plugin()?.args(arguments).output();
        let output = output.context("it runs")?;
        Ok(Ran {
            code: output.status.code(),
            text: String::from_utf8_lossy(&output.stdout).into_owned(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Runs a command, which must exit with this code.
    pub(crate) fn signpost(&self, code: i32, arguments: &[&str]) -> Result<Ran> {
        let ran = self.run_plugin(arguments)?;
        let Ran { text, errors, .. } = &ran;
        ensure!(
            ran.code == Some(code),
            "{arguments:?} ended with {:?}, not {code}:\n{text}\n{errors}",
            ran.code
        );
        Ok(ran)
    }
}
