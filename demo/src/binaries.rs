//! The programs of this workspace, as cargo builds them.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The file of `program`, which has to be built. Cargo puts it beside or above the test that asks.
pub fn find(program: &str) -> Result<PathBuf> {
    let test = env::current_exe().context("failed to find this program")?;
    let folders = test.ancestors().skip(1).map(Path::to_owned);
    let mut files = folders.map(|folder| folder.join(program));
    files
        .find(|file| file.is_file())
        .with_context(|| format!("{program} is not built: cargo build --workspace --bins"))
}
