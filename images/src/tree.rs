//! A tree of files, and its tar.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use tar::{Builder, EntryType, Header};
use thiserror::Error;

/// Files by path. Their parent folders are implied. All belong to root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    files: BTreeMap<TreePath, File>,
}

/// A file owned by root.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    /// Its permissions as in `chmod`.
    pub mode: u32,
    /// Its content.
    pub content: Vec<u8>,
}

/// The path of a file in a [`Tree`], written with a leading slash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreePath {
    /// The path without the leading slash.
    relative: String,
}

/// Why a file cannot be added at a path.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InsertError {
    /// The tree already has a file at this path.
    #[error("there are two files {0}")]
    Twice(TreePath),
    /// One path is a parent of the other.
    #[error("{file} is a file, and {through} would be in it")]
    ThroughFile {
        /// The shorter path.
        file: TreePath,
        /// The longer path.
        through: TreePath,
    },
}

/// The size of the name field in a tar header. Longer names need extensions that not all readers
/// support.
const LONGEST: usize = 100;

// === impl Tree ===

impl Tree {
    /// Adds a file.
    pub fn insert(&mut self, path: TreePath, file: File) -> Result<(), InsertError> {
        for other in self.files.keys() {
            let (file, through) = if other < &path {
                (other, &path)
            } else {
                (&path, other)
            };
            match through.relative.strip_prefix(&file.relative) {
                Some("") => return Err(InsertError::Twice(path)),
                Some(rest) if rest.starts_with('/') => {
                    let (file, through) = (file.clone(), through.clone());
                    return Err(InsertError::ThroughFile { file, through });
                }
                _ => {}
            }
        }
        self.files.insert(path, file);
        Ok(())
    }

    /// Returns the size of the files on a node's disk, in bytes.
    pub fn size(&self) -> usize {
        self.files.values().map(|file| file.content.len()).sum()
    }

    /// Renders a tar of all files and their parent folders, sorted by path, with the modification
    /// time `date`.
    pub(crate) fn render(&self, date: Timestamp) -> Vec<u8> {
        let mut entries: BTreeMap<&str, Option<&File>> = BTreeMap::new();
        for (TreePath { relative }, file) in &self.files {
            // A folder ends with a slash, so that it sorts directly before its content.
            let folders = relative.match_indices('/');
            entries.extend(folders.map(|(at, _)| (&relative[..=at], None)));
            entries.insert(relative, Some(file));
        }
        let seconds = u64::try_from(date.as_second()).unwrap_or_default();
        let mut archive = Builder::new(Vec::new());
        for (path, file) in entries {
            let (kind, mode, content) = match file {
                Some(File { mode, content }) => (EntryType::Regular, *mode, content.as_slice()),
                None => (EntryType::Directory, 0o755, &[][..]),
            };
            let mut header = Header::new_ustar();
            header.set_entry_type(kind);
            let fits = header.set_path(path);
            fits.expect("the length of paths was looked at when they were parsed");
            header.set_mode(mode);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(seconds);
            header.set_size(u64::try_from(content.len()).expect("no memory has more than 64 bits"));
            header.set_cksum();
            let written = archive.append(&header, content);
            written.expect("writing to memory does not fail");
        }
        let bytes = archive.into_inner();
        bytes.expect("writing to memory does not fail")
    }
}

// === impl File ===

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, {:04o}", self.content.len(), self.mode)
    }
}

// === impl TreePath ===

impl FromStr for TreePath {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let relative = text
            .strip_prefix('/')
            .ok_or("it does not begin with a slash")?;
        let plain = |part: &str| !matches!(part, "" | "." | "..");
        if !relative.split('/').all(plain) {
            return Err("between two slashes has to be a name");
        }
        if relative.len() > LONGEST {
            return Err("it is longer than 100 bytes");
        }
        Ok(TreePath {
            relative: relative.to_owned(),
        })
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.relative)
    }
}
