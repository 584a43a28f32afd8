//! What a person would type.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{ADMINISTRATOR, ControlPlane};

impl ControlPlane {
    /// Runs kubectl as the administrator and returns what it prints. When it fails, the error has
    /// what it says.
    pub fn kubectl(&self, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        self.kubectl_as(ADMINISTRATOR, arguments)
    }

    /// Runs kubectl as this user.
    pub fn kubectl_as(&self, user: &str, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        let mut command = self.kubectl_command(&self.kubeconfig(user)?);
        command.args(arguments);
        run(command, None)
    }

    /// Creates or changes the objects in this YAML, as the administrator, and returns what kubectl
    /// says of each.
    pub fn apply(&self, yaml: &str) -> Result<String> {
        let mut command = self.kubectl_command(&self.kubeconfig(ADMINISTRATOR)?);
        command.args(["apply", "--filename=-"]);
        run(command, Some(yaml))
    }

    /// Sets the status of an object as the program that owns it would, with a JSON merge patch:
    /// `patch_status("node/a", "default", "{status: …}")`. Objects without a namespace ignore it.
    pub fn patch_status(&self, object: &str, namespace: &str, patch: &str) -> Result<()> {
        let namespace = format!("--namespace={namespace}");
        let arguments = ["patch", object, &namespace, "--subresource=status"];
        let mut command = self.kubectl_command(&self.kubeconfig(ADMINISTRATOR)?);
        command
            .args(arguments)
            .args(["--type=merge", "--patch", patch]);
        run(command, None).map(drop)
    }

    /// A kubectl that is yet to be run, where the control plane runs, as the user of a kubeconfig.
    pub fn kubectl_command(&self, kubeconfig: &Path) -> Command {
        self.setting.kubectl(kubeconfig)
    }
}

/// Runs it to its end and returns its output.
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
    // It reads everything before it writes much, so neither side waits for the other.
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

/// The command as a person would type it: from "kubectl" on, without the files that we add.
fn describe(command: &Command) -> String {
    let words = command.get_args().map(|word| word.to_string_lossy());
    let typed = words
        .skip_while(|word| !word.starts_with("--kubeconfig="))
        .skip(2);
    typed.fold("kubectl".to_owned(), |line, word| line + " " + &word)
}
