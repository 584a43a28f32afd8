//! One program of the control plane as a process.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Runs a server for as long as our end of its input is open, and ends as it does. The kernel closes
/// our end whichever way we end, so that no server outlives a test that is killed. (The signal that
/// Linux can send to the children of the dead comes when a thread ends, and tests are threads.)
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

/// How much of a log an error shows.
const SHOWN_LINES: usize = 25;

/// A running process. It has ended when the drop of this has.
#[derive(Debug)]
pub(super) struct Server {
    name: &'static str,
    leash: Child,
    log: PathBuf,
}

impl Server {
    /// Starts it, with its output appended to the log.
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
            // Ctrl-C in a terminal is for us, who end the servers in the right order.
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

    /// Fails when it has ended by itself.
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

    /// The end of its log, for an error.
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
        // It ends once the server has; an error is that this was known already.
        drop(self.leash.wait());
    }
}

/// A whole log. Programs may log what is not UTF-8.
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
