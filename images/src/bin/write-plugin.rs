//! Writes the download of `kubectl signpost`: an archive for each processor, and the manifest with
//! which krew installs them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use images::{Architecture, DateArgument, Plugin, commit};

/// Writes archives of kubectl signpost and signpost.yaml, krew's manifest of them, into a folder, and
/// prints their paths. The same input gives the same bytes. Publishes nothing.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The static program for a processor, such as amd64=target/kubectl-signpost; one for each processor.
    #[arg(long = "program", required = true, value_name = "ARCHITECTURE=FILE", value_parser = parse_program)]
    programs: Vec<(Architecture, PathBuf)>,

    /// The text of the licence.
    #[arg(long, value_name = "FILE")]
    license: PathBuf,

    /// The folder to write to.
    #[arg(long, value_name = "FOLDER")]
    output: PathBuf,

    #[command(flatten)]
    date: DateArgument,
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
    let programs = arguments.programs.iter();
    let programs = programs.map(|(architecture, path)| Ok((*architecture, read(path)?)));
    let plugin = Plugin {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        created: arguments.date.created,
        programs: programs.collect::<Result<BTreeMap<_, _>>>()?,
        license: read(&arguments.license)?,
    };
    let archives = plugin.archives();
    let manifest = plugin.manifest(&archives).into_bytes();
    let files = archives.into_iter();
    let files = files.map(|(architecture, archive)| (plugin.archive_name(architecture), archive));
    for (name, content) in files.chain([("signpost.yaml".to_owned(), manifest)]) {
        let path = arguments.output.join(name);
        commit(&path, &content).with_context(|| format!("failed to write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Parses `amd64=FILE`.
fn parse_program(text: &str) -> Result<(Architecture, PathBuf), String> {
    let (architecture, path) = text.split_once('=').ok_or("write ARCHITECTURE=FILE")?;
    Ok((Architecture::from_str(architecture, false)?, path.into()))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("failed to read {}", path.display()))
}
