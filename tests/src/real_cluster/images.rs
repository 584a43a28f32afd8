//! Archives of images for a cluster: Signpost's own, and an image of test programs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::binaries;

/// The environment variable with the folder of the archives of agent and operator. If it is set,
/// both must exist.
const FOLDER: &str = "SIGNPOST_IMAGES";
/// The prefixes of both archives' names.
const PROGRAMS: [&str; 2] = ["signpost-agent", "signpost-operator"];

/// Signpost's images, if they have been built.
#[derive(Debug, Clone)]
pub enum OwnImages {
    /// The archives of both.
    Made(Vec<PathBuf>),
    /// The images have not been built.
    Missing,
}

/// Finds the archives of this version: in the folder named by the environment variable
/// `SIGNPOST_IMAGES`, where a missing archive is an error, or otherwise in `dist`, where
/// `make image` writes them.
pub fn observe() -> Result<OwnImages> {
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
        OwnImages::Made(archives)
    } else {
        OwnImages::Missing
    })
}

fn find(folder: &Path, program: &str) -> Option<PathBuf> {
    let architecture = match env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let version = env!("CARGO_PKG_VERSION");
    let file = folder.join(format!("{program}-{version}-linux-{architecture}.tar"));
    file.exists().then_some(file)
}

/// Writes an archive of an image called `name` that runs a program of this workspace with the
/// arguments of its Pod.
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
