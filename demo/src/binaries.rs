//! The programs of this workspace as built by cargo.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Returns the path of `program`, which must be built. Cargo writes it next to the running test or
/// in a parent folder.
pub fn find(program: &str) -> Result<PathBuf> {
    let test = env::current_exe().context("failed to find this program")?;
    let folders = test.ancestors().skip(1).map(Path::to_owned);
    let mut files = folders.map(|folder| folder.join(program));
    files
        .find(|file| file.is_file())
        .with_context(|| format!("{program} is not built: cargo build --workspace --bins"))
}
