//! Legacy tables: read and replaced whole, under a lock that every such program takes.
//!
//! When a table is replaced, the kernel compares only the number of entries. Without the lock,
//! another program's change would be lost. Signpost holds the lock while it reads a table, replaces
//! it and restores its counters.
//!
//! The cost of a change depends on the size of the table: 60,000 rules take a third of a second,
//! most of it in the kernel, which destroys and creates every match. A comment is a match of 288
//! bytes, half the length of a rule.

pub(crate) mod blob;
mod entry;
mod failure;
pub(crate) mod kernel;
mod layout;
mod listing;
mod lock;
mod parsed;
mod previous_rules;
mod replacement;
mod seen;
mod socket_option;
mod table_summary;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blob::{JumpTarget, Kind, Table};
use failure::{Damaged, Failure, NoFamily};
use kernel::Kernel;
use listing::{counted_rules, listed_chains};
use lock::{Lock, LockError};
use parsed::observe_parsed;
use replacement::{Plan, compile_replacement, hook_number};
use rustix::io::Errno;
use seen::{Finding, Seen};
use table_summary::TableSummary;

use crate::{
    BuiltIn, CommitError, CountedRule, Family, ListedChain, ObserveError, OpenError, OwnRules,
    Rule, TableChange, TableName,
};

/// How often a replacement is tried when a program that does not take the lock changes the table
/// first.
const REPLACE_ATTEMPTS: u32 = 2;
/// The built-in chains that a table may have.
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
    /// `None` if this kernel does not support the family; its tables are then always absent.
    kernel: Option<Kernel>,
    family: Family,
    prefix: &'static str,
    lock: PathBuf,
    patience: Duration,
    waited: Duration,
    /// Whether the last change gave up waiting for the lock.
    gave_up: bool,
    /// The state of each table when it was last read or written.
    seen: BTreeMap<TableName, Seen>,
}

// === impl Legacy ===

impl Legacy {
    /// Opens the tables in this thread's network namespace. Using them needs `CAP_NET_ADMIN` there.
    /// If the kernel does not support the family, its tables are empty and cannot be changed.
    pub(crate) fn open(
        family: Family,
        prefix: &'static str,
        lock: &Path,
        patience: Duration,
    ) -> Result<Legacy, OpenError> {
        let opened = Kernel::open(family).map(Some);
        let kernel = opened.or_else(none_if_unsupported);
        let kernel = kernel.map_err(OpenError::new)?;
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

    /// Reads Signpost's rules in `table`, in one pass over the whole table. Does not create a table
    /// that does not exist.
    pub(crate) fn observe(&mut self, table: TableName) -> Result<OwnRules, ObserveError> {
        let failed = self.observe_failed(table);
        self.seen.insert(table, Seen::Unread);
        let kernel = match &self.kernel {
            Some(kernel) if is_there(kernel, table).map_err(&failed)? => kernel,
            Some(_) | None => {
                self.seen.insert(table, Seen::Absent);
                return Ok(OwnRules::default());
            }
        };
        let (family, prefix) = (self.family, self.prefix);
        let read = observe_parsed(kernel, table, family, |info, parsed| {
            let seen = Seen::As(*info, TableSummary::of(parsed, prefix));
            (seen, held(parsed, family, prefix))
        });
        let (seen, held) = read.map_err(&failed)?;
        self.seen.insert(table, seen);
        Ok(held)
    }

    /// Returns which of `among` occur anywhere in `table`, regardless of the program that wrote them. Compares its words instead of
    /// decoding its rules, so that it takes little longer than the kernel's copy of the table. Creates a
    /// table that does not exist.
    pub fn observe_addresses(
        &self,
        table: TableName,
        among: &BTreeSet<Ipv4Addr>,
    ) -> Result<BTreeSet<Ipv4Addr>, ObserveError> {
        let (Some(kernel), Some(first), Some(last)) = (&self.kernel, among.first(), among.last())
        else {
            return Ok(BTreeSet::new());
        };
        let snapshot = kernel.observe_snapshot(&table.to_string());
        let snapshot = snapshot.map_err(|error| self.observe_failed(table)(error.into()))?;
        let (words, _) = snapshot.entries().as_chunks::<4>();
        let words = words.iter().map(|word| u32::from_be_bytes(*word));
        let between = words.filter(|word| (first.to_bits()..=last.to_bits()).contains(word));
        let found = between.map(Ipv4Addr::from_bits);
        Ok(found.filter(|address| among.contains(address)).collect())
    }

    /// Reads the rules of the chains whose names `is_chosen` accepts, whichever program wrote them. Does
    /// not create a table that does not exist.
    pub fn observe_counted_rules(
        &self,
        table: TableName,
        is_chosen: impl Fn(&str) -> bool,
    ) -> Result<Vec<CountedRule>, ObserveError> {
        self.observe_all(table, |parsed| {
            counted_rules(parsed, self.family, &is_chosen)
        })
    }

    /// Lists the chains of all programs. Does not create a table that does not exist.
    pub fn observe_chains(&self, table: TableName) -> Result<Vec<ListedChain>, ObserveError> {
        self.observe_all(table, listed_chains)
    }

    fn observe_all<T>(
        &self,
        table: TableName,
        read: impl Fn(&Table<'_>) -> Vec<T>,
    ) -> Result<Vec<T>, ObserveError> {
        let failed = self.observe_failed(table);
        let kernel = match &self.kernel {
            Some(kernel) if is_there(kernel, table).map_err(&failed)? => kernel,
            Some(_) | None => return Ok(Vec::new()),
        };
        let all = observe_parsed(kernel, table, self.family, |_, parsed| read(parsed));
        all.map_err(failed)
    }

    /// Writes `changes` in order. Consecutive changes of the same table are written together.
    /// Whatever the size of the change, this costs two passes over each table it touches, and as
    /// much again in the kernel.
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

    /// Whether this kernel supports the family.
    pub(crate) fn is_offered(&self) -> bool {
        self.kernel.is_some()
    }

    /// How long the last change waited for the lock.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }

    /// Whether a table has changed since it was last read or written, or was never read: another
    /// number of entries, another length, or a hook's chain that begins or ends elsewhere. The cost
    /// does not depend on the size of the table. It cannot detect a rule replaced by one of the
    /// same length (such as another address or mark), a different order of rules of the same
    /// length, a jump to another chain, another policy, or other counters. A table that another
    /// program had changed when Signpost last wrote it counts as changed until it is read.
    pub(crate) fn observe_drift(&mut self) -> Result<bool, ObserveError> {
        for (table, seen) in &self.seen {
            let differs = self.observe_difference(*table, *seen);
            if differs.map_err(self.observe_failed(*table))? {
                return Ok(true);
            }
        }
        Ok(self.seen.is_empty())
    }

    /// Whether the last change timed out waiting for the lock and the lock is free now. Returns
    /// true only once for each such change. Takes the lock for a moment to find out.
    pub(crate) fn observe_release(&mut self) -> bool {
        let is_free = self.gave_up && Lock::acquire(&self.lock, Duration::ZERO).is_ok();
        self.gave_up &= !is_free;
        is_free
    }

    fn observe_difference(&self, table: TableName, seen: Seen) -> Result<bool, Failure> {
        let Some(kernel) = &self.kernel else {
            return Ok(false);
        };
        match seen {
            Seen::Absent => is_there(kernel, table),
            Seen::As(seen, _) => Ok(kernel.observe_info(&table.to_string())? != seen),
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

    /// Commits `changes`, all of one table, at once. An error states how many of them took effect:
    /// all of them if only the counters were lost.
    fn replace(
        &mut self,
        table: TableName,
        changes: &[TableChange],
    ) -> Result<(), (usize, Failure)> {
        let (family, prefix) = (self.family, self.prefix);
        let nothing = |failure: Failure| (0, failure);
        let kernel = self.kernel.as_ref();
        let kernel = kernel.ok_or_else(|| nothing(NoFamily(family).into()))?;
        let start = Instant::now();
        let lock = Lock::acquire(&self.lock, self.patience);
        self.waited += start.elapsed();
        self.gave_up = matches!(lock, Err(LockError::Held { .. }));
        let lock = lock.map_err(|error| nothing(error.into()))?;
        let name = table.to_string();
        let before = self.seen.get(&table).copied();
        let mut attempt = 1;
        loop {
            let read = observe_parsed(kernel, table, family, |info, parsed| {
                let table_summary = TableSummary::of(parsed, prefix);
                let compiled = Plan::compile(parsed, info, changes).and_then(|plan| {
                    let replacement = compile_replacement(parsed, info, &plan, family, prefix)?;
                    Ok((replacement, table_summary.after(parsed, &plan, prefix)))
                });
                (*info, table_summary, compiled)
            });
            let (info, table_summary, compiled) = read.map_err(nothing)?;
            let finding = Finding::of(before, info, table_summary);
            if finding == Finding::Damaged {
                return Err(nothing(Damaged.into()));
            }
            let is_as_left = before == Some(Seen::As(info, table_summary));
            let (mut replacement, table_summary) =
                compiled.map_err(|obstacle| nothing(Failure::obstructed(obstacle, is_as_left)))?;
            let replaced = kernel.commit_replacement(&name, &mut replacement, info.entries);
            let counters = match replaced {
                Ok(counters) => counters,
                // A program that does not take the lock has changed the number of entries.
                Err(error)
                    if error.source.kind() == io::ErrorKind::WouldBlock
                        && attempt < REPLACE_ATTEMPTS =>
                {
                    attempt += 1;
                    continue;
                }
                Err(error) if error.refuses_a_rule() => {
                    commit_unchanged(kernel, table, family, prefix).map_err(nothing)?;
                    return Err(nothing(Failure::refused(error)));
                }
                Err(error) => return Err(nothing(Failure::refused(error))),
            };
            let restored = kernel.commit_counters(&name, &replacement, counters);
            drop(lock);
            let seen = match finding {
                Finding::AsLeft => Seen::As(replacement.info, table_summary),
                Finding::Touched | Finding::Damaged => Seen::Unread,
            };
            self.seen.insert(table, seen);
            return restored.map_err(|error| (changes.len(), Failure::changed(error)));
        }
    }
}

fn none_if_unsupported(error: io::Error) -> io::Result<Option<Kernel>> {
    match Errno::from_io_error(&error) {
        // ipv6.disable=1, or a kernel without the family.
        Some(Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT) => Ok(None),
        _ => Err(error),
    }
}

/// Whether the table exists. Where the kernel keeps no list of tables, only a request for the table
/// shows it.
fn is_there(kernel: &Kernel, table: TableName) -> Result<bool, Failure> {
    let table = table.to_string();
    if let Some(names) = kernel.observe_names()? {
        return Ok(names.contains(&table));
    }
    match kernel.observe_info(&table) {
        Ok(_) => Ok(true),
        Err(error) if error.has_no_tables() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Replaces a table by itself, to check whether the kernel accepts its current content. The caller
/// holds the lock.
fn commit_unchanged(
    kernel: &Kernel,
    table: TableName,
    family: Family,
    prefix: &str,
) -> Result<(), Failure> {
    let read = observe_parsed(kernel, table, family, |info, parsed| {
        let plan = Plan::compile(parsed, info, &[]);
        let compile = |plan| compile_replacement(parsed, info, &plan, family, prefix);
        (info.entries, plan.and_then(compile))
    });
    let (before, compiled) = read?;
    let mut same = compiled.map_err(|obstacle| Failure::obstructed(obstacle, false))?;
    let name = table.to_string();
    let replaced = kernel.commit_replacement(&name, &mut same, before);
    let counters = replaced.map_err(Failure::not_carried_over)?;
    let restored = kernel.commit_counters(&name, &same, counters);
    restored.map_err(Failure::changed)
}

/// Signpost's part of `table`: chains whose names begin with `prefix`, and the rules that lead to
/// them.
fn held(table: &Table<'_>, family: Family, prefix: &str) -> OwnRules {
    let mut held = OwnRules::default();
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
                let own = rules.filter(|number| table.leads_to_prefix(*number, prefix));
                let rules: Vec<_> = own.map(|n| decode_entry(table, n, family)).collect();
                let chain = BUILT_IN.into_iter().find(|c| hook_number(*c) == hook);
                if let (Some(chain), false) = (chain, rules.is_empty()) {
                    held.entries.insert(chain, rules);
                }
            }
        }
    }
    held
}

/// Decodes entry `number` if it is a rule that Signpost writes.
fn decode_entry(table: &Table<'_>, number: usize, family: Family) -> Option<Rule> {
    let entry = table.layout.entry(table.bytes, table.offset(number))?;
    let chain = target_name(table, number);
    // Signpost writes no rule without a target.
    let is_lacking = table.leads_to(number).is_some() && chain.is_none();
    let rule = (!is_lacking).then(|| entry::decode(entry, table.layout, family, chain));
    rule.flatten()
}

/// The name of the chain that entry `number` leads to.
fn target_name(table: &Table<'_>, number: usize) -> Option<Arc<str>> {
    match table.leads_to(number)? {
        JumpTarget::Next => None,
        JumpTarget::Chain(chain) => {
            let name = str::from_utf8(table.chains[chain].name()?).ok()?;
            Some(Arc::from(name))
        }
    }
}

#[cfg(test)]
mod tests;
