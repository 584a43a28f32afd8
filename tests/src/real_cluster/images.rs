//! Archives of images for a cluster: our own, and one of programs of these tests.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::binaries;

/// The folder with the archives of agent and operator. Who names one says that they are there.
const FOLDER: &str = "SIGNPOST_IMAGES";
/// Both, as their archives' names start.
const PROGRAMS: [&str; 2] = ["signpost-agent", "signpost-operator"];

/// Our images, as far as they have been made.
#[derive(Debug, Clone)]
pub enum Ours {
    /// The archives of both.
    Made(Vec<PathBuf>),
    /// Nobody has made them, or said that they were.
    Missing,
}

/// The archives of this version: in the folder that the environment variable `SIGNPOST_IMAGES`
/// names, where it is an error that one is missing; otherwise in `dist`, where `make image` puts them.
pub fn observe_ours() -> Result<Ours> {
    let named = env::var_os(FOLDER).map(PathBuf::from);
    let usual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist");
    let folder = named.as_ref().unwrap_or(&usual);
    let archives: Vec<PathBuf> = PROGRAMS
        .iter()
        .filter_map(|program| find(folder, program))
        .collect();
    let all = archives.len() == PROGRAMS.len();
    ensure!(
        all || named.is_none(),
        "{FOLDER} is {}, and there are no images of version {} in it: make image",
        folder.display(),
        env!("CARGO_PKG_VERSION")
    );
    Ok(if all {
        Ours::Made(archives)
    } else {
        Ours::Missing
    })
}

fn find(folder: &Path, program: &str) -> Option<PathBuf> {
    let start = format!("{program}-{}-linux-", env!("CARGO_PKG_VERSION"));
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.map(|file| file.path()).find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&start) && name.ends_with(".tar")
    })
}

/// Writes an archive of an image called `name` that runs a program of this workspace, with the
/// arguments that its Pod has.
pub fn commit_program(archive: &Path, name: &str, program: &str) -> Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/program-image");
    let status = Command::new(&script)
        .arg(archive)
        .arg(name)
        .arg(binaries::find(program)?)
        .status()
        .with_context(|| format!("failed to run {}", script.display()))?;
    ensure!(status.success(), "{} ended with {status}", script.display());
    Ok(())
}
