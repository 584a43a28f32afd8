//! The operator as a process.

use std::net::SocketAddrV4;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tests::binaries;
use tests::control_plane::ServiceAccount;
use tests::network::Process;

use crate::cluster::Cluster;
use crate::{DEADLINE, NAMESPACE, NODES};

/// Runs a program until the test's end of the input is closed, however the test ends; prints the
/// program's process ID and later its exit status.
const LEASH: &str = r#"
exec 3<&0 </dev/null
"$@" 3<&- >&2 &
program=$!
echo "$program"
{ read -r _ <&3; kill -KILL "$program"; } 2>/dev/null &
guard=$!
exec 3<&-
wait "$program" 2>/dev/null
echo "ended $?"
kill -KILL "$guard" 2>/dev/null
"#;

/// A running operator.
pub(crate) struct Operator {
    leash: Process,
    pid: Pid,
}

// === impl Operator ===

impl Operator {
    /// Starts an operator on `cluster` with the permissions of its manifests.
    pub(crate) fn start(cluster: &Cluster, identity: &str) -> Result<Operator> {
        Operator::start_at(cluster.control_plane.address(), cluster, identity)
    }

    /// The same, with a profile for all nodes; returns once each node is given it.
    pub(crate) fn start_with_profile(cluster: &Cluster) -> Result<Operator> {
        let operator = Operator::start(cluster, "operator-1")?;
        cluster.put_profile("default", json!({}))?;
        for node in NODES {
            cluster.wait_for_stamp(node, "default", "nftables")?;
        }
        Ok(operator)
    }

    /// The same; returns once all nodes are ready with it.
    pub(crate) fn start_with_ready_nodes(cluster: &Cluster) -> Result<Operator> {
        let operator = Operator::start_with_profile(cluster)?;
        for node in NODES {
            cluster.report_ready(node)?;
        }
        cluster.wait_for_condition("default", "Ready", "True/AllNodesProgrammed")?;
        Ok(operator)
    }

    /// Starts an operator that reaches the API server at `address`.
    pub(crate) fn start_at(
        address: SocketAddrV4,
        cluster: &Cluster,
        identity: &str,
    ) -> Result<Operator> {
        let account = ServiceAccount::new(NAMESPACE, "signpost-operator");
        let kubeconfig = cluster.control_plane.kubeconfig_at(address, &account)?;
        let mut command = Command::new("sh");
        command
            .args(["-c", LEASH, "sh"])
            .arg(binaries::find("signpost-operator")?);
        command.args([
            "run",
            "--metrics-address=127.0.0.1:0",
            "--log=info,kube=error",
        ]);
        command
            .arg(format!("--identity={identity}"))
            .arg("--kubeconfig")
            .arg(kubeconfig);
        let mut leash = Process::start(identity, command)?;
        let pid = leash
            .next_line(DEADLINE)?
            .parse()
            .ok()
            .and_then(Pid::from_raw);
        Ok(Operator {
            leash,
            pid: pid.context("a process id")?,
        })
    }

    /// Stops it with SIGTERM and waits for a successful exit.
    pub(crate) fn stop(mut self) -> Result<()> {
        kill_process(self.pid, Signal::TERM)?;
        self.leash.wait_for_line("ended 0", DEADLINE)
    }

    /// Kills it with SIGKILL and waits for its end.
    pub(crate) fn crash(mut self) -> Result<()> {
        kill_process(self.pid, Signal::KILL)?;
        self.leash.wait_for_line("ended 137", DEADLINE)
    }

    /// Stops its process with SIGSTOP: it no longer acts, and its connections stay open.
    pub(crate) fn suspend(&self) -> Result<()> {
        kill_process(self.pid, Signal::STOP).context("failed to stop the operator")
    }

    /// Lets its process continue.
    pub(crate) fn resume(&self) -> Result<()> {
        kill_process(self.pid, Signal::CONT).context("failed to continue the operator")
    }

    /// Waits until it has ended by itself with this code.
    pub(crate) fn wait_for_end(&mut self, code: u8) -> Result<()> {
        self.leash.wait_for_line(&format!("ended {code}"), DEADLINE)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // Through its input, because the process ID may belong to another process by now.
        drop(self.leash.write_line("end"));
        drop(self.leash.next_line(DEADLINE));
    }
}
