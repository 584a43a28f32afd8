//! A Signpost program as a process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::deadline::wait_for;

/// Kills the process with the given ID once its own input ends, which the kernel ensures however
/// the test process ends. PR_SET_PDEATHSIG would not work: it is sent when the parent thread ends,
/// and tests are threads.
const GUARD: &str = r#"read -r _; kill -KILL "$1""#;

/// The number of log lines in an error message.
const SHOWN_LINES: usize = 20;

/// A running process with its own process ID. Dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    guard: Child,
    log: PathBuf,
}

impl Program {
    /// Starts `command` and appends its output to `log`. Errors refer to it as `name`.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Result<Program> {
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("failed to open the log of {name}"))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("failed to share a log")?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("failed to start {name}"))?;
        let guard = Command::new("sh")
            .args(["-c", GUARD, "sh", &child.id().to_string()])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("failed to guard {name}"))?;
        Ok(Program {
            name: name.to_owned(),
            child,
            guard,
            log: log.to_owned(),
        })
    }

    /// Returns its process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns its exit status if it has ended.
    pub fn observe_end(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait();
        status.with_context(|| format!("failed to look at {}", self.name))
    }

    /// Fails if it has ended.
    pub fn ensure_runs(&mut self) -> Result<()> {
        match self.observe_end()? {
            None => Ok(()),
            Some(status) => {
                let log = describe_log(&self.log);
                bail!(
                    "{} has ended ({status}); its log ends with\n{log}",
                    self.name
                )
            }
        }
    }

    /// Kills it with SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        self.ensure_runs()
        // The drop does the rest.
    }

    /// Stops it with SIGTERM. It must succeed within `deadline`.
    pub fn stop(mut self, deadline: Duration) -> Result<()> {
        self.ensure_runs()?;
        let id = i32::try_from(self.child.id()).context("a process id is a small number")?;
        let id = Pid::from_raw(id).context("no process has the id 0")?;
        kill_process(id, Signal::TERM).with_context(|| format!("failed to stop {}", self.name))?;
        let what = format!("{} to end", self.name);
        let status = wait_for(&what, deadline, || self.observe_end())?;
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Kill the guard first: afterwards the process ID may belong to another process. An error
        // means that the process has already ended.
        drop(self.guard.kill());
        drop(self.guard.wait());
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns the end of a log for an error message; empty if nothing was logged.
pub(super) fn describe_log(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}
