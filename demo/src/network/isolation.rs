//! Where a process without root may make networks.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Set in the process that was started again.
const ENTERED: &str = "SIGNPOST_TESTS_ENTERED_NAMESPACES";

/// Makes sure that this process can make network namespaces. Root can; anyone else is started
/// again, with the same arguments, as the root of a user namespace with a network and a `/run` of
/// its own. Call it first in `main`: what was done before is done twice.
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
