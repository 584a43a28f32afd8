//! Writes the components of a program as a CycloneDX document.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use images::{DateArgument, Metadata, Subject, commit, sbom};

/// Writes what a program is made of, by what cargo metadata prints, which is read from standard input,
/// and prints the path of the document. The same input gives the same bytes.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The program.
    #[arg(long, value_name = "NAME")]
    program: String,

    /// The package it is built from.
    #[arg(long, value_name = "NAME")]
    package: String,

    /// The version of Rust.
    #[arg(long, value_name = "VERSION")]
    rust: String,

    /// The version of glibc.
    #[arg(long, value_name = "VERSION")]
    glibc: String,

    /// The document to write.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,

    #[command(flatten)]
    date: DateArgument,
}

fn main() -> ExitCode {
    match write_sbom(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("write-sbom: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn write_sbom(arguments: Arguments) -> Result<()> {
    let metadata: Metadata = serde_json::from_reader(io::stdin().lock())
        .context("standard input is not what cargo metadata prints")?;
    let subject = Subject {
        program: arguments.program,
        package: arguments.package,
        created: arguments.date.created,
        rust: arguments.rust,
        glibc: arguments.glibc,
    };
    let document = sbom(&metadata, &subject)?;
    let mut text = serde_json::to_string_pretty(&document)?;
    text.push('\n');
    let path = arguments.output;
    commit(&path, text.as_bytes())
        .with_context(|| format!("failed to write {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}
