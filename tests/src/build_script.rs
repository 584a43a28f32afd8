//! Builds what the tests need and cargo does not build.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Runs a script of this package that builds something if needed; returns the path in the last line
/// of its output. Its progress goes to standard error.
pub fn run(script: &str, arguments: &[&str]) -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    // Show the progress: a build may take ten minutes.
    let output = Command::new(&script)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("failed to run {}", script.display()))?;
    ensure!(
        output.status.success(),
        "{} ended with {}",
        script.display(),
        output.status
    );
    let printed = String::from_utf8(output.stdout).context("the folder's name is not UTF-8")?;
    let folder = printed
        .lines()
        .last()
        .context("the build has printed no folder")?;
    Ok(PathBuf::from(folder))
}
