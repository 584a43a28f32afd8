//! The files of a directory, read when they change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use thiserror::Error;

/// A file that changed this recently is read again at the next scan: file systems keep times with a
/// resolution of some milliseconds, so a second change within one step cannot be detected.
const RACY: Duration = Duration::from_secs(1);

/// The largest manifest, in bytes. All Services and EndpointSlices of a cluster of 10,000 Services
/// in one file take about half of it; reading a manifest takes some ten times its size in memory.
pub(super) const LARGEST: u64 = 64 << 20;

/// Why a manifest cannot be read.
#[derive(Debug, Error)]
enum ManifestReadError {
    /// It cannot be opened or read, or is not UTF-8.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Reading it may block forever or have side effects.
    #[error("is a {0}; only regular files are read")]
    NotRegular(&'static str),
    /// Too large for a manifest.
    #[error("is larger than {} MiB, and is not read", LARGEST >> 20)]
    TooLarge,
}

/// Remembers the stamp of each file that was read.
#[derive(Debug)]
pub(super) struct Directory {
    root: PathBuf,
    /// By path relative to `root`.
    stamps: BTreeMap<PathBuf, Stamp>,
}

/// The result of checking one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileCheck {
    /// It is unchanged.
    Same,
    /// It is new or has changed; its text.
    Text(String),
    /// It, or the directory at this path, exists but cannot be read; the reason.
    Unreadable(String),
}

/// The identity of a directory, independent of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

/// The metadata that changes when a file is written or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    identity: Identity,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Returns the identity of the directory at `path`, if there is one.
pub(super) fn identify(path: &Path) -> Option<Identity> {
    let metadata = fs::metadata(path).ok()?;
    metadata.is_dir().then(|| Identity::of(&metadata))
}

// === impl Directory ===

impl Directory {
    pub(super) fn new(root: PathBuf) -> Directory {
        Directory {
            root,
            stamps: BTreeMap::new(),
        }
    }

    /// Checks all manifests in the directory and its subdirectories, in the order of their paths.
    ///
    /// Skips names that start with a dot: editors keep unfinished files under them, and Kubernetes
    /// mounts a ConfigMap as links into a hidden directory that it replaces as a whole.
    ///
    /// # Errors
    ///
    /// Fails if the directory itself cannot be read.
    pub(super) fn observe(&mut self) -> io::Result<Vec<(PathBuf, FileCheck)>> {
        let mut files = BTreeMap::new();
        let mut visited = BTreeSet::new();
        observe_directory(&self.root, Path::new(""), &mut visited, &mut files)?;
        let looks: Vec<(PathBuf, FileCheck)> = files
            .into_iter()
            .map(|(path, there)| {
                let check = there
                    .map_err(ManifestReadError::from)
                    .and_then(|()| self.check(&path))
                    .unwrap_or_else(|error| {
                        self.stamps.remove(&path);
                        FileCheck::Unreadable(error.to_string())
                    });
                (path, check)
            })
            .collect();
        self.stamps
            .retain(|path, _| looks.binary_search_by(|(known, _)| known.cmp(path)).is_ok());
        Ok(looks)
    }

    fn check(&mut self, path: &Path) -> Result<FileCheck, ManifestReadError> {
        let file = self.root.join(path);
        let metadata = fs::metadata(&file)?;
        if self.stamps.get(path) == Some(&Stamp::of(&metadata)) {
            return Ok(FileCheck::Same);
        }
        // Check before opening: opening alone rewinds a tape, or starts a watchdog.
        ensure_readable(&metadata)?;
        let (stamp, text) = read(&file)?;
        if stamp.is_racy(SystemTime::now()) {
            self.stamps.remove(path);
        } else {
            self.stamps.insert(path.to_owned(), stamp);
        }
        Ok(FileCheck::Text(text))
    }
}

/// Reads a file; returns its stamp as of the read, and its text.
fn read(path: &Path) -> Result<(Stamp, String), ManifestReadError> {
    // Another file may have replaced it by now: O_NONBLOCK opens a FIFO without waiting for a
    // writer.
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(path)?;
    let metadata = file.metadata()?;
    ensure_readable(&metadata)?;
    let mut text = String::with_capacity(usize::try_from(metadata.len()).unwrap_or_default());
    // It may grow while it is read.
    let length = file.take(LARGEST + 1).read_to_string(&mut text)?;
    if u64::try_from(length).is_ok_and(|length| length > LARGEST) {
        return Err(ManifestReadError::TooLarge);
    }
    Ok((Stamp::of(&metadata), text))
}

fn ensure_readable(metadata: &fs::Metadata) -> Result<(), ManifestReadError> {
    if !metadata.is_file() {
        return Err(ManifestReadError::NotRegular(name_of(metadata.file_type())));
    }
    if metadata.len() > LARGEST {
        return Err(ManifestReadError::TooLarge);
    }
    Ok(())
}

fn name_of(kind: FileType) -> &'static str {
    if kind.is_fifo() {
        "FIFO"
    } else if kind.is_socket() {
        "socket"
    } else if kind.is_char_device() || kind.is_block_device() {
        "device"
    } else {
        "file of another type"
    }
}

/// Finds the manifests in `root`/`within`. Records a subdirectory that cannot be read as if it were
/// a file. Reads a directory that several links lead to once, at the first of its paths: directories
/// that link to one another have a path for each of their orders.
fn observe_directory(
    root: &Path,
    within: &Path,
    visited: &mut BTreeSet<Identity>,
    files: &mut BTreeMap<PathBuf, io::Result<()>>,
) -> io::Result<()> {
    let directory = root.join(within);
    if !visited.insert(Identity::of(&fs::metadata(&directory)?)) {
        return Ok(());
    }
    let names = fs::read_dir(&directory)?.map(|entry| Ok(entry?.file_name()));
    let mut names = names.collect::<io::Result<Vec<_>>>()?;
    names.sort();
    for name in names {
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = within.join(&name);
        match fs::metadata(root.join(&path)) {
            Ok(metadata) if metadata.is_dir() => {
                if let Err(error) = observe_directory(root, &path, visited, files) {
                    files.insert(path, Err(error));
                }
            }
            // `NotFound`: deleted since the directory was read, or a dangling link. For a manifest,
            // reading it reports the error.
            Err(error) if error.kind() != ErrorKind::NotFound => {
                files.insert(path, Err(error));
            }
            Ok(_) | Err(_) if is_manifest(&path) => {
                files.insert(path, Ok(()));
            }
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|extension| {
        ["yaml", "yml", "json"]
            .iter()
            .any(|known| extension == *known)
    })
}

// === impl Identity ===

impl Identity {
    fn of(metadata: &fs::Metadata) -> Identity {
        Identity {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

// === impl Stamp ===

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Stamp {
        Stamp {
            identity: Identity::of(metadata),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    fn is_racy(&self, now: SystemTime) -> bool {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let changed = Duration::from_secs(u64::try_from(self.changed.0).unwrap_or_default());
        // A clock that was set back makes every file racy, which only costs a read.
        now.saturating_sub(changed) <= RACY
    }
}
