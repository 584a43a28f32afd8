//! Archives on disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// An archive could not be written. Under its name is what was there before, if anything.
#[derive(Debug, Error)]
#[error("failed to write {}", path.display())]
pub struct WriteError {
    path: PathBuf,
    source: io::Error,
}

/// Writes an archive and makes the folder it is in. Under its name it is whole, or not there.
pub fn write_archive(path: &Path, archive: &[u8]) -> Result<(), WriteError> {
    let partial = path.with_added_extension("partial");
    let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
    let written = folder
        .and_then(|()| fs::write(&partial, archive))
        .and_then(|()| fs::rename(&partial, path));
    written.map_err(|source| {
        // Where it was never made there is nothing to remove; the reason is told in either case.
        drop(fs::remove_file(&partial));
        WriteError {
            path: path.to_owned(),
            source,
        }
    })
}
