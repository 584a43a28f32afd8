//! The programs of the control plane, and how they get here.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// A folder with etcd, kube-apiserver, kube-controller-manager and, unless someone else has filled
/// it, kubectl and kube-proxy.
#[derive(Debug)]
pub(super) struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Runs the script that builds them, which returns at once when they are built.
    pub(super) fn build() -> Result<Programs> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("control-plane/build");
        // Its progress goes where ours does: nobody waits ten minutes in silence.
        let output = Command::new(&script)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("failed to run {}", script.display()))?;
        ensure!(
            output.status.success(),
            "failed to build the control plane: {} ended with {}",
            script.display(),
            output.status
        );
        let printed = String::from_utf8(output.stdout).context("the folder's name is not UTF-8")?;
        let folder = printed
            .lines()
            .last()
            .context("the build has printed no folder")?;
        Ok(Programs {
            folder: PathBuf::from(folder),
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A command that runs one of them, in a network namespace if one is given. It runs under the
    /// process id it is started with: `nsenter` becomes the program.
    pub(super) fn command(&self, program: &str, network: Option<&Path>) -> Command {
        let mut file = self.folder.join(program);
        // Folders made for envtest do not all have kubectl; the one on the PATH then serves.
        if program == "kubectl" && !file.exists() {
            file = PathBuf::from(program);
        }
        match network {
            None => Command::new(file),
            Some(namespace) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={}", namespace.display()));
                command.arg("--").arg(file);
                command
            }
        }
    }
}
