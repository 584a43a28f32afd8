//! The real agent, alone in a network namespace: a directory of manifests takes the place of a cluster.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use address_plan as addresses;
use anyhow::{Context, Result, bail, ensure};
use crds::{NodeProxy, NodeProxyStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::binaries;
use crate::deadline::wait_for;
use crate::network::Namespace;

/// The agent's program.
const PROGRAM: &str = "signpost-agent";
/// Its exit code where kernel and desired state differ.
const DIFFERS: i32 = 3;
/// Where /metrics, /readyz and /debug answer unless a profile says otherwise, in the namespace.
const ADDRESS: &str = "127.0.0.1:10249";
/// Where it serves metrics alone, to all who reach its node.
const SCRAPE_ADDRESS: &str = "0.0.0.0:10263";
/// How many lines of its log explain an error.
const LAST_LINES: usize = 20;

/// Where an agent runs, what it follows and where it writes: the same before and after a restart.
#[derive(Debug, Clone)]
pub struct Workplace {
    /// The network namespace that it programs, as `node-1`.
    pub node: Namespace,
    /// What it follows.
    pub source: Source,
    /// Its status, its state and its log are in here; agents add to the log of those before.
    pub folder: PathBuf,
    /// What it finds at `/proc/sys`.
    pub sysctls: Sysctls,
    /// How long it may take for anything that it is waited for.
    pub deadline: Duration,
}

/// What an agent follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A directory of manifests.
    Manifests(PathBuf),
    /// The API server that this kubeconfig file names, whether anybody runs it or not.
    Kubeconfig(PathBuf),
}

/// What an agent finds at `/proc/sys`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sysctls {
    /// Files that it may write.
    Writable,
    /// What a container without privileges has.
    ReadOnly,
    /// The same, and what a Pod of the agent mounts beside it: `net/netfilter` of the node.
    NetfilterMounted,
}

/// A running agent. Killed when this is dropped, and when the thread that has started it ends.
#[derive(Debug)]
pub struct LoneAgent {
    workplace: Workplace,
    child: Child,
}

// === impl Workplace ===

impl Workplace {
    /// A command that becomes `program`, which the kernel ends if this process is killed and cannot.
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

    /// The lock that it takes for the tables of legacy iptables: not the machine's.
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

/// `setpriv` with mounts of its own, of which one may be at `mounted`. Of a mount namespace of a test
/// nothing comes back.
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

// === impl LoneAgent ===

impl LoneAgent {
    /// Starts it. Nothing is programmed yet when this returns.
    pub fn start(workplace: &Workplace) -> Result<LoneAgent> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(workplace.log_file())
            .context("failed to open the agent's log")?;
        let mut command = workplace.command(binaries::find(PROGRAM)?);
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

    /// Its process id.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `look` sees something, and returns it. Fails when `look` does, when the agent has
    /// ended, and at its deadline; the end of its log explains the error.
    pub fn wait_for<T>(
        &self,
        what: &str,
        mut look: impl FnMut(&LoneAgent) -> Result<Option<T>>,
    ) -> Result<T> {
        let waited = wait_for(what, self.workplace.deadline, || {
            self.ensure_runs()?;
            look(self)
        });
        waited.with_context(|| self.last_words())
    }

    /// Waits until it says that everything is programmed.
    pub fn wait_until_ready(&self) -> Result<()> {
        self.wait_for("the agent to be ready", |agent| {
            Ok(agent.is_ready().then_some(()))
        })
    }

    /// Whether it says that everything is programmed.
    pub fn is_ready(&self) -> bool {
        // Until it listens, asking fails.
        self.get("/readyz").is_ok()
    }

    /// What it answers at `path`, which has to be a success.
    pub fn get(&self, path: &str) -> Result<String> {
        let url = format!("http://{ADDRESS}{path}");
        let answer = self.workplace.node.get(&url, self.workplace.deadline)?;
        let (status, body) = (answer.status(), answer.into_body());
        ensure!(status.is_success(), "{path} answers {status}: {body}");
        Ok(body)
    }

    /// What `signpost-agent` prints when somebody on the node runs it with `arguments`.
    pub fn ask(&self, arguments: &[&str]) -> Result<String> {
        self.compare(arguments).map(|(text, _)| text)
    }

    /// The same, and whether kernel and desired state agree by its exit code.
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

    /// The sum of a metric over all of its labels, or with labels (`name{label="value"}`) this one
    /// value; 0 while there is none.
    pub fn metric(&self, name: &str) -> Result<f64> {
        let text = self.get("/metrics")?;
        let values = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .filter(|(series, _)| *series == name || series.split('{').next() == Some(name));
        values.map(|(_, value)| Ok(value.parse::<f64>()?)).sum()
    }

    /// What it says of its node; `None` while it has said nothing.
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

    /// A condition of its node; `None` while it says nothing of it.
    pub fn condition(&self, kind: &str) -> Result<Option<Condition>> {
        let conditions = self.status()?.unwrap_or_default().conditions;
        let mut conditions = conditions.into_iter();
        Ok(conditions.find(|condition| condition.type_ == kind))
    }

    /// What agents of this workplace have logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.workplace.log_file()).unwrap_or_default()
    }

    /// Ends it with SIGKILL: it learns nothing of it. Fails when it has ended before.
    pub fn kill(self) -> Result<()> {
        self.ensure_runs().with_context(|| self.last_words())
        // The drop does the rest.
    }

    fn ensure_runs(&self) -> Result<()> {
        // Only looks: the process id stays the agent's.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(Pid::from_child(&self.child)), options)? {
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
        // An error is that it has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
