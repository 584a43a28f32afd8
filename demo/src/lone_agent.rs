//! A real agent in a network namespace, with a directory of manifests in place of a cluster.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use address_plan as addresses;
use anyhow::{Context, Result, bail, ensure};
use crds::condition::READY;
use crds::{NodeProxy, NodeProxyStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, waitid};

use crate::binaries;
use crate::deadline::wait_for;
use crate::network::Namespace;

/// The agent's program.
const PROGRAM: &str = "signpost-agent";
/// The exit code if the kernel differs from the desired state.
const DIFFERS: i32 = 3;
/// The default address of /metrics, /readyz and /debug, in the namespace.
const ADDRESS: &str = "127.0.0.1:10249";
/// The address of the metrics-only server, reachable from outside the node.
const SCRAPE_ADDRESS: &str = "0.0.0.0:10263";
/// The number of log lines in an error message.
const LAST_LINES: usize = 20;

/// The environment of an agent, which stays the same across restarts.
#[derive(Debug, Clone)]
pub struct Workplace {
    /// The network namespace that the agent programs as `node-1`.
    pub node: Namespace,
    /// The source of its objects.
    pub source: Source,
    /// The folder of its status, state and log; restarted agents append to the log.
    pub folder: PathBuf,
    /// Its access to `/proc/sys`.
    pub sysctls: Sysctls,
    /// The timeout of every wait for the agent.
    pub deadline: Duration,
}

/// The source of an agent's objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A directory of manifests.
    Manifests(PathBuf),
    /// The API server in this kubeconfig file, which may be unreachable.
    Kubeconfig(PathBuf),
}

/// An agent's access to `/proc/sys`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sysctls {
    /// Writable.
    Writable,
    /// Read-only, as in an unprivileged container.
    ReadOnly,
    /// Read-only, with the node's `net/netfilter` mounted separately, as in the agent's Pod.
    NetfilterMounted,
}

/// A running agent. Killed on drop, and when the thread that started it ends.
#[derive(Debug)]
pub struct LoneAgent {
    workplace: Workplace,
    child: Child,
}

// === impl Workplace ===

impl Workplace {
    /// Returns a command that executes `program`, which the kernel kills if this process is killed.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self.sysctls {
            Sysctls::Writable => self.node.command("setpriv"),
            Sysctls::ReadOnly => below_read_only_sysctls(&self.node, None),
            Sysctls::NetfilterMounted => {
                below_read_only_sysctls(&self.node, Some(&self.mounted_sysctls()))
            }
        };
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    }

    fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    fn status_file(&self) -> PathBuf {
        self.folder.join("status.yaml")
    }

    /// Returns the path of the agent's lock for legacy iptables, separate from the machine's.
    pub fn xtables_lock(&self) -> PathBuf {
        self.folder.join("xtables.lock")
    }

    fn mounted_sysctls(&self) -> PathBuf {
        self.folder.join("sysctls")
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("agent.log")
    }
}

/// Returns `setpriv` in a private mount namespace with a read-only `/proc/sys`, and optionally with
/// `net/netfilter` mounted below `mounted`. The mounts do not propagate out of the namespace.
fn below_read_only_sysctls(node: &Namespace, mounted: Option<&Path>) -> Command {
    let mount = "if [ -n \"$1\" ]; then mkdir -p \"$1/net/netfilter\" \
                 && mount --bind /proc/sys/net/netfilter \"$1/net/netfilter\" || exit; fi; shift; \
                 mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys \
                 && exec setpriv \"$@\"";
    let mut command = node.command("unshare");
    command.args(["--mount", "--", "sh", "-c", mount, "sh"]);
    command.arg(mounted.unwrap_or(Path::new("")));
    command
}

/// Returns the sum of a metric in what `/metrics` answers. Not 0 without a series: a test that expects
/// 0 of a metric whose name has changed would pass.
fn sum(metrics: &str, name: &str) -> Result<f64> {
    let series = metrics
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '))
        .filter(|(series, _)| *series == name || series.split('{').next() == Some(name));
    let values: Result<Vec<f64>, _> = series.map(|(_, value)| value.parse()).collect();
    let values = values.with_context(|| format!("{name} is no number"))?;
    ensure!(!values.is_empty(), "the agent has no series {name}");
    Ok(values.iter().sum())
}

// === impl LoneAgent ===

impl LoneAgent {
    /// Starts the agent. Nothing is programmed yet when this returns.
    pub fn start(workplace: &Workplace) -> Result<LoneAgent> {
        LoneAgent::start_as(workplace, workplace.command(binaries::find(PROGRAM)?))
    }

    /// Starts the agent's process. It stops by SIGSTOP before it becomes the agent, until it gets
    /// SIGCONT.
    pub fn start_stopped(workplace: &Workplace) -> Result<LoneAgent> {
        let mut command = workplace.command("sh");
        command.args(["-c", "kill -s STOP $$; exec \"$0\" \"$@\""]);
        command.arg(binaries::find(PROGRAM)?);
        LoneAgent::start_as(workplace, command)
    }

    /// Starts the agent by `command`, which takes the arguments of the program.
    fn start_as(workplace: &Workplace, mut command: Command) -> Result<LoneAgent> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(workplace.log_file())
            .context("failed to open the agent's log")?;
        command.args(["run", "--node", addresses::NODE]);
        match &workplace.source {
            Source::Manifests(directory) => command.arg("--manifests").arg(directory),
            Source::Kubeconfig(file) => command.arg("--kubeconfig").arg(file),
        };
        command.arg("--status").arg(workplace.status_file());
        command.arg("--state").arg(workplace.state());
        command.arg("--xtables-lock").arg(workplace.xtables_lock());
        command.args(["--scrape-address", SCRAPE_ADDRESS]);
        if workplace.sysctls == Sysctls::NetfilterMounted {
            command.arg("--sysctls").arg(workplace.mounted_sysctls());
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("failed to start the agent")?;
        Ok(LoneAgent {
            workplace: workplace.clone(),
            child,
        })
    }

    /// Returns its process ID.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Polls `poll` until it returns a value. Fails if `poll` fails, if the agent has ended, or at
    /// the deadline; the error contains the end of the log.
    pub fn wait_for<T>(
        &self,
        what: &str,
        mut poll: impl FnMut(&LoneAgent) -> Result<Option<T>>,
    ) -> Result<T> {
        let waited = wait_for(what, self.workplace.deadline, || {
            self.ensure_runs()?;
            poll(self)
        });
        waited.with_context(|| self.last_words())
    }

    /// Waits until the agent reports that everything is programmed, by its probe and by its status,
    /// which follows a moment later.
    pub fn wait_until_ready(&self) -> Result<()> {
        self.wait_for("the agent to be ready", |agent| {
            let is_reported = |ready: Condition| ready.status == "True";
            let is_ready = agent.is_ready() && agent.condition(READY)?.is_some_and(is_reported);
            Ok(is_ready.then_some(()))
        })
    }

    /// Whether the agent reports that everything is programmed.
    pub fn is_ready(&self) -> bool {
        // The request fails until the agent listens.
        self.get("/readyz").is_ok()
    }

    /// Returns the body at `path`. Fails for any other status than success.
    pub fn get(&self, path: &str) -> Result<String> {
        self.get_within(path, self.workplace.deadline)
    }

    fn get_within(&self, path: &str, deadline: Duration) -> Result<String> {
        let url = format!("http://{ADDRESS}{path}");
        let answer = self.workplace.node.get(&url, deadline)?;
        let (status, body) = (answer.status(), answer.into_body());
        ensure!(status.is_success(), "{path} answers {status}: {body}");
        Ok(body)
    }

    /// Returns the output of `signpost-agent` run on the node with `arguments`.
    pub fn ask(&self, arguments: &[&str]) -> Result<String> {
        self.compare(arguments).map(|(text, _)| text)
    }

    /// Returns the same output, and, from the exit code, whether the kernel matches the desired
    /// state.
    pub fn compare(&self, arguments: &[&str]) -> Result<(String, bool)> {
        let mut command = self.workplace.node.command(binaries::find(PROGRAM)?);
        command.env("SIGNPOST_STATE", self.workplace.state());
        let output = command.args(arguments).output()?;
        let agrees = output.status.success();
        ensure!(
            agrees || output.status.code() == Some(DIFFERS),
            "{PROGRAM} {} failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok((String::from_utf8(output.stdout)?, agrees))
    }

    /// Returns the sum of a metric over all of its labels, or the value of one series
    /// (`name{label="value"}`). Fails if there is none.
    pub fn metric(&self, name: &str) -> Result<f64> {
        sum(&self.get("/metrics")?, name)
    }

    /// The same of an agent that may not answer. Fails after `deadline`, too.
    pub fn metric_within(&self, name: &str, deadline: Duration) -> Result<f64> {
        sum(&self.get_within("/metrics", deadline)?, name)
    }

    /// Returns the reported status of the node; `None` before the first report.
    pub fn status(&self) -> Result<Option<NodeProxyStatus>> {
        let text = match fs::read_to_string(self.workplace.status_file()) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context("failed to read the agent's status"),
        };
        let document: NodeProxy =
            serde_saphyr::from_str(&text).context("the agent's status is no NodeProxy")?;
        Ok(document.status)
    }

    /// Returns a condition of the node; `None` if it is not reported.
    pub fn condition(&self, kind: &str) -> Result<Option<Condition>> {
        let conditions = self.status()?.unwrap_or_default().conditions;
        let mut conditions = conditions.into_iter();
        Ok(conditions.find(|condition| condition.type_ == kind))
    }

    /// Returns the log of all agents of this workplace.
    pub fn log(&self) -> String {
        fs::read_to_string(self.workplace.log_file()).unwrap_or_default()
    }

    /// Kills the agent with SIGKILL. Fails if it has already ended.
    pub fn kill(self) -> Result<()> {
        self.ensure_runs().with_context(|| self.last_words())
        // The drop does the rest.
    }

    /// Whether it has not ended.
    pub fn is_running(&self) -> Result<bool> {
        Ok(self.observe_end()?.is_none())
    }

    fn observe_end(&self) -> Result<Option<WaitIdStatus>> {
        // Check without reaping, so that the process ID remains the agent's.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(Pid::from_child(&self.child)), options)?)
    }

    fn ensure_runs(&self) -> Result<()> {
        match self.observe_end()? {
            None => Ok(()),
            Some(ended) => bail!(
                "the agent has ended, with status {:?} or by signal {:?}",
                ended.exit_status(),
                ended.terminating_signal()
            ),
        }
    }

    fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(LAST_LINES)..];
        format!("the agent said last:\n{}", last.join("\n"))
    }
}

impl Drop for LoneAgent {
    fn drop(&mut self) {
        // An error means that the agent has already ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t249_a_metric_that_is_not_there_is_no_zero() -> Result<()> {
        let metrics = "# TYPE a counter\na_total{b=\"1\"} 2\na_total{b=\"2\"} 3\nnone 0\n";
        ensure!(sum(metrics, "a_total")? == 5.0);
        ensure!(sum(metrics, "a_total{b=\"2\"}")? == 3.0);
        ensure!(sum(metrics, "none")? == 0.0);
        for absent in ["a", "a_total{b=\"3\"}", "total"] {
            ensure!(sum(metrics, absent).is_err(), "{absent}");
        }
        Ok(())
    }
}
