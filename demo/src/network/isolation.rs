//! Private namespaces in which a process without root can create networks.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The environment variable set in the restarted process.
const ENTERED: &str = "SIGNPOST_TESTS_ENTERED_NAMESPACES";

/// Ensures that this process can create network namespaces. Root can; for any other user the
/// process is restarted with the same arguments as root of a user namespace with a private network
/// and `/run`. Call it first in `main`, because anything before it runs twice.
pub fn enter_private_namespaces() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    if env::var_os(ENTERED).is_some() {
        bail!("a user namespace was made, but this process is not root in it");
    }
    let program = env::current_exe().context("failed to find this program")?;
    // Names of network namespaces are mounts below /run, which belongs to the machine's root.
    let error = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--mount", "--"])
        .args(["sh", "-c", "mount -t tmpfs tmpfs /run && exec \"$@\"", "sh"])
        .arg(program)
        .args(env::args_os().skip(1))
        .env(ENTERED, "1")
        .exec();
    Err(error).context("failed to run unshare: run this as root, or install util-linux")
}
