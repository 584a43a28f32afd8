//! Reads an archive of `kubectl signpost sysdump`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

/// Returns the files of an archive by their names below its folder.
pub fn unpack(archive: &Path) -> Result<BTreeMap<String, String>> {
    let folder = tempfile::tempdir()?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--gzip", "--file"]).arg(archive);
    ensure!(
        tar.arg("--directory")
            .arg(folder.path())
            .status()?
            .success()
    );
    let mut files = BTreeMap::new();
    let mut ahead = vec![folder.path().to_owned()];
    while let Some(at) = ahead.pop() {
        for entry in fs::read_dir(&at)? {
            let path = entry?.path();
            if path.is_dir() {
                ahead.push(path);
                continue;
            }
            let below = path.strip_prefix(folder.path())?;
            let name: PathBuf = below.components().skip(1).collect();
            let name = name.display().to_string();
            files.insert(name, fs::read_to_string(&path)?);
        }
    }
    Ok(files)
}
