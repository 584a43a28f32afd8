//! A program of the control plane as a process.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Runs a server while the test's end of its input is open, and exits as the server does. The
/// kernel closes that end however the test ends, so that no server outlives a killed test.
/// (PR_SET_PDEATHSIG would not work: it is sent when the parent thread ends, and tests are
/// threads.)
const LEASH: &str = r#"
exec 3<&0 </dev/null
"$@" 3<&- &
server=$!
{ read -r _ <&3; kill -KILL "$server"; } &
guard=$!
exec 3<&-
wait "$server"
status=$?
kill -KILL "$guard"
exit "$status"
"#;

/// The number of log lines in an error message.
const SHOWN_LINES: usize = 25;

/// A running process. Dropping it ends it and waits for its end.
#[derive(Debug)]
pub(super) struct Server {
    name: &'static str,
    leash: Child,
    log: PathBuf,
}

impl Server {
    /// Starts the server and appends its output to the log.
    pub(super) fn start(name: &'static str, command: &Command, log: &Path) -> Result<Server> {
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("failed to open the log of {name}"))?;
        let leash = Command::new("sh")
            .args(["-c", LEASH, "sh"])
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::piped())
            .stdout(output.try_clone().context("failed to share a log")?)
            .stderr(output)
            // Ctrl-C in a terminal must reach only the test, which ends the servers in the right
            // order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("failed to start {name}"))?;
        Ok(Server {
            name,
            leash,
            log: log.to_owned(),
        })
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Fails if the server has ended by itself.
    pub(super) fn ensure_runs(&mut self) -> Result<()> {
        let status = self
            .leash
            .try_wait()
            .with_context(|| format!("failed to look at {}", self.name))?;
        ensure!(
            status.is_none(),
            "{} has ended ({}); {}",
            self.name,
            status.unwrap_or_default(),
            self.describe_log()
        );
        Ok(())
    }

    /// Returns the end of its log for an error message.
    pub(super) fn describe_log(&self) -> String {
        let log = match read_log(&self.log) {
            Ok(log) => log,
            Err(error) => return format!("{error:#}"),
        };
        let lines: Vec<&str> = log.lines().collect();
        let shown = lines.split_at(lines.len().saturating_sub(SHOWN_LINES)).1;
        format!("the end of the log of {}:\n{}", self.name, shown.join("\n"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.leash.stdin.take());
        // The leash ends after the server. An error means that it was already waited for.
        drop(self.leash.wait());
    }
}

/// Reads a whole log, which may not be valid UTF-8.
pub(super) fn read_log(log: &Path) -> Result<String> {
    let bytes = fs::read(log).with_context(|| format!("failed to read {}", log.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::deadline::wait_for;

    #[test]
    fn a_server_that_ends_is_reported_with_its_status_and_what_it_said_last() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new("sh");
        command.args(["-c", "echo the disk is full >&2; exit 3"]);
        let mut server = Server::start("etcd", &command, &folder.path().join("log"))?;
        let error = wait_for("the server to end", Duration::from_secs(10), || {
            Ok(server.ensure_runs().err())
        })?;
        let error = error.to_string();
        assert!(error.contains("etcd has ended (exit status: 3)"), "{error}");
        assert!(error.contains("the disk is full"), "{error}");
        Ok(())
    }

    #[test]
    fn a_server_that_ignores_signals_has_ended_when_it_is_dropped() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("log");
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "trap '' TERM HUP INT; echo $$; while :; do sleep 0.05; done",
        ]);
        let server = Server::start("etcd", &command, &log)?;
        let pid = wait_for("the server to run", Duration::from_secs(10), || {
            let said = read_log(&log)?;
            Ok(said.ends_with('\n').then(|| said.trim().to_owned()))
        })?;
        let process = Path::new("/proc").join(pid);
        assert!(process.exists());
        drop(server);
        assert!(!process.exists());
        Ok(())
    }
}
