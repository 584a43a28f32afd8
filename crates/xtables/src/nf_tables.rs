//! The nf_tables variant: rules that are changed one by one, in transactions.
//!
//! Signpost writes rules as `iptables-nft` does, so every version from 1.8.2 on lists them like its
//! own and can keep using the same tables.

mod chains;
mod compile;
mod decode;
mod encode;
mod fault;
mod layout;
mod parts;
mod prerequisites;

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use netlink::nf_tables::ListedRule;
use netlink::nf_tables::Transaction;
use netlink::{ForeignGenerations, Socket};
use thiserror::Error;

use self::chains::{built_ins, table_name};
use self::compile::{Entry, Present, compile};
use self::parts::{Incomplete, in_parts};
use self::prerequisites::{Extensions, MissingFeature};
use crate::{
    BuiltIn, CommitError, Family, Fault, ObserveError, OpenError, OwnRules, Rule, TableChange,
    TableName,
};

/// With more chains than this, rules are listed chain by chain.
const LISTED_AT_ONCE: usize = 2_000;

/// How often a change is prepared again because another program's transaction came first. Some
/// hundred microseconds pass between reading the state that a change relies on and committing it.
const ATTEMPTS: u32 = 10;

/// After a step that writes at least this many rules, Signpost pauses if more steps follow.
const LONG: usize = 1_000;
/// The length of that pause. If a transaction takes effect while `nft` or `iptables-nft` reads the
/// ruleset and then changes it, the kernel refuses that program's change (ERESTART) and the program
/// starts again. During a series of long transactions it would wait for the last one. The pause is
/// several times what one of these programs needs to read and to write.
const PAUSE: Duration = Duration::from_millis(20);

/// One family's tables in the network namespace of the thread that opened them.
#[derive(Debug)]
pub struct NfTables {
    family: Family,
    /// The prefix of the names of Signpost's chains.
    prefix: &'static str,
    socket: Socket,
    transactions: Transactions,
    /// Notified changes of other programs in both families; empty without a listener.
    foreign_generations: Arc<Mutex<ForeignGenerations>>,
    extensions: Extensions,
    /// The state of the ruleset when each table was last read or found unchanged.
    seen: BTreeMap<TableName, Seen>,
}

/// The number of transactions that took effect through this value and the ones opened beside it.
/// Locked while a transaction is prepared and committed; queries for the generation wait meanwhile.
type Transactions = Arc<Mutex<u32>>;

/// The ruleset's generation, and how many of Signpost's transactions it includes. Each transaction
/// by any program in the namespace raises the generation by one.
#[derive(Debug, Clone, Copy)]
struct Seen {
    generation: u32,
    transactions: u32,
}

/// Why one step did not take effect.
struct Failure {
    fault: Fault,
    cause: Cause,
    source: Box<dyn Error + Send + Sync>,
}

/// Whether a smaller part of the step might succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The step is too large for the kernel's memory or for the socket.
    Size,
    Other,
}

/// The outcome of a step.
enum Attempt {
    /// There was nothing to write.
    Idle,
    Written,
    /// Another program has changed the ruleset since the state that the step relies on was read.
    ConcurrentChangeError,
}

/// Nothing was changed: the state that each attempt relied on was out of date when it was
/// committed.
#[derive(Debug, Error)]
#[error("other programs changed nf_tables before each of {ATTEMPTS} attempts")]
struct ConcurrentChangeError;

/// The kernel refused a rule because it lacks a feature.
#[derive(Debug, Error)]
#[error("the kernel refused a rule of a transaction")]
struct MissingFeatureError {
    source: MissingFeature,
}

/// A rule and the chain that it is in.
#[derive(PartialEq)]
enum Found {
    /// In a chain of Signpost.
    OwnRules(Arc<str>, Option<Rule>),
    /// In a built-in chain, leading to a chain of Signpost.
    Entry(BuiltIn, Option<Rule>),
}

// === impl NfTables ===

impl NfTables {
    /// Opens the tables in this thread's network namespace. Needs `CAP_NET_ADMIN` there.
    pub(crate) fn open(family: Family, prefix: &'static str) -> Result<NfTables, OpenError> {
        NfTables::open_with(family, prefix, Transactions::default(), Arc::default())
    }

    /// Opens the tables of another family. This thread must still be in the same network namespace.
    /// Changes made through one value are not drift for the other.
    pub(crate) fn open_beside(&self, family: Family) -> Result<NfTables, OpenError> {
        let transactions = Arc::clone(&self.transactions);
        NfTables::open_with(
            family,
            self.prefix,
            transactions,
            Arc::clone(&self.foreign_generations),
        )
    }

    fn open_with(
        family: Family,
        prefix: &'static str,
        transactions: Transactions,
        foreign_generations: Arc<Mutex<ForeignGenerations>>,
    ) -> Result<NfTables, OpenError> {
        let socket = Socket::open().map_err(OpenError::new)?;
        Ok(NfTables {
            family,
            prefix,
            socket,
            transactions,
            foreign_generations,
            extensions: Extensions::Unknown,
            seen: BTreeMap::new(),
        })
    }

    /// The socket through which all changes of this family go.
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The ledger in which to record changes by other programs.
    pub(crate) fn foreign_generations(&self) -> &Arc<Mutex<ForeignGenerations>> {
        &self.foreign_generations
    }

    /// Reads Signpost's rules in `table` with two listings, and decodes only Signpost's part. The
    /// entries contain no built-in chain without a rule of Signpost.
    pub(crate) fn observe(&mut self, table: TableName) -> Result<OwnRules, ObserveError> {
        // Read before the table, so that a concurrent change shows as drift.
        let seen = self.observe_seen();
        let held = self.observe_held(table);
        match seen.and_then(|seen| Ok((seen, held?))) {
            Ok((seen, held)) => {
                self.seen.insert(table, seen);
                Ok(held)
            }
            Err(error) => {
                self.seen.clear();
                Err(unread(self.family, table, error))
            }
        }
    }

    fn observe_held(&mut self, table: TableName) -> Result<OwnRules, netlink::ObserveError> {
        let (family, prefix) = (self.family, self.prefix);
        let (of, name) = (family, table_name(table));
        let built_ins = built_ins(table).iter();
        let built_ins: Vec<(String, BuiltIn)> = built_ins.map(|c| (c.to_string(), *c)).collect();
        let mut held = OwnRules::default();
        for chain in self.socket.observe_foreign_chains(of, name)? {
            if chain.name.starts_with(prefix) {
                held.chains.insert(chain.name, Vec::new());
            }
        }
        let choose = |listed: &ListedRule<'_>| {
            let chain = listed.chain();
            if chain.starts_with(prefix) {
                return Some(Found::OwnRules(chain.into(), decode::rule(listed, family)));
            }
            let (_, built_in) = built_ins.iter().find(|(name, _)| name == chain)?;
            let is_entry = listed.leads_to()?.starts_with(prefix);
            is_entry.then(|| Found::Entry(*built_in, decode::rule(listed, family)))
        };
        // For every 32 KiB of a listing of a whole table, the kernel starts again at the first rule
        // (nf_tables_dump_rules), so many rules are listed chain by chain.
        let one_by_one: Vec<Option<Arc<str>>> = match held.chains.len() > LISTED_AT_ONCE {
            true => {
                let own = held.chains.keys().cloned();
                let built_ins = built_ins.iter().map(|(name, _)| Arc::from(name.as_str()));
                own.chain(built_ins).map(Some).collect()
            }
            false => vec![None],
        };
        for chain in one_by_one {
            let chain = chain.as_deref();
            for found in self.socket.observe_chosen_rules(of, name, chain, choose)? {
                match found {
                    Found::OwnRules(chain, rule) => {
                        held.chains.entry(chain).or_default().push(rule)
                    }
                    Found::Entry(chain, rule) => {
                        held.entries.entry(chain).or_default().push(rule);
                    }
                }
            }
        }
        for (chain, rules) in &mut held.entries {
            // Entries that packets cannot reach count as missing. Writing them again fails with the
            // reason.
            if self.observe_obstacle(table, *chain)?.is_some() {
                rules.fill(None);
            }
        }
        Ok(held)
    }

    /// Writes `changes` in order, each in one transaction, and none for a change without effect.
    /// Splits a change that is too large for the kernel or the socket in halves, where it `may_end`.
    /// Pauses between long changes to let other programs write. Existing entries stay in place, even behind those
    /// of other programs: a program that keeps its rules first and watches them would move them
    /// back. Returns the number of transactions.
    pub(crate) fn commit(
        &mut self,
        changes: &[TableChange],
        may_end: impl Fn(usize, usize) -> bool,
    ) -> Result<usize, CommitError> {
        // Checked before the first step, so that nothing is started that cannot be completed.
        for change in changes {
            let asked = self.observe_prerequisites(change);
            asked.map_err(|failure| self.failed(change.table, 0, failure))?;
        }
        let (mut transactions, mut done) = (0, 0);
        for (number, change) in changes.iter().enumerate() {
            let may_end = |chains| may_end(number, chains);
            let committed = in_parts(change, may_end, |part| self.commit_one(part));
            transactions += committed.map_err(
                |Incomplete {
                     done: parts,
                     failure,
                 }| { self.failed(change.table, done + parts, failure) },
            )?;
            done += 1;
            if change.rules() >= LONG && number + 1 < changes.len() {
                thread::sleep(PAUSE);
            }
        }
        Ok(transactions)
    }

    fn failed(&mut self, table: TableName, done: usize, failure: Failure) -> CommitError {
        let Failure { fault, source, .. } = failure;
        if !matches!(fault, Fault::Refused | Fault::Passing) {
            self.seen.clear();
        }
        CommitError {
            family: self.family,
            table,
            done,
            fault,
            source,
        }
    }

    /// Commits one change. Returns whether there was anything to write.
    fn commit_one(&mut self, change: &TableChange) -> Result<bool, Failure> {
        for _ in 0..ATTEMPTS {
            match self.attempt(change)? {
                Attempt::Idle => return Ok(false),
                Attempt::Written => return Ok(true),
                Attempt::ConcurrentChangeError => {}
            }
        }
        Err(Failure {
            fault: Fault::Passing,
            cause: Cause::Other,
            source: ConcurrentChangeError.into(),
        })
    }

    fn attempt(&mut self, change: &TableChange) -> Result<Attempt, Failure> {
        let shared = Arc::clone(&self.transactions);
        // Locked from reading to writing, so that Signpost's other family cannot commit in between.
        let mut transactions = count(&shared);
        let generation = self.observe_generation_for(change);
        let generation = generation.map_err(Failure::of_reading)?;
        let present = self.observe_present(change).map_err(Failure::of_reading)?;
        let transaction = compile(change, self.family, &present);
        if transaction.operations.is_empty() {
            return Ok(Attempt::Idle);
        }
        let committed = match generation {
            Some(generation) => self.socket.commit_in(generation, &transaction),
            None => self.socket.commit(&transaction),
        };
        if committed.is_ok() {
            *transactions = transactions.wrapping_add(1);
        }
        drop(transactions);
        match committed {
            Ok(()) => Ok(Attempt::Written),
            Err(error) if fault::is_overtaken(&error) => Ok(Attempt::ConcurrentChangeError),
            Err(error) => Err(self.refused(error, &transaction)),
        }
    }

    /// The only generation for which `change` is valid, if it depends on one. If another program
    /// deletes and recreates a table, rule handles start again from the beginning, so a recorded
    /// handle of Signpost's rule may now belong to another program's rule.
    fn observe_generation_for(
        &mut self,
        change: &TableChange,
    ) -> Result<Option<u32>, netlink::ObserveError> {
        match change.entries.is_empty() {
            true => Ok(None),
            false => self.socket.observe_generation().map(Some),
        }
    }

    /// The meaning of the failure of `transaction`.
    fn refused(&mut self, error: netlink::CommitError, transaction: &Transaction) -> Failure {
        let was_refused = matches!(error, netlink::CommitError::Refused { .. });
        let fault = match fault::of_writing(&error, transaction) {
            // Nothing has changed, so the kernel holds the recorded rules. What it reports as
            // missing is a match or target that it does not support, or the request is wrong.
            Fault::Changed if was_refused && self.is_unchanged() => Fault::Refused,
            fault => fault,
        };
        if fault == Fault::Refused {
            for extension in fault::doubtful_extensions(&error, transaction) {
                // If this request fails, too, report only the kernel's refusal.
                if let Ok(Some(source)) = self.observe_lack(extension) {
                    let source = MissingFeatureError { source }.into();
                    let cause = Cause::Other;
                    return Failure {
                        fault,
                        cause,
                        source,
                    };
                }
            }
        }
        Failure {
            fault,
            cause: match fault::is_of_size(&error) {
                true => Cause::Size,
                false => Cause::Other,
            },
            source: error.into(),
        }
    }

    /// Reads the built-in chains for which `change` has entries.
    fn observe_present(
        &mut self,
        change: &TableChange,
    ) -> Result<BTreeMap<BuiltIn, Present>, netlink::ObserveError> {
        let (family, prefix) = (self.family, self.prefix);
        let (of, table) = (family, table_name(change.table));
        let mut all = BTreeMap::new();
        for (built_in, _) in &change.entries {
            let chain = built_in.to_string();
            if !self.socket.observe_chain(of, table, &chain)? {
                continue;
            }
            let choose = |listed: &ListedRule<'_>| {
                let is_entry = listed.leads_to()?.starts_with(prefix);
                is_entry.then(|| Entry {
                    handle: listed.handle(),
                    rule: decode::rule(listed, family),
                })
            };
            let entries = self
                .socket
                .observe_chosen_rules(of, table, Some(&chain), choose)?;
            all.insert(*built_in, Present { entries });
        }
        Ok(all)
    }

    /// Whether another program has changed Signpost's tables since they were last read or, without
    /// a listener, any table. A table that was never read counts as changed.
    pub(crate) fn observe_drift(&mut self) -> Result<bool, ObserveError> {
        let Some(&table) = self.seen.keys().next() else {
            return Ok(true);
        };
        let now = self
            .observe_seen()
            .map_err(|error| unread(self.family, table, error))?;
        let foreign_generations = self
            .foreign_generations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_explained = |seen: &Seen| {
            let own = now.transactions.wrapping_sub(seen.transactions);
            let family = self.family;
            let elsewhere = foreign_generations.elsewhere(family, seen.generation, now.generation);
            own.wrapping_add(elsewhere) == now.generation.wrapping_sub(seen.generation)
        };
        if !self.seen.values().all(is_explained) {
            return Ok(true);
        }
        drop(foreign_generations);
        for seen in self.seen.values_mut() {
            *seen = now;
        }
        Ok(false)
    }

    /// Whether the kernel is known to hold what was last read or written.
    fn is_unchanged(&mut self) -> bool {
        self.observe_drift().is_ok_and(|drift| !drift)
    }

    fn observe_seen(&mut self) -> Result<Seen, netlink::ObserveError> {
        let transactions = count(&self.transactions);
        Ok(Seen {
            generation: self.socket.observe_generation()?,
            transactions: *transactions,
        })
    }
}

fn count(transactions: &Transactions) -> MutexGuard<'_, u32> {
    // A counter is valid at any moment, so a panic in another thread does not invalidate it.
    transactions.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unread(family: Family, table: TableName, error: netlink::ObserveError) -> ObserveError {
    ObserveError {
        family,
        table,
        fault: fault::of_reading(&error),
        source: error.into(),
    }
}

#[cfg(test)]
mod tests;
