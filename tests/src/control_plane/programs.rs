//! The programs of the control plane and how they are built.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::build_script;
use crate::network::Namespace;

/// A folder with etcd, kube-apiserver, kube-controller-manager and, unless prepared externally,
/// kubectl, kube-proxy, kube-scheduler and kubelet.
#[derive(Debug)]
pub(super) struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Runs the build script, which returns at once if the programs are built.
    pub(super) fn build() -> Result<Programs> {
        let folder = build_script::run("control-plane/build", &[])
            .context("failed to build the control plane")?;
        Ok(Programs { folder })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns a command that runs a program, in a network namespace if one is given. The program
    /// keeps the process ID of the started process.
    pub(super) fn command(&self, program: &str, network: Option<&Namespace>) -> Command {
        let mut file = self.folder.join(program);
        // Folders prepared for envtest may lack kubectl; then the one in the PATH is used.
        if program == "kubectl" && !file.exists() {
            file = PathBuf::from(program);
        }
        match network {
            None => Command::new(file),
            Some(namespace) => namespace.command(file),
        }
    }
}
