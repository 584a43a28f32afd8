//! Files by their paths, and the tar they come to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use tar::{Builder, EntryType, Header};
use thiserror::Error;

use crate::SourceDate;

/// Files by path. The folders they are in come with them and belong to root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    files: BTreeMap<TreePath, File>,
}

/// A file that belongs to root.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    /// Who may do what with it, as in `chmod`.
    pub mode: u32,
    /// What is in it.
    pub content: Vec<u8>,
}

/// Where a file is in a [`Tree`]. Written with a slash at its beginning.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreePath {
    /// Without that slash.
    relative: String,
}

/// A text is no [`TreePath`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is no path of a file in an image: {reason}")]
pub struct ParseTreePathError {
    text: String,
    reason: &'static str,
}

/// A file cannot be where it should be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InsertError {
    /// There is one already.
    #[error("there are two files {0}")]
    Twice(TreePath),
    /// One path goes through the other.
    #[error("{file} is a file, and {through} would be in it")]
    ThroughFile {
        /// The shorter one.
        file: TreePath,
        /// The longer one.
        through: TreePath,
    },
}

/// What the field of a tar header holds. Longer names need extensions, which not all readers know.
const LONGEST: usize = 100;
const FOLDER: u32 = 0o755;

// === impl Tree ===

impl Tree {
    /// Adds a file.
    pub fn insert(&mut self, path: TreePath, file: File) -> Result<(), InsertError> {
        for other in self.files.keys() {
            if *other == path {
                return Err(InsertError::Twice(path));
            }
            let (file, through) = match other.is_folder_of(&path) {
                true => (other, &path),
                false => (&path, other),
            };
            if file.is_folder_of(through) {
                return Err(InsertError::ThroughFile {
                    file: file.clone(),
                    through: through.clone(),
                });
            }
        }
        self.files.insert(path, file);
        Ok(())
    }

    /// The files, ordered by path.
    pub fn files(&self) -> impl Iterator<Item = (&TreePath, &File)> {
        self.files.iter()
    }

    /// A tar of all files and the folders they are in, ordered by path, all of them last changed at `date`.
    pub fn render(&self, date: SourceDate) -> Vec<u8> {
        let folders: BTreeSet<&str> = self.files.keys().flat_map(TreePath::folders).collect();
        // A folder ends in a slash, so that it stands right before what is in it.
        let folders = folders.into_iter().map(|folder| (folder, None));
        let files = self.files.iter();
        let files = files.map(|(path, file)| (path.relative.as_str(), Some(file)));
        let entries: BTreeMap<&str, Option<&File>> = folders.chain(files).collect();

        let mut archive = Builder::new(Vec::new());
        for (path, file) in entries {
            let content = file.map_or(&[][..], |file| &file.content);
            let mut header = Header::new_ustar();
            header.set_entry_type(match file {
                Some(_) => EntryType::Regular,
                None => EntryType::Directory,
            });
            let fits = header.set_path(path);
            fits.expect("the length of paths was looked at when they were parsed");
            header.set_mode(file.map_or(FOLDER, |file| file.mode));
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(date.seconds());
            header.set_size(crate::Size::of(content).bytes);
            header.set_cksum();
            let written = archive.append(&header, content);
            written.expect("writing to memory does not fail");
        }
        archive
            .into_inner()
            .expect("writing to memory does not fail")
    }
}

// === impl File ===

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, {:04o}", self.content.len(), self.mode)
    }
}

// === impl TreePath ===

impl TreePath {
    /// The folders it goes through, outermost first, each with a slash at its end.
    fn folders(&self) -> impl Iterator<Item = &str> {
        let slashes = self.relative.match_indices('/');
        slashes.map(|(at, _)| &self.relative[..=at])
    }

    fn is_folder_of(&self, other: &TreePath) -> bool {
        let rest = other.relative.strip_prefix(&self.relative);
        rest.is_some_and(|rest| rest.starts_with('/'))
    }
}

fn parse(text: &str) -> Result<&str, &'static str> {
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
    Ok(relative)
}

impl FromStr for TreePath {
    type Err = ParseTreePathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let relative = parse(text).map_err(|reason| ParseTreePathError {
            text: text.to_owned(),
            reason,
        })?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> TreePath {
        text.parse().expect("a path")
    }

    fn file(content: &str) -> File {
        File {
            mode: 0o644,
            content: content.into(),
        }
    }

    #[test]
    fn folders_come_before_what_is_in_them() {
        let mut tree = Tree::default();
        for name in ["/usr/bin/b", "/usr/bin-old", "/etc/a"] {
            tree.insert(path(name), file(name)).expect("no conflict");
        }
        let bytes = tree.render("86400".parse().expect("a date"));
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entries = archive.entries().expect("an archive");
        let entries: Vec<String> = entries
            .map(|entry| {
                let entry = entry.expect("an entry");
                let header = entry.header();
                assert_eq!(header.mtime().expect("a time"), 86400);
                assert_eq!(header.uid().expect("a user"), 0);
                let mode = header.mode().expect("a mode");
                let path = entry.path().expect("a path");
                format!("{mode:o} {}", path.display())
            })
            .collect();
        assert_eq!(
            entries,
            [
                "755 etc/",
                "644 etc/a",
                "755 usr/",
                "644 usr/bin-old",
                "755 usr/bin/",
                "644 usr/bin/b",
            ]
        );
    }

    #[test]
    fn files_in_each_others_way_are_refused() {
        let mut tree = Tree::default();
        tree.insert(path("/a/b"), file("")).expect("the first");
        let mut insert = |name| {
            let error = tree.insert(path(name), file("")).expect_err("in the way");
            error.to_string()
        };
        assert_eq!(insert("/a/b"), "there are two files /a/b");
        assert_eq!(insert("/a"), "/a is a file, and /a/b would be in it");
        assert_eq!(
            insert("/a/b/c"),
            "/a/b is a file, and /a/b/c would be in it"
        );
    }

    #[test]
    fn what_is_no_path_of_a_file_is_refused_with_the_reason() {
        let long = "/a".repeat(51);
        for (text, reason) in [
            ("", "begin with a slash"),
            ("a", "begin with a slash"),
            ("/", "has to be a name"),
            ("/a//b", "has to be a name"),
            ("/a/", "has to be a name"),
            ("/a/../b", "has to be a name"),
            (&long, "longer than 100"),
        ] {
            let error = text.parse::<TreePath>().expect_err("no path").to_string();
            assert!(error.contains(text) && error.contains(reason), "{error}");
        }
    }
}
