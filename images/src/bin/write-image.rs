//! Writes a container image as an OCI archive, without a container daemon.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::Parser;
use images::{ArchiveArguments, File, Image, Reference, Tree, TreePath, User, commit};

/// Writes a container image as an OCI archive, and prints its path, its size, the image's name and its
/// digest. The same input gives the same bytes.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The full name of the image, with registry and tag.
    #[arg(long, value_name = "NAME:TAG")]
    reference: Reference,

    /// The archive to write.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,

    /// A file for the image, and where it is there. Without a mode it is 0755 if it may be run and
    /// 0644 otherwise.
    #[arg(long = "file", value_name = "SOURCE=/PATH[:MODE]", required = true)]
    files: Vec<FileArgument>,

    /// The program that is run; again for each argument of its own.
    #[arg(long, value_name = "WORD", required = true, allow_hyphen_values = true)]
    entrypoint: Vec<String>,

    /// Who it runs as, in numbers.
    #[arg(long, value_name = "UID:GID")]
    user: User,

    /// An environment variable.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    environment: Vec<(String, String)>,

    /// A label.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = parse_pair)]
    labels: Vec<(String, String)>,

    #[command(flatten)]
    archive: ArchiveArguments,

    /// What its files may take together, such as 30MB. Nothing is written when it is more.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_size: Option<usize>,
}

/// `SOURCE=/PATH[:MODE]`.
#[derive(Debug, Clone)]
struct FileArgument {
    source: PathBuf,
    path: TreePath,
    mode: Option<u32>,
}

const PROGRAM: u32 = 0o755;
const PLAIN: u32 = 0o644;

fn main() -> ExitCode {
    match write_image(Arguments::parse()) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("write-image: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn write_image(arguments: Arguments) -> Result<String> {
    let mut tree = Tree::default();
    for file in &arguments.files {
        tree.insert(file.path.clone(), read_file(file)?)?;
    }
    let architecture = arguments.archive.architecture();
    let image = Image {
        reference: arguments.reference,
        architecture: architecture.context("--architecture is needed on this machine")?,
        created: arguments.archive.date.created,
        entrypoint: arguments.entrypoint,
        environment: unique("environment", arguments.environment)?,
        user: arguments.user,
        labels: unique("label", arguments.labels)?,
        tree,
    };
    let (name, size) = (&image.reference, image.tree.size());
    if let Some(limit) = arguments.max_size.filter(|limit| size > *limit) {
        let excess = size - limit;
        bail!("{name} takes {size} bytes unpacked, {excess} more than it may");
    }
    let archive = image.archive();
    let output = &arguments.output;
    commit(output, &archive.bytes)
        .with_context(|| format!("failed to write {}", output.display()))?;
    let tenths = (archive.bytes.len() + 50_000) / 100_000;
    let (whole, tenth) = (tenths / 10, tenths % 10);
    let (output, digest) = (output.display(), archive.manifest);
    Ok(format!("{output}  {whole}.{tenth} MB  {name}  {digest}"))
}

fn read_file(argument: &FileArgument) -> Result<File> {
    let read = |source: &Path| -> std::io::Result<File> {
        let runs = fs::metadata(source)?.permissions().mode() & 0o111 != 0;
        let own = if runs { PROGRAM } else { PLAIN };
        let mode = argument.mode.unwrap_or(own);
        let content = fs::read(source)?;
        Ok(File { mode, content })
    };
    let source = &argument.source;
    read(source).with_context(|| format!("failed to read {}", source.display()))
}

fn unique(option: &str, pairs: Vec<(String, String)>) -> Result<BTreeMap<String, String>> {
    let mut values = BTreeMap::new();
    for (name, value) in pairs {
        if values.insert(name.clone(), value).is_some() {
            bail!("--{option} {name} is given twice");
        }
    }
    Ok(values)
}

/// Parses a size; returns bytes.
fn parse_size(text: &str) -> Result<usize, &'static str> {
    // Longer units first: each ends in `B`.
    let mut units = [("MB", 1_000_000), ("kB", 1_000), ("B", 1)].into_iter();
    let size = units
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)))
        .and_then(|(number, bytes)| number.parse::<usize>().ok()?.checked_mul(bytes));
    size.ok_or("it has to be a whole number with B, kB or MB behind it, such as 30MB")
}

fn parse_pair(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it has to be a name, an equals sign and a value"),
    }
}

// === impl FileArgument ===

impl FromStr for FileArgument {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // The path begins with a slash; the source may have an equals sign in its name.
        let (source, path) = text
            .rsplit_once("=/")
            .ok_or("it has to be a file, an equals sign and an absolute path")?;
        let (path, mode) = match path.rsplit_once(':') {
            Some((path, mode)) => (path, Some(parse_mode(mode)?)),
            None => (path, None),
        };
        Ok(FileArgument {
            source: source.into(),
            path: format!("/{path}").parse()?,
            mode,
        })
    }
}

fn parse_mode(text: &str) -> Result<u32, &'static str> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("a mode is four octal digits, such as 0644"),
    }
}
