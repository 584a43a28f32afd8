//! The real agent, in the node's namespace.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use crds::{NodeProxy, NodeProxyStatus};
use testkit::address_plan as addresses;

use super::interruption::Interruption;
use crate::binaries;
use crate::deadline::wait_for;
use crate::network::Namespace;

/// How long the agent may take for anything it is waited for.
const PROMPTLY: Duration = Duration::from_secs(10);
/// The agent's program.
const PROGRAM: &str = "signpost-agent";
/// Where /readyz and /debug answer, in the node's namespace.
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10249);
/// How many lines of its log explain its end.
const LAST_LINES: usize = 8;

/// Where an agent runs, what it reads and where it writes: the same before and after a restart.
#[derive(Debug, Clone)]
pub(super) struct Workplace {
    pub(super) node: Namespace,
    pub(super) manifests: PathBuf,
    /// Its status, its state and its log are in here.
    pub(super) folder: PathBuf,
    pub(super) interruption: Interruption,
}

/// A running agent; killed when this is dropped.
#[derive(Debug)]
pub(super) struct Agent {
    workplace: Workplace,
    child: Child,
}

// === impl Workplace ===

impl Workplace {
    fn status_file(&self) -> PathBuf {
        self.folder.join("status.yaml")
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("agent.log")
    }

    /// The end of the agent's log.
    fn observe_last_words(&self) -> String {
        let log = fs::read_to_string(self.log_file()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }
}

// === impl Agent ===

impl Agent {
    /// Starts it. Nothing is programmed yet when this returns.
    pub(super) fn start(workplace: &Workplace) -> Result<Agent> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(workplace.log_file())?;
        // The kernel ends it if this process is killed and cannot.
        let mut command = workplace.node.command("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        command.arg(binaries::find(PROGRAM)?);
        command.args(["run", "--node", addresses::NODE, "--manifests"]);
        command.arg(&workplace.manifests);
        command.arg("--status").arg(workplace.status_file());
        command.arg("--state").arg(workplace.folder.join("state"));
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("failed to start the agent")?;
        Ok(Agent {
            workplace: workplace.clone(),
            child,
        })
    }

    pub(super) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says that everything is programmed.
    pub(super) fn wait_until_ready(&mut self) -> Result<()> {
        self.wait_for("the agent to be ready", |agent| {
            // Until it listens, asking fails.
            Ok(agent.ask("/readyz").is_ok().then_some(()))
        })
    }

    /// Waits until its status is as `wanted`, and returns it.
    pub(super) fn wait_for_status(
        &mut self,
        what: &str,
        wanted: impl Fn(&NodeProxyStatus) -> bool,
    ) -> Result<NodeProxyStatus> {
        self.wait_for(what, |agent| {
            let file = agent.workplace.status_file();
            let text = match fs::read_to_string(&file) {
                Ok(text) => text,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error).context("failed to read the agent's status"),
            };
            let document: NodeProxy =
                serde_saphyr::from_str(&text).context("the agent's status is no NodeProxy")?;
            Ok(document.status.filter(&wanted))
        })
    }

    /// What it answers at `path`.
    pub(super) fn ask(&self, path: &str) -> Result<String> {
        let url = format!("http://{ADDRESS}{path}");
        self.workplace.node.enter(|| -> Result<String> {
            let client = ureq::Agent::config_builder()
                // A proxy that the person's environment names is not in this namespace.
                .proxy(None)
                .timeout_global(Some(PROMPTLY))
                .build()
                .new_agent();
            Ok(client.get(&url).call()?.body_mut().read_to_string()?)
        })?
    }

    /// What `signpost-agent explain` prints about a Service, asking this agent.
    pub(super) fn explain(&self, service: &str) -> Result<String> {
        let mut command = self.workplace.node.command(binaries::find(PROGRAM)?);
        let output = command.args(["explain", service]).output()?;
        ensure!(
            output.status.success(),
            "signpost-agent explain {service} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Ends it with SIGKILL. It learns nothing of it.
    pub(super) fn kill(mut self) -> Result<()> {
        self.child.kill().context("failed to kill the agent")?;
        let status = self.child.wait()?;
        ensure!(
            status.signal() == Some(9),
            "the agent ended with {status} before it was killed; it said last:\n{}",
            self.workplace.observe_last_words()
        );
        Ok(())
    }

    fn wait_for<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&Agent) -> Result<Option<T>>,
    ) -> Result<T> {
        let waited = wait_for(what, PROMPTLY, || {
            self.workplace.interruption.check()?;
            if let Some(status) = self.child.try_wait()? {
                bail!("the agent ended with {status}");
            }
            look(self)
        });
        waited.with_context(|| {
            format!(
                "the agent said last:\n{}",
                self.workplace.observe_last_words()
            )
        })
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // An error is that it has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Whether a process with this id runs.
pub(super) fn runs(process_id: u32) -> bool {
    Path::new("/proc").join(process_id.to_string()).exists()
}
