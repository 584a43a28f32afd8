//! The kernel's requests and replies for legacy tables, as values.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use thiserror::Error;

#[cfg(test)]
use super::layout::REPLACE;
use super::layout::{
    ADD_COUNTERS, COUNTERS, GET_ENTRIES, HOOKS, INFO, REPLACE_COUNTERS_NUMBER, TABLE_NAME,
    read_u32, write,
};
use super::socket_option;
use crate::error::FailedOperation;
use crate::{Family, Fault};

/// How often a table is read again because it was replaced between the request for its size and the
/// request for its entries.
const READ_ATTEMPTS: u32 = 20;
/// How often Signpost tries to restore counters while the kernel lacks memory.
const COUNTERS_ATTEMPTS: u32 = 10;
/// The pause between two of these attempts. Every other program waits for the lock meanwhile.
const COUNTERS_PAUSE: Duration = Duration::from_millis(10);
/// More bytes than the names of all tables take (five, and room for others).
const NAMES: usize = 4096;

/// Access to the tables of one family in one network namespace.
#[derive(Debug)]
pub(crate) struct Kernel {
    socket: OwnedFd,
    /// The list of existing tables in the namespace in which it was opened. The kernel has no list
    /// until `ip_tables` is loaded.
    names: OnceLock<File>,
    /// The network namespace in which the socket was opened.
    namespace: Option<PathBuf>,
    family: Family,
}

/// The kernel's description of a table, without its entries: `struct ipt_getinfo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Info {
    /// The hooks that the table has, one bit each.
    pub(crate) hooks: u32,
    /// The offset of each hook's chain; 0 for a hook that the table does not have.
    pub(crate) starts: [u32; HOOKS],
    /// The offset of each hook's policy.
    pub(crate) policies: [u32; HOOKS],
    /// The number of entries.
    pub(crate) entries: u32,
    /// The length of the entries in bytes.
    pub(crate) size: u32,
}

/// A table that was read.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) info: Info,
    /// The entries, preceded by [`GET_ENTRIES`] other bytes.
    argument: Vec<u8>,
}

/// A table to write.
#[derive(Debug)]
pub(crate) struct Replacement {
    pub(crate) info: Info,
    /// The entries, preceded by [`REPLACE`] bytes for the header.
    pub(crate) argument: Vec<u8>,
    /// For each new entry, the old entry whose counters it keeps, if any.
    pub(crate) before: Vec<Option<u32>>,
}

/// Counters that were read when a table was replaced, and that are to be restored.
#[derive(Debug)]
pub(crate) struct Counters {
    /// The counters of the old entries.
    before: Vec<u8>,
    /// The buffer for the counters of the new entries, preceded by [`ADD_COUNTERS`] other bytes.
    /// Allocated before the replacement, so that a lack of memory cannot lose counters.
    argument: Vec<u8>,
}

/// Why a request to the kernel failed.
#[derive(Debug, Error)]
#[error("failed to {step} a table of iptables-legacy")]
pub(crate) struct KernelError {
    pub(crate) step: &'static str,
    pub(crate) source: io::Error,
}

fn failed(step: &'static str) -> impl Fn(io::Error) -> KernelError {
    move |source| KernelError { step, source }
}

// === impl Kernel ===

impl Kernel {
    /// Opens a socket in the network namespace of this thread.
    pub(crate) fn open(family: Family) -> io::Result<Kernel> {
        let domain = match family {
            Family::Ipv4 => AddressFamily::INET,
            Family::Ipv6 => AddressFamily::INET6,
        };
        // The options work on any socket of the family. iptables uses a raw one, for which
        // CAP_NET_ADMIN does not suffice.
        let socket = socket_with(domain, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let kernel = Kernel {
            socket,
            names: OnceLock::new(),
            namespace: observe_namespace(),
            family,
        };
        kernel.names()?;
        Ok(kernel)
    }

    /// The list of existing tables, once the kernel has one.
    fn names(&self) -> io::Result<Option<&File>> {
        if let Some(names) = self.names.get() {
            return Ok(Some(names));
        }
        // This thread may be in a different namespace from the one that opened the socket.
        if self.namespace != observe_namespace() {
            return Ok(None);
        }
        let names = match self.family {
            Family::Ipv4 => "ip_tables_names",
            Family::Ipv6 => "ip6_tables_names",
        };
        // /proc/net shows the namespace of the process's first thread instead.
        match File::open(format!("/proc/thread-self/net/{names}")) {
            Ok(file) => Ok(Some(self.names.get_or_init(|| file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The names of the existing tables; `None` if the kernel has no list. Requesting a table that
    /// does not exist creates it, with hooks that every packet then traverses.
    pub(crate) fn observe_names(&self) -> Result<Option<Vec<String>>, KernelError> {
        let Some(file) = self.names().map_err(failed("look for"))? else {
            return Ok(None);
        };
        let mut text = vec![0; NAMES];
        let mut length = 0;
        loop {
            let read = file.read_at(&mut text[length..], length as u64);
            match read.map_err(failed("look for"))? {
                0 => break,
                more => length += more,
            }
        }
        let text = String::from_utf8_lossy(&text[..length]);
        Ok(Some(text.lines().map(str::to_owned).collect()))
    }

    /// The kernel's description of a table. Creates the table if it does not exist.
    pub(crate) fn observe_info(&self, table: &str) -> Result<Info, KernelError> {
        let mut argument = [0; INFO];
        write(&mut argument, 0, table.as_bytes());
        socket_option::observe_info(self.socket.as_fd(), self.family, &mut argument)
            .map_err(failed("ask for the size of"))?;
        Ok(Info::parse(&argument))
    }

    /// Reads a table. Creates it if it does not exist.
    pub(crate) fn observe_snapshot(&self, table: &str) -> Result<Snapshot, KernelError> {
        let mut attempt = 1;
        loop {
            let info = self.observe_info(table)?;
            let mut argument = vec![0; GET_ENTRIES + info.size as usize];
            write(&mut argument, 0, table.as_bytes());
            write(&mut argument, TABLE_NAME, &info.size.to_ne_bytes());
            let read =
                socket_option::observe_entries(self.socket.as_fd(), self.family, &mut argument);
            match read {
                Ok(()) => return Ok(Snapshot { info, argument }),
                // EAGAIN: its size has changed meanwhile.
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && attempt < READ_ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(source) => return Err(failed("read the entries of")(source)),
            }
        }
    }

    /// Replaces a table that had `before` entries, and returns the counters that they had at that
    /// moment.
    pub(crate) fn commit_replacement(
        &self,
        table: &str,
        replacement: &mut Replacement,
        before: u32,
    ) -> Result<Counters, KernelError> {
        let mut counters = Counters {
            before: vec![0; before as usize * COUNTERS],
            argument: vec![0; ADD_COUNTERS + replacement.before.len() * COUNTERS],
        };
        replacement.write_header(table, before);
        let argument = &mut replacement.argument;
        socket_option::commit_replacement(
            self.socket.as_fd(),
            self.family,
            argument,
            &mut counters.before,
        )
        .map_err(failed("replace"))?;
        Ok(counters)
    }

    /// Adds the counters of the old entries to those of the new table `replacement`. No other copy
    /// of them exists, so if memory is short this retries for a tenth of a second.
    pub(crate) fn commit_counters(
        &self,
        table: &str,
        replacement: &Replacement,
        counters: Counters,
    ) -> Result<(), KernelError> {
        let argument = counters.of(table, replacement);
        commit_persistently(|| {
            socket_option::commit_counters(self.socket.as_fd(), self.family, &argument)
        })
        .map_err(failed("restore the counters of"))
    }
}

/// The network namespace of this thread.
fn observe_namespace() -> Option<PathBuf> {
    fs::read_link("/proc/thread-self/ns/net").ok()
}

fn commit_persistently(mut commit: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let mut attempt = 1;
    loop {
        match commit() {
            Err(error) if attempt < COUNTERS_ATTEMPTS && passes(&error) => {
                attempt += 1;
                thread::sleep(COUNTERS_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

fn passes(error: &io::Error) -> bool {
    Fault::of(error, FailedOperation::Writing) == Fault::Passing
}

// === impl KernelError ===

impl KernelError {
    /// Whether `ip_tables` or `ip6_tables` is not loaded.
    pub(crate) fn has_no_tables(&self) -> bool {
        Errno::from_io_error(&self.source) == Some(Errno::NOPROTOOPT)
    }

    /// Whether a match or target of a rule does not exist or refuses to be where it is.
    pub(crate) fn refuses_a_rule(&self) -> bool {
        let errno = Errno::from_io_error(&self.source);
        matches!(errno, Some(Errno::INVAL | Errno::NOENT))
    }
}

// === impl Counters ===

impl Counters {
    /// The argument that restores these counters.
    fn of(mut self, table: &str, replacement: &Replacement) -> Vec<u8> {
        write(&mut self.argument, 0, table.as_bytes());
        let number = replacement.info.entries.to_ne_bytes();
        write(&mut self.argument, TABLE_NAME, &number);
        let (_, places) = self.argument.split_at_mut(ADD_COUNTERS);
        for (place, before) in places.chunks_exact_mut(COUNTERS).zip(&replacement.before) {
            let Some(before) = before else { continue };
            let start = *before as usize * COUNTERS;
            if let Some(counters) = self.before.get(start..start + COUNTERS) {
                place.copy_from_slice(counters);
            }
        }
        self.argument
    }
}

// === impl Info ===

impl Info {
    fn parse(argument: &[u8; INFO]) -> Info {
        let word = |index: usize| read_u32(argument, TABLE_NAME + 4 * index).unwrap_or_default();
        let hooks = word(0);
        let places = |first: usize| {
            std::array::from_fn(|hook| match hooks & (1 << hook) {
                0 => 0,
                _ => word(first + hook),
            })
        };
        Info {
            hooks,
            starts: places(1),
            policies: places(1 + HOOKS),
            entries: word(1 + 2 * HOOKS),
            size: word(2 + 2 * HOOKS),
        }
    }

    /// The numbers of the hooks that the table has.
    pub(crate) fn hooks(&self) -> impl Iterator<Item = usize> + use<> {
        let hooks = self.hooks;
        (0..HOOKS).filter(move |hook| hooks & (1 << hook) != 0)
    }
}

// === impl Snapshot ===

impl Snapshot {
    pub(crate) fn entries(&self) -> &[u8] {
        self.argument.get(GET_ENTRIES..).unwrap_or_default()
    }
}

// === impl Replacement ===

impl Replacement {
    fn write_header(&mut self, table: &str, before: u32) {
        let header = &mut self.argument;
        write(header, 0, table.as_bytes());
        let words = [self.info.hooks, self.info.entries, self.info.size];
        let words = words.into_iter().chain(self.info.starts);
        for (index, word) in words.chain(self.info.policies).enumerate() {
            write(header, TABLE_NAME + 4 * index, &word.to_ne_bytes());
        }
        write(header, REPLACE_COUNTERS_NUMBER, &before.to_ne_bytes());
    }
}

#[cfg(test)]
impl Snapshot {
    /// A snapshot whose description and entries need not belong together.
    pub(super) fn made(info: Info, entries: &[u8]) -> Snapshot {
        let mut argument = vec![0; GET_ENTRIES];
        argument.extend_from_slice(entries);
        Snapshot { info, argument }
    }
}

#[cfg(test)]
impl Replacement {
    pub(super) fn entries(&self) -> &[u8] {
        self.argument.get(REPLACE..).unwrap_or_default()
    }
}

#[cfg(test)]
impl Kernel {
    /// The state before anything has loaded `ip_tables`: there is no list, and the socket does not
    /// support the options.
    pub(super) fn without_tables(family: Family) -> io::Result<Kernel> {
        let kind = SocketType::RAW;
        let socket = socket_with(AddressFamily::NETLINK, kind, SocketFlags::CLOEXEC, None)?;
        Ok(Kernel {
            socket,
            names: OnceLock::new(),
            namespace: None,
            family,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn counters_are_given_back_as_soon_as_there_is_memory() {
        let mut failures = vec![Errno::INTR, Errno::AGAIN, Errno::NOMEM];
        let outcome = commit_persistently(|| failures.pop().map_or(Ok(()), |e| Err(e.into())));
        outcome.expect("it is tried again");
        assert_eq!(failures, []);
        for (errno, expected) in [(Errno::INVAL, 1), (Errno::NOMEM, COUNTERS_ATTEMPTS)] {
            let mut attempts = 0;
            let outcome = commit_persistently(|| {
                attempts += 1;
                Err(errno.into())
            });
            let error = outcome.expect_err("it fails every time");
            assert_eq!(Errno::from_io_error(&error), Some(errno));
            assert_eq!(attempts, expected, "{errno}");
        }
    }

    #[test]
    fn a_list_of_tables_is_found_that_was_not_there_at_first() {
        let mut kernel = Kernel::open(Family::Ipv4).expect("every kernel has IPv4");
        kernel.names = OnceLock::new();
        let names = kernel.observe_names().expect("it can be read");
        let is_there = Path::new("/proc/thread-self/net/ip_tables_names").exists();
        assert_eq!(names.is_some(), is_there);
    }
}
