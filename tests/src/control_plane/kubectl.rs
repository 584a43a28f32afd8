//! Runs kubectl.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{ADMINISTRATOR, ControlPlane};

impl ControlPlane {
    /// Runs kubectl as the administrator and returns its output. The error of a failure contains
    /// its error output.
    pub fn kubectl(&self, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        self.kubectl_as(ADMINISTRATOR, arguments)
    }

    /// Runs kubectl as this user.
    pub fn kubectl_as(&self, user: &str, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        let mut command = self.kubectl_command(&self.kubeconfig(user)?);
        command.args(arguments);
        run(command, None)
    }

    /// Applies the objects in this YAML as the administrator; returns the output of kubectl.
    pub fn apply(&self, yaml: &str) -> Result<String> {
        let mut command = self.kubectl_command(&self.kubeconfig(ADMINISTRATOR)?);
        command.args(["apply", "--filename=-"]);
        run(command, Some(yaml))
    }

    /// Writes the status of an object in place of its owner, with a JSON merge patch:
    /// `patch_status("node/a", "default", "{status: …}")`. The namespace is ignored for
    /// cluster-scoped objects.
    pub fn patch_status(&self, object: &str, namespace: &str, patch: &str) -> Result<()> {
        let namespace = format!("--namespace={namespace}");
        let arguments = ["patch", object, &namespace, "--subresource=status"];
        let mut command = self.kubectl_command(&self.kubeconfig(ADMINISTRATOR)?);
        command
            .args(arguments)
            .args(["--type=merge", "--patch", patch]);
        run(command, None).map(drop)
    }

    /// Returns a kubectl command for the network of the control plane, with a kubeconfig.
    pub fn kubectl_command(&self, kubeconfig: &Path) -> Command {
        self.setting.kubectl(kubeconfig)
    }
}

/// Runs the command to its end and returns its output.
pub(super) fn run(mut command: Command, input: Option<&str>) -> Result<String> {
    let shown = describe(&command);
    let mut child = command
        .stdin(if input.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed to run {shown}"))?;
    // kubectl reads all of its input before it writes much, so the pipes cannot deadlock.
    let written = match (child.stdin.take(), input) {
        (Some(mut stdin), Some(input)) => stdin.write_all(input.as_bytes()),
        _ => Ok(()),
    };
    let output = child
        .wait_with_output()
        .with_context(|| format!("failed to wait for {shown}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{shown} failed: {}", said.trim());
    written.with_context(|| format!("{shown} did not read its input"))?;
    String::from_utf8(output.stdout).with_context(|| format!("{shown} printed no text"))
}

/// Returns the command as a user would type it: from "kubectl" on, without the added file
/// arguments.
fn describe(command: &Command) -> String {
    let words = command.get_args().map(|word| word.to_string_lossy());
    let typed = words
        .skip_while(|word| !word.starts_with("--kubeconfig="))
        .skip(2);
    typed.fold("kubectl".to_owned(), |line, word| line + " " + &word)
}
