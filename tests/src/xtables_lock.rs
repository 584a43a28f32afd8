//! The lock of iptables-legacy in tests, separate from the machine's.

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Creates a folder for the lock. It is on the same file system as a node's lock: on an overlay,
/// `/proc/locks` has another device than the file, so that the lock's holder is unknown.
pub fn xtables_lock_folder() -> Result<TempDir> {
    tempfile::tempdir_in("/run").context("failed to create a folder in /run")
}
