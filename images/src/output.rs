//! The common parts of the programs that write archives.

use std::fs;
use std::io;
use std::path::Path;

use clap::Args;
use jiff::Timestamp;

use crate::Architecture;

/// What every archive is written with.
#[derive(Debug, Clone, Args)]
pub struct ArchiveArguments {
    /// What it runs on. Without it, what this machine is.
    #[arg(long, value_name = "NAME")]
    architecture: Option<Architecture>,

    /// The time of everything in it.
    #[command(flatten)]
    pub date: DateArgument,
}

/// The time that a file carries, so that the same input gives the same bytes.
#[derive(Debug, Clone, Copy, Args)]
pub struct DateArgument {
    /// The time of everything in it, in seconds since 1970.
    #[arg(
        long,
        env = "SOURCE_DATE_EPOCH",
        value_name = "SECONDS",
        default_value = "0",
        value_parser = parse_date
    )]
    pub created: Timestamp,
}

// === impl ArchiveArguments ===

impl ArchiveArguments {
    /// Returns the given architecture, or that of this machine; absent if none is given and this
    /// machine's is not supported.
    pub fn architecture(&self) -> Option<Architecture> {
        self.architecture.or_else(Architecture::own)
    }
}

/// Writes a file atomically and creates its parent folder.
pub fn commit(path: &Path, content: &[u8]) -> io::Result<()> {
    let partial = path.with_added_extension("partial");
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let written = fs::write(&partial, content).and_then(|()| fs::rename(&partial, path));
    // The partial file may not exist. Return the first error.
    written.inspect_err(|_| drop(fs::remove_file(&partial)))
}

/// Parses a time in the format of `SOURCE_DATE_EPOCH`: seconds since 1970.
fn parse_date(text: &str) -> Result<Timestamp, &'static str> {
    let seconds = text.parse::<u32>().ok();
    let date = seconds.and_then(|seconds| Timestamp::from_second(seconds.into()).ok());
    date.ok_or("it has to be a number of seconds since 1970")
}
