//! Writes the download of `kubectl signpost`: an archive, and the manifest with which krew installs
//! it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use images::{ArchiveArguments, Plugin, commit};

/// Writes the archive of kubectl signpost and signpost.yaml, krew's manifest of it, into a folder, and
/// prints their paths. The same input gives the same bytes. Publishes nothing.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The program, static.
    #[arg(long, value_name = "FILE")]
    program: PathBuf,

    /// The text of the licence.
    #[arg(long, value_name = "FILE")]
    license: PathBuf,

    /// The folder to write to.
    #[arg(long, value_name = "FOLDER")]
    output: PathBuf,

    #[command(flatten)]
    archive: ArchiveArguments,
}

fn main() -> ExitCode {
    match write_plugin(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("write-plugin: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn write_plugin(arguments: &Arguments) -> Result<()> {
    let architecture = arguments.archive.architecture();
    let plugin = Plugin {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        architecture: architecture.context("--architecture is needed on this machine")?,
        created: arguments.archive.created,
        program: read(&arguments.program)?,
        license: read(&arguments.license)?,
    };
    let archive = plugin.archive();
    let manifest = plugin.manifest(&archive);
    for (name, content) in [
        (plugin.archive_name(), archive),
        ("signpost.yaml".to_owned(), manifest.into_bytes()),
    ] {
        let path = arguments.output.join(name);
        commit(&path, &content).with_context(|| format!("failed to write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("failed to read {}", path.display()))
}
