//! The programs of the control plane, and how they get here.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::build_script;

/// A folder with etcd, kube-apiserver, kube-controller-manager and, unless someone else has filled
/// it, kubectl, kube-proxy, kube-scheduler and kubelet.
#[derive(Debug)]
pub(super) struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Runs the script that builds them, which returns at once when they are built.
    pub(super) fn build() -> Result<Programs> {
        let folder = build_script::run("control-plane/build", &[])
            .context("failed to build the control plane")?;
        Ok(Programs { folder })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A command that runs one of them, in a network namespace if one is given. It runs under the
    /// process id it is started with: `nsenter` becomes the program.
    pub(super) fn command(&self, program: &str, network: Option<&Path>) -> Command {
        let mut file = self.folder.join(program);
        // Folders made for envtest do not all have kubectl; the one on the PATH then serves.
        if program == "kubectl" && !file.exists() {
            file = PathBuf::from(program);
        }
        match network {
            None => Command::new(file),
            Some(namespace) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={}", namespace.display()));
                command.arg("--").arg(file);
                command
            }
        }
    }
}
