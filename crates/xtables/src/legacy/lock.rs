//! The lock that every program takes before it changes iptables-legacy tables.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, major, minor, open};
use rustix::io::Errno;
use thiserror::Error;

use crate::Fault;
use crate::error::FailedOperation;

/// The pause between the first two attempts. iptables holds the lock for a few milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause between later attempts. It bounds the delay until a release of the lock is
/// noticed.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// The lock, held until this value is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    #[expect(dead_code, reason = "the kernel releases the lock when this is closed")]
    file: OwnedFd,
}

/// The process that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    process: u32,
    name: Option<String>,
}

/// Why the lock was not taken.
#[derive(Debug, Error)]
pub(super) enum LockError {
    #[error("failed to open the lock {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("failed to lock {}", path.display())]
    Lock { path: PathBuf, source: io::Error },
    #[error("timed out after {waited:.1?} waiting for the lock {}, which {} holds", path.display(), named(holder.as_ref()))]
    Held {
        path: PathBuf,
        waited: Duration,
        holder: Option<Holder>,
    },
}

fn named(holder: Option<&Holder>) -> String {
    holder.map_or_else(|| "another process".to_owned(), Holder::to_string)
}

// === impl Lock ===

impl Lock {
    /// Takes the lock at `path` as soon as it is free, or fails after `patience`. Polls, because a
    /// process that blocks in the kernel needs a signal to give up.
    pub(super) fn acquire(path: &Path, patience: Duration) -> Result<Lock, LockError> {
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        // Opened for every change: if the file is deleted, other programs create and lock a new
        // one.
        let file = create(path)?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock { file }),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(errno) => {
                    return Err(LockError::Lock {
                        path: path.to_owned(),
                        source: errno.into(),
                    });
                }
            }
            let waited = start.elapsed();
            if waited >= patience {
                return Err(LockError::Held {
                    path: path.to_owned(),
                    waited,
                    holder: observe_holder(&file),
                });
            }
            thread::sleep(pause.min(patience.saturating_sub(waited)));
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }
}

/// Opens or creates the file as iptables does. The standard library can only create a file that it
/// opens for writing, which the mode of a file created by another program may forbid.
fn create(path: &Path) -> Result<OwnedFd, LockError> {
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC;
    loop {
        match open(path, flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::INTR) => {}
            Err(errno) => {
                return Err(LockError::Open {
                    path: path.to_owned(),
                    source: errno.into(),
                });
            }
            Ok(file) => return Ok(file),
        }
    }
}

/// The holder of the lock on `file`, if the kernel lists it: it lists only processes that are
/// visible in this PID namespace.
fn observe_holder(file: &OwnedFd) -> Option<Holder> {
    let status = fstat(file).ok()?;
    let device = (major(status.st_dev), minor(status.st_dev));
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let process = parse_holder(&locks, device, status.st_ino)?;
    let name = fs::read_to_string(format!("/proc/{process}/comm")).ok();
    let name = name.map(|name| name.trim_end().to_owned());
    Some(Holder { process, name })
}

/// The process that holds the `flock` lock on this file, according to `/proc/locks`. Its lines are
/// `1: FLOCK ADVISORY WRITE 1234 08:01:5678 0 EOF`; a waiting process has an arrow behind the
/// number.
fn parse_holder(locks: &str, device: (u32, u32), inode: u64) -> Option<u32> {
    let file = format!("{:02x}:{:02x}:{inode}", device.0, device.1);
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        match fields.as_slice() {
            [_, "FLOCK", _, _, process, place, ..] if *place == file => process.parse().ok(),
            _ => None,
        }
    })
}

// === impl Holder ===

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = self.process;
        match &self.name {
            Some(name) => write!(f, "{name} (process {process})"),
            None => write!(f, "process {process}"),
        }
    }
}

// === impl LockError ===

impl LockError {
    /// How to react.
    pub(super) fn fault(&self) -> Fault {
        match self {
            LockError::Held { .. } => Fault::Passing,
            LockError::Open { source, .. } | LockError::Lock { source, .. } => {
                Fault::of(source, FailedOperation::Opening)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_distinguished_from_those_who_wait_and_from_other_files() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 00:19:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 00:19:78 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 00:19:77 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 14 00:19:77 0 EOF\n";
        assert_eq!(parse_holder(locks, (0, 0x19), 77), Some(13));
        assert_eq!(parse_holder(locks, (0, 0x1a), 77), None);
        assert_eq!(parse_holder("2: FLOCK", (0, 0x19), 77), None);
    }

    #[test]
    fn a_process_without_a_free_descriptor_tries_again() {
        let open = |errno: Errno| LockError::Open {
            path: PathBuf::from("lock"),
            source: errno.into(),
        };
        let lock = |errno: Errno| LockError::Lock {
            path: PathBuf::from("lock"),
            source: errno.into(),
        };
        for error in [open(Errno::MFILE), open(Errno::NFILE), lock(Errno::NOLCK)] {
            assert_eq!(error.fault(), Fault::Passing, "{error:?}");
        }
        for error in [open(Errno::ACCESS), open(Errno::ROFS), lock(Errno::BADF)] {
            assert_eq!(error.fault(), Fault::Impossible, "{error:?}");
        }
    }
}
