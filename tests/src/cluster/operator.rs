//! The operator: a process next to the control plane.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Cluster, DEADLINE, Program};
use crate::binaries;
use crate::deadline::wait_for;

/// How long the operator may take to stop after SIGTERM.
const ENDS_WITHIN: Duration = Duration::from_secs(15);

impl Cluster {
    /// Starts an operator with a new identity. Does nothing if one is running.
    pub fn start_operator(&mut self) -> Result<()> {
        if let Some(operator) = &mut self.operator
            && operator.observe_end()?.is_none()
        {
            return Ok(());
        }
        self.operators_started += 1;
        let control = self.topology.other("control")?;
        let mut command = control.command(binaries::find("signpost-operator")?);
        command.args([
            "run",
            "--identity",
            &self.operator_identity(),
            "--kubeconfig",
        ]);
        command.arg(&self.operator_kubeconfig);
        self.operator = Some(Program::start(
            "operator",
            command,
            &self.files.log("operator"),
        )?);
        Ok(())
    }

    /// Returns the identity of the latest operator, as the lease names its holder.
    pub fn operator_identity(&self) -> String {
        format!("operator-{}", self.operators_started)
    }

    /// Returns the process ID of the operator.
    pub fn operator_id(&self) -> Result<u32> {
        Ok(self.operator.as_ref().context("the operator runs")?.id())
    }

    /// Stops the operator as `kubectl delete pod` would, with time to release its lease.
    pub fn stop_operator(&mut self) -> Result<()> {
        let operator = self.operator.take().context("the operator runs")?;
        operator.stop(ENDS_WITHIN)
    }

    /// Kills the operator as the failure of its node would.
    pub fn kill_operator(&mut self) -> Result<()> {
        self.operator.take().context("the operator runs")?.kill()
    }

    /// Waits until the latest operator holds the lease.
    pub fn wait_for_leader(&self) -> Result<()> {
        let identity = self.operator_identity();
        wait_for(&format!("{identity} to hold the lease"), DEADLINE, || {
            let lease = ["lease", "signpost-operator", "--namespace=signpost-system"];
            let lease: Value = self.get(&lease)?;
            Ok((lease["spec"]["holderIdentity"] == identity.as_str()).then_some(()))
        })
    }
}
