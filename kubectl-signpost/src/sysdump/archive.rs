//! The archive file, and the list of parts that could not be read.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use tar::{Builder, Header};

use super::secrets::without_secrets;

/// An archive in progress.
pub(super) struct Archive {
    files: Builder<GzEncoder<File>>,
    /// The top-level directory in the archive.
    directory: PathBuf,
    made: Timestamp,
    parts: usize,
    missing: Vec<Missing>,
}

/// A part that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Missing {
    pub(super) part: String,
    pub(super) reason: String,
}

/// The content of a finished archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) parts: usize,
    pub(super) missing: Vec<Missing>,
}

/// The file in the archive that lists the parts that could not be read; empty if there are none.
const MISSING: &str = "missing.txt";

// === impl Archive ===

impl Archive {
    /// Creates `file`, which must not exist, readable only by its owner.
    pub(super) fn create(file: &Path, directory: &str, made: Timestamp) -> io::Result<Archive> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(file)?;
        Ok(Archive {
            files: Builder::new(GzEncoder::new(file, Compression::default())),
            directory: directory.into(),
            made,
            parts: 0,
            missing: Vec::new(),
        })
    }

    /// Adds the text of a part without secrets, or records why it could not be read.
    pub(super) fn add(&mut self, part: &str, read: Result<String, String>) -> io::Result<()> {
        match read {
            Ok(text) => {
                self.parts += 1;
                self.write(part, &without_secrets(&text))
            }
            Err(reason) => {
                let (part, reason) = (part.to_owned(), without_secrets(&reason));
                self.missing.push(Missing { part, reason });
                Ok(())
            }
        }
    }

    /// Writes the list of missing parts and closes the archive.
    pub(super) fn finish(mut self) -> io::Result<Contents> {
        self.missing.sort();
        let lines = self.missing.iter();
        let lines = lines.map(|Missing { part, reason }| format!("{part}: {reason}\n"));
        let text: String = lines.collect();
        self.write(MISSING, &text)?;
        let mut file = self.files.into_inner()?.finish()?;
        file.flush()?;
        Ok(Contents {
            parts: self.parts,
            missing: self.missing,
        })
    }

    fn write(&mut self, part: &str, text: &str) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(self.made.as_second()).unwrap_or_default());
        let path = self.directory.join(part);
        self.files.append_data(&mut header, path, text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn what_could_not_be_read_is_named_and_the_rest_is_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("dump.tar.gz");
        let mut archive = Archive::create(&file, "dump", Timestamp::UNIX_EPOCH).expect("created");
        let long = format!("nodes/{}/rules.txt", "n".repeat(253));
        for (part, read) in [
            ("nodes.yaml", Err("forbidden".to_owned())),
            (&long, Ok("table ip signpost\n".to_owned())),
        ] {
            archive.add(part, read).expect("written");
        }
        let contents = archive.finish().expect("finished");
        assert_eq!((contents.parts, contents.missing.len()), (1, 1));
        let mut read = Vec::new();
        let opened = File::open(&file).expect("it is there");
        let mut tar = tar::Archive::new(GzDecoder::new(opened));
        for entry in tar.entries().expect("entries") {
            let mut entry = entry.expect("an entry");
            let path = entry.path().expect("a path").display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("text");
            read.push((path, text));
        }
        assert_eq!(
            read,
            [
                (format!("dump/{long}"), "table ip signpost\n".to_owned()),
                (
                    "dump/missing.txt".to_owned(),
                    "nodes.yaml: forbidden\n".to_owned()
                ),
            ]
        );
        let again = Archive::create(&file, "dump", Timestamp::UNIX_EPOCH);
        assert!(again.is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists));
    }
}
