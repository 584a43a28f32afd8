//! The lock that every program takes before it changes the tables of iptables-legacy.

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
use crate::error::Doing;

/// Between the first two attempts. iptables holds the lock for a few milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Between later ones: it bounds how much later than its release the lock is noticed to be free.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// The lock, for as long as this lives.
#[derive(Debug)]
pub(super) struct Lock {
    #[expect(dead_code, reason = "the kernel releases the lock when this is closed")]
    file: OwnedFd,
}

/// Who holds a lock.
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
    /// Takes the lock at `path`, as soon as it is free, or fails after `patience`. Polls: a process
    /// that blocks in the kernel cannot give up without a signal.
    pub(super) fn acquire(path: &Path, patience: Duration) -> Result<Lock, LockError> {
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        // Opened at every change: a program that finds no file creates another.
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

/// As iptables does it. The standard library creates no file that it does not write to, which the
/// mode of another program's file may forbid.
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

/// Who holds the lock on `file`, where the kernel lists it: it does so only for processes that this
/// one could see.
fn observe_holder(file: &OwnedFd) -> Option<Holder> {
    let status = fstat(file).ok()?;
    let device = (major(status.st_dev), minor(status.st_dev));
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let process = parse_holder(&locks, device, status.st_ino)?;
    let name = fs::read_to_string(format!("/proc/{process}/comm")).ok();
    let name = name.map(|name| name.trim_end().to_owned());
    Some(Holder { process, name })
}

/// The process that holds the lock of `flock` on this file in a list of `/proc/locks`. Its lines are
/// `1: FLOCK ADVISORY WRITE 1234 08:01:5678 0 EOF`; who waits has an arrow behind the number.
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
    /// What to do about it.
    pub(super) fn fault(&self) -> Fault {
        match self {
            LockError::Held { .. } => Fault::Passing,
            LockError::Open { source, .. } | LockError::Lock { source, .. } => {
                Fault::of(source, Doing::Opening)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_told_from_those_who_wait_and_from_other_files() {
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
