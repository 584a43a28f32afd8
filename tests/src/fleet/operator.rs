//! Runs the real operator on the control plane of the measurement.

use std::process::Command;

use anyhow::Result;

use crate::bench::process_tree::ProcessTree;
use crate::binaries;
use crate::control_plane::{ControlPlane, ServiceAccount};
use crate::network::Process;

/// A running operator. It stops on drop.
#[derive(Debug)]
pub(super) struct Operator {
    process: Process,
}

// === impl Operator ===

impl Operator {
    /// Starts the operator with the permissions of its manifests.
    pub(super) fn start(control_plane: &ControlPlane) -> Result<Operator> {
        let account = ServiceAccount::new("signpost-system", "signpost-operator");
        let mut command = Command::new(binaries::find("signpost-operator")?);
        command
            .args([
                "run",
                "--metrics-address=127.0.0.1:0",
                "--log=warn,kube=error",
            ])
            .arg("--kubeconfig")
            .arg(control_plane.kubeconfig_of_account(&account)?);
        Ok(Operator {
            process: Process::start("signpost-operator", command)?,
        })
    }

    pub(super) fn tree(&self) -> ProcessTree {
        ProcessTree::of(self.process.id())
    }
}
