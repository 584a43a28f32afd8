//! Child processes that end with the test.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::deadline::{patience, wait_for};

/// A running child with line-by-line output and an open input. Killed on drop. Children that end
/// with their input also end when the test is killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    /// Starts `command`. Errors refer to it as `name`. It inherits the test's standard error.
    pub fn start(name: &str, mut command: Command) -> Result<Process> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("failed to start {name}"))?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("the output is a pipe")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Process {
            name: name.to_owned(),
            child,
            input,
            lines,
        })
    }

    /// Returns its process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next line of its output.
    pub fn next_line(&mut self, deadline: Duration) -> Result<String> {
        self.line_within(patience(deadline))
    }

    fn line_within(&mut self, deadline: Duration) -> Result<String> {
        match self.lines.recv_timeout(deadline) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                bail!("{} printed nothing within {deadline:?}", self.name)
            }
            Err(RecvTimeoutError::Disconnected) => {
                bail!("{} has ended and printed nothing more", self.name)
            }
        }
    }

    /// Waits until it prints exactly `expected`; skips other lines.
    pub fn wait_for_line(&mut self, expected: &str, deadline: Duration) -> Result<()> {
        let end = Instant::now() + patience(deadline);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self
                .line_within(left)
                .with_context(|| format!("{} did not print {expected:?}", self.name))?;
            if line == expected {
                return Ok(());
            }
        }
    }

    /// Writes a line to its input.
    pub fn write_line(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("its input is open")?;
        writeln!(input, "{line}").with_context(|| format!("{} does not read its input", self.name))
    }

    /// Waits until it ends with any status.
    pub fn wait_for_end(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let what = format!("{} to end", self.name);
        wait_for(&what, deadline, || Ok(self.child.try_wait()?))
    }

    /// Closes its input and waits for its remaining lines, then for its end, which must be a
    /// success.
    pub fn finish(mut self, deadline: Duration) -> Result<Vec<String>> {
        self.input = None;
        let deadline = patience(deadline);
        let end = Instant::now() + deadline;
        let mut lines = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => lines.push(line),
                // It has closed its output because it has ended.
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{} did not end within {deadline:?}", self.name)
                }
            }
        }
        let status = self.child.wait()?;
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(lines)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it has already ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
