//! The tables of before nf_tables: read and replaced whole, under a lock that all who do so take.
//!
//! The kernel compares nothing but the number of entries when a table is replaced, so that without
//! the lock somebody else's change would be lost. The lock is held while a table is read, replaced
//! and given back its counters.
//!
//! What a change costs is what the table costs: 60,000 rules take a third of a second, most of it in
//! the kernel, which takes each match apart and puts it together again. A comment is a match, of 288
//! bytes: half of what a rule is long.

pub(crate) mod blob;
mod entry;
pub(crate) mod kernel;
mod layout;
mod lock;
mod replacement;
mod socket_option;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blob::{Kind, Table, To, Unreadable};
use kernel::{Info, Kernel, KernelError, Snapshot};
use lock::{Lock, LockError};
use replacement::{compile_replacement, hook_number};
use rustix::io::Errno;

use crate::{
    BuiltIn, CommitError, Family, Fault, Held, ObserveError, OpenError, Rule, TableChange,
    TableName,
};

/// How often a replacement is tried that somebody without the lock came before.
const REPLACE_ATTEMPTS: u32 = 2;
/// Those that a table may have.
const BUILT_IN: [BuiltIn; 5] = [
    BuiltIn::Prerouting,
    BuiltIn::Input,
    BuiltIn::Forward,
    BuiltIn::Output,
    BuiltIn::Postrouting,
];

/// Tables of one family in `ip_tables` or `ip6_tables`.
#[derive(Debug)]
pub struct Legacy {
    kernel: Kernel,
    family: Family,
    prefix: &'static str,
    lock: PathBuf,
    patience: Duration,
    waited: Duration,
    /// Whether the last change gave up waiting for the lock.
    gave_up: bool,
    /// What each table was like when we last read or wrote it.
    seen: BTreeMap<TableName, Seen>,
}

/// What a table was like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// It was not there.
    Absent,
    /// As the kernel says here.
    As(Info),
    /// It could not be read.
    Unread,
}

/// Why something did not succeed, and what to do.
struct Failure {
    fault: Fault,
    source: Box<dyn std::error::Error + Send + Sync>,
}

// === impl Legacy ===

impl Legacy {
    /// Opens the tables in this thread's network namespace. Needs `CAP_NET_ADMIN` there, when it is
    /// used.
    pub(crate) fn open(
        family: Family,
        prefix: &'static str,
        lock: &Path,
        patience: Duration,
    ) -> Result<Legacy, OpenError> {
        let kernel = Kernel::open(family).map_err(|source| OpenError {
            source: source.into(),
        })?;
        Ok(Legacy {
            kernel,
            family,
            prefix,
            lock: lock.to_owned(),
            patience,
            waited: Duration::ZERO,
            gave_up: false,
            seen: BTreeMap::new(),
        })
    }

    /// What of `table` is ours. Costs one pass over the whole table. One that is not there does not come to be by this.
    pub(crate) fn observe(&mut self, table: TableName) -> Result<Held, ObserveError> {
        let failed = self.observe_failed(table);
        self.seen.insert(table, Seen::Unread);
        if !self.is_there(table).map_err(&failed)? {
            self.seen.insert(table, Seen::Absent);
            return Ok(Held::default());
        }
        let snapshot = self.kernel.observe_snapshot(&table.to_string());
        let snapshot = snapshot.map_err(Failure::from).map_err(&failed)?;
        let parsed = parse(&snapshot, self.family).map_err(&failed)?;
        let held = held(&parsed, self.family, self.prefix);
        self.seen.insert(table, Seen::As(snapshot.info));
        Ok(held)
    }

    /// Carries out `changes` in order. Costs two passes over each table it touches, and as much again in the kernel, whatever the
    /// size of the change: neighbours of the same table are carried out together.
    pub(crate) fn commit(&mut self, changes: &[TableChange]) -> Result<usize, CommitError> {
        self.waited = Duration::ZERO;
        let (mut done, mut transactions) = (0, 0);
        for group in changes.chunk_by(|one, next| one.table == next.table) {
            let table = group[0].table;
            if !group.iter().all(TableChange::is_empty) {
                match self.replace(table, group) {
                    Ok(()) => transactions += 1,
                    Err((steps, Failure { fault, source })) => {
                        return Err(CommitError {
                            family: self.family,
                            table,
                            done: done + steps,
                            fault,
                            source,
                        });
                    }
                }
            }
            done += group.len();
        }
        Ok(transactions)
    }

    /// How long the last change waited for the lock.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// Whether a table that we have read or written is not as it was then, or none has been: another
    /// number of entries, another length, or a hook's chain that begins or ends elsewhere. Costs the
    /// same for every size of a table. What it cannot see: a rule in the place of another of the same
    /// length, such as another address or mark, another order of rules of the same length, a rule
    /// that leads to another chain, another policy, and counters.
    pub(crate) fn observe_drift(&mut self) -> Result<bool, ObserveError> {
        for (table, seen) in &self.seen {
            let differs = self.observe_difference(*table, *seen);
            if differs.map_err(self.observe_failed(*table))? {
                return Ok(true);
            }
        }
        Ok(self.seen.is_empty())
    }

    /// Whether the last change waited in vain for the lock, and nobody has it any more: told once.
    /// Takes it for a moment to find out.
    pub(crate) fn observe_release(&mut self) -> bool {
        let is_free = self.gave_up && Lock::acquire(&self.lock, Duration::ZERO).is_ok();
        self.gave_up &= !is_free;
        is_free
    }

    fn observe_difference(&self, table: TableName, seen: Seen) -> Result<bool, Failure> {
        match seen {
            Seen::Absent => self.is_there(table),
            Seen::As(seen) => Ok(self.kernel.observe_info(&table.to_string())? != seen),
            Seen::Unread => Ok(true),
        }
    }

    fn observe_failed(&self, table: TableName) -> impl Fn(Failure) -> ObserveError + use<> {
        let family = self.family;
        move |Failure { fault, source }| ObserveError {
            family,
            table,
            fault,
            source,
        }
    }

    /// Whether the table is there. Where the kernel keeps no list nobody knows before asking for it.
    fn is_there(&self, table: TableName) -> Result<bool, Failure> {
        let names = self.kernel.observe_names()?;
        let table = table.to_string();
        Ok(names.is_none_or(|names| names.contains(&table)))
    }

    /// Carries out `changes`, all of one table, at once. An error comes with how many of them took
    /// effect: all, where only the counters were lost.
    fn replace(
        &mut self,
        table: TableName,
        changes: &[TableChange],
    ) -> Result<(), (usize, Failure)> {
        let nothing = |failure: Failure| (0, failure);
        let start = Instant::now();
        let lock = Lock::acquire(&self.lock, self.patience);
        self.waited += start.elapsed();
        self.gave_up = matches!(lock, Err(LockError::Held { .. }));
        let _lock = lock.map_err(|error| {
            nothing(Failure {
                fault: error.fault(),
                source: error.into(),
            })
        })?;
        let name = table.to_string();
        let mut attempt = 1;
        loop {
            let snapshot = self.kernel.observe_snapshot(&name);
            let snapshot = snapshot.map_err(|error| nothing(error.into()))?;
            let parsed = parse(&snapshot, self.family).map_err(nothing)?;
            let (family, prefix) = (self.family, self.prefix);
            let compiled = compile_replacement(&parsed, &snapshot.info, changes, family, prefix);
            let mut replacement = compiled.map_err(|obstacle| {
                // No chain comes or goes without the number of entries: a table that is as we left
                // it never was what the change was made for.
                let is_as_left = self.seen.get(&table) == Some(&Seen::As(snapshot.info));
                let fault = match obstacle.is_about_content() && !is_as_left {
                    true => Fault::Changed,
                    false => Fault::Refused,
                };
                let source = obstacle.into();
                nothing(Failure { fault, source })
            })?;
            let before = snapshot.info.entries;
            let replaced = self
                .kernel
                .commit_replacement(&name, &mut replacement, before);
            let counters = match replaced {
                Ok(counters) => counters,
                // Somebody without the lock has changed the number of entries.
                Err(error)
                    if error.source.kind() == io::ErrorKind::WouldBlock
                        && attempt < REPLACE_ATTEMPTS =>
                {
                    attempt += 1;
                    continue;
                }
                Err(error) => return Err(nothing(Failure::refused(error))),
            };
            self.seen.insert(table, Seen::As(replacement.info));
            let restored = self.kernel.commit_counters(&name, &replacement, &counters);
            return restored.map_err(|error| {
                let failure = Failure {
                    fault: Fault::Changed,
                    source: error.into(),
                };
                (changes.len(), failure)
            });
        }
    }
}

fn parse(snapshot: &Snapshot, family: Family) -> Result<Table<'_>, Failure> {
    let parsed = Table::parse(family, &snapshot.info, snapshot.entries());
    parsed.map_err(|error: Unreadable| Failure {
        fault: Fault::Impossible,
        source: error.into(),
    })
}

/// What of `table` belongs to chains whose names begin with `prefix`.
fn held(table: &Table<'_>, family: Family, prefix: &str) -> Held {
    let mut held = Held::default();
    for chain in &table.chains {
        let rules = chain.rules.clone();
        match chain.kind {
            Kind::Named(name) if chain.begins_with(prefix) => {
                let rules = rules.map(|number| decode_entry(table, number, family));
                let name = String::from_utf8_lossy(name).into();
                held.chains.insert(name, rules.collect());
            }
            Kind::Named(_) => {}
            Kind::Hook(hook) => {
                let ours = rules.filter(|number| table.leads_to_prefix(*number, prefix));
                let rules: Vec<_> = ours.map(|n| decode_entry(table, n, family)).collect();
                let chain = BUILT_IN.into_iter().find(|c| hook_number(*c) == hook);
                if let (Some(chain), false) = (chain, rules.is_empty()) {
                    held.entries.insert(chain, rules);
                }
            }
        }
    }
    held
}

/// The rule that entry `number` is, if it is one that we write.
fn decode_entry(table: &Table<'_>, number: usize, family: Family) -> Option<Rule> {
    let entry = table.layout.entry(table.bytes, table.offset(number))?;
    let chain = match table.leads_to(number) {
        // Without a target: none of ours.
        Some(To::Next) => return None,
        Some(To::Chain(chain)) => {
            let name = str::from_utf8(table.chains[chain].name()?).ok()?;
            Some(Arc::from(name))
        }
        None => None,
    };
    entry::decode(entry, table.layout, family, chain)
}

// === impl Failure ===

impl Failure {
    /// The kernel did not take a table.
    fn refused(error: KernelError) -> Failure {
        let fault = match Errno::from_io_error(&error.source) {
            Some(Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS | Errno::INTR) => Fault::Passing,
            Some(
                Errno::PERM | Errno::ACCESS | Errno::NOPROTOOPT | Errno::OPNOTSUPP | Errno::NOSYS,
            ) => Fault::Impossible,
            // ENOENT: a match or target that it does not have. EINVAL: one in a place where it may
            // not be. ELOOP: chains that lead in a circle.
            _ => Fault::Refused,
        };
        Failure {
            fault,
            source: error.into(),
        }
    }
}

impl From<KernelError> for Failure {
    /// The kernel could not be read.
    fn from(error: KernelError) -> Failure {
        let fault = match Errno::from_io_error(&error.source) {
            Some(Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS | Errno::INTR) => Fault::Passing,
            _ => Fault::Impossible,
        };
        Failure {
            fault,
            source: error.into(),
        }
    }
}

#[cfg(test)]
mod tests;
