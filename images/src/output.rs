//! What programs that write archives have in common.

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
    /// What it runs on; absent where nothing says so and this machine is none that archives are for.
    pub fn architecture(&self) -> Option<Architecture> {
        self.architecture.or_else(Architecture::own)
    }
}

/// Writes a file and makes the folder it is in. Under its name it is whole, or not there.
pub fn commit(path: &Path, content: &[u8]) -> io::Result<()> {
    let partial = path.with_added_extension("partial");
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let written = fs::write(&partial, content).and_then(|()| fs::rename(&partial, path));
    // Where it was never made there is nothing to remove; the first error is the one that is returned.
    written.inspect_err(|_| drop(fs::remove_file(&partial)))
}

/// A time as `SOURCE_DATE_EPOCH` has it, in seconds since 1970.
fn parse_date(text: &str) -> Result<Timestamp, &'static str> {
    let seconds = text.parse::<u32>().ok();
    let date = seconds.and_then(|seconds| Timestamp::from_second(seconds.into()).ok());
    date.ok_or("it has to be a number of seconds since 1970")
}
