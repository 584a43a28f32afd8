//! A small file in the state directory that survives crashes and power cuts.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// The suffix of a file that is being written. Such a file is left behind if the process is killed
/// meanwhile.
const UNFINISHED: &str = "new";

/// A file that contains a value as JSON.
#[derive(Debug, Clone)]
pub struct KeptFile(PathBuf);

/// Why the file could not be read, written or removed.
#[derive(Debug, Error)]
#[error("failed to {step} {}", file.display())]
pub struct KeptFileError {
    step: &'static str,
    file: PathBuf,
    source: io::Error,
}

// === impl KeptFile ===

impl KeptFile {
    /// The file `name` in `directory`. The first write creates the directory.
    pub fn within(directory: &Path, name: &str) -> KeptFile {
        KeptFile(directory.join(name))
    }

    /// Reads the value; `None` if there is no file.
    pub fn observe<T: DeserializeOwned>(&self) -> Result<Option<T>, KeptFileError> {
        let bytes = match fs::read(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|source| self.failed("read", source))?,
        };
        let kept = serde_json::from_slice(&bytes);
        kept.map(Some)
            .map_err(|source| self.failed("understand", source.into()))
    }

    /// Replaces the value atomically: after a crash the file is the old one or the new one, and
    /// once this has returned, the new one.
    pub fn commit(&self, value: &impl Serialize) -> Result<(), KeptFileError> {
        let write = || -> io::Result<()> {
            let bytes = serde_json::to_vec_pretty(value)?;
            fs::create_dir_all(self.directory())?;
            let unfinished = self.unfinished();
            let mut file = fs::File::create(&unfinished)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&unfinished, &self.0)?;
            self.sync_directory()
        };
        write().map_err(|source| self.failed("write", source))
    }

    /// Removes the file, and what an interrupted write has left. Succeeds if there is none.
    pub fn commit_removal(&self) -> Result<(), KeptFileError> {
        let remove = || -> io::Result<()> {
            for file in [&self.unfinished(), &self.0] {
                match fs::remove_file(file) {
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    removed => removed.and_then(|()| self.sync_directory())?,
                }
            }
            Ok(())
        };
        remove().map_err(|source| self.failed("remove", source))
    }

    fn directory(&self) -> &Path {
        self.0.parent().unwrap_or(Path::new("/"))
    }

    fn unfinished(&self) -> PathBuf {
        self.0.with_extension(UNFINISHED)
    }

    /// Makes a created or removed directory entry durable: before this, a power cut may undo it.
    fn sync_directory(&self) -> io::Result<()> {
        fs::File::open(self.directory())?.sync_all()
    }

    fn failed(&self, step: &'static str, source: io::Error) -> KeptFileError {
        KeptFileError {
            step,
            file: self.0.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "kept.json";

    #[test]
    fn what_was_kept_is_there_after_a_restart_until_it_is_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        // The first write creates the directory: a fresh node has none.
        let file = || KeptFile::within(&directory.path().join("state"), NAME);
        let read = || file().observe::<u32>().expect("it can be read");
        assert_eq!(read(), None, "no file is no failure");
        file().commit(&7).expect("it is written");
        file().commit(&8).expect("it is written over");
        assert_eq!(read(), Some(8));
        for _ in 0..2 {
            file().commit_removal().expect("twice is no failure");
        }
        assert_eq!(read(), None);
    }

    #[test]
    fn a_file_that_makes_no_sense_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join(NAME), "{").expect("half a file");
        let error = KeptFile::within(directory.path(), NAME).observe::<u32>();
        let error = error.expect_err("half a file");
        assert!(error.to_string().contains(NAME), "{error}");
    }

    #[test]
    fn a_crash_while_writing_leaves_what_was_kept_before() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = KeptFile::within(directory.path(), NAME);
        file.commit(&7).expect("it is written");
        fs::write(directory.path().join("kept.new"), "{\"no").expect("half a file");
        assert_eq!(file.observe().expect("the whole one"), Some(7));
        file.commit(&8).expect("it is written over");
        fs::write(directory.path().join("kept.new"), "{\"no").expect("half a file");
        file.commit_removal().expect("it is removed");
        let left = fs::read_dir(directory.path()).expect("a directory").count();
        assert_eq!(left, 0);
    }
}
