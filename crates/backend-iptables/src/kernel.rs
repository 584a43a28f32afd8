//! The backend: one family of tables in one network namespace.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backend::{
    Backend, CommitError, Detached, Drift, Effect, FrontendContext, ObserveError, Receipt,
    Recovery, Rendered, UnsupportedField,
};
use dataplane::{Affinity, Config, Dataplane, Family, PartSize, ServiceKey};
use xtables::{Fault, OpenError, TableName, Tables, Variant};

use crate::diff::{Change, diff};
use crate::fixed_chains::Invalid;
use crate::names::PREFIX;
use crate::notification_listener::NotificationListener;
use crate::render::{Setting, render};
use crate::rules::Rules;
use crate::service_chains::Comments;
use crate::table_rules::TableRules;

/// The most that one sync writes of a change in variant nf_tables.
const PART_SIZE: PartSize = PartSize::new(3_000);
/// The same for filling an empty kernel, and for every change in variant legacy. For each sync the
/// kernel validates the whole table, or in variant legacy replaces it, so 10,000 Services in parts
/// of 3,000 took three times as long as in one part. In variant legacy a sync of a tenth of this
/// size takes hardly less time, and a change may have to wait in the middle of ten of them.
const REBUILD_SIZE: PartSize = PartSize::new(30_000);
/// How long that may take. A change that arrives meanwhile waits for at most two such syncs, the
/// one in progress and its own. Most of the time the kernel validates the whole table, plus some 15
/// µs for each rule written: 120 ms with 20,000 frontends, however little is written. With 250 ms
/// the longest wait beside the largest objects was 502 ms, with 160 ms 488 ms.
const LONGEST_PART: Duration = Duration::from_millis(200);

/// Non-zero if conntrack treats packets as valid that it would otherwise call invalid.
const LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

/// One family in the network namespace in which [`open`] was called.
#[derive(Debug)]
pub struct Iptables {
    family: Family,
    variant: Variant,
    /// The connection to the kernel. `None` for a backend that only renders and diffs.
    tables: Option<Arc<Mutex<Tables>>>,
    /// As of the last read or drift check.
    invalid: Invalid,
}

/// The lock under which every program changes legacy tables.
#[derive(Debug, Clone)]
pub struct Lock {
    /// Its file: `/run/xtables.lock` on every host.
    pub path: PathBuf,
    /// How long a change waits for it.
    pub patience: Duration,
}

/// Opens the network namespace of this thread. Returns one backend for each family.
pub fn open(variant: Variant, lock: &Lock) -> Result<[Iptables; 2], OpenError> {
    Ok(families(open_tables(variant, lock)?, variant))
}

/// Opens the network namespace of this thread, with a listener for external changes to Signpost's
/// chains.
pub fn open_with_listener(
    variant: Variant,
    lock: &Lock,
) -> Result<([Iptables; 2], NotificationListener), OpenError> {
    let tables = open_tables(variant, lock)?;
    let [ipv4, ipv6] = &tables;
    let listener = Tables::listen([&*hold(ipv4), &*hold(ipv6)], PREFIX)?;
    let notification_listener = NotificationListener::new(listener, tables.clone());
    Ok((families(tables, variant), notification_listener))
}

/// The tables of both families, shared with the listener.
pub(crate) type SharedTables = [Arc<Mutex<Tables>>; 2];

fn open_tables(variant: Variant, lock: &Lock) -> Result<SharedTables, OpenError> {
    let tables = Tables::open_families(variant, PREFIX, &lock.path, lock.patience)?;
    Ok(tables.map(|tables| Arc::new(Mutex::new(tables))))
}

fn families(tables: SharedTables, variant: Variant) -> [Iptables; 2] {
    let invalid = observe_invalid();
    let [ipv4, ipv6] = tables;
    [(Family::Ipv4, ipv4), (Family::Ipv6, ipv6)].map(|(family, tables)| Iptables {
        tables: Some(tables),
        invalid,
        ..Iptables::detached(family, variant)
    })
}

/// Locks the tables, ignoring poisoning: their state is consistent between any two calls.
fn hold(tables: &Mutex<Tables>) -> MutexGuard<'_, Tables> {
    tables.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Iptables ===

impl Iptables {
    /// Creates a backend without a kernel: it renders and diffs, and fails to observe and commit.
    pub fn detached(family: Family, variant: Variant) -> Iptables {
        Iptables {
            family,
            variant,
            tables: None,
            invalid: Invalid::default(),
        }
    }

    /// The variant of the kernel's tables that it programs.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Whether this kernel has tables of the family. True for a backend without a kernel.
    pub fn is_offered(&self) -> bool {
        let tables = self.tables.as_ref();
        tables.is_none_or(|tables| hold(tables).is_offered())
    }

    /// How long the last change waited for the lock.
    pub fn lock_wait(&self) -> Duration {
        let tables = self.tables.as_ref();
        tables.map_or(Duration::ZERO, |tables| hold(tables).waited())
    }

    fn tables(&self) -> Result<MutexGuard<'_, Tables>, Detached> {
        let tables = self.tables.as_deref();
        tables.map(hold).ok_or(Detached(self.family))
    }

    fn setting(&self) -> Setting {
        Setting {
            family: self.family,
            comments: match self.variant {
                Variant::NfTables => Comments::Everywhere,
                Variant::Legacy => Comments::AtFrontends,
            },
            invalid: self.invalid,
        }
    }

    fn unread(&self, source: xtables::ObserveError) -> ObserveError {
        let recovery = match recovery(source.fault) {
            Recovery::Halt => Recovery::Halt,
            // To retry an observation is to observe again.
            Recovery::Retry | Recovery::Observe | Recovery::Isolate => Recovery::Observe,
        };
        ObserveError::new(self.family, recovery, source)
    }
}

impl Backend for Iptables {
    type Rules = Rules;
    type Change = Change;

    fn family(&self) -> Family {
        self.family
    }

    fn part_size(&self, _config: &Config) -> PartSize {
        match self.variant {
            Variant::NfTables => PART_SIZE,
            Variant::Legacy => REBUILD_SIZE,
        }
    }

    fn rebuild_size(&self, _config: &Config) -> PartSize {
        REBUILD_SIZE
    }

    fn longest_part(&self, _config: &Config) -> Duration {
        LONGEST_PART
    }

    fn render(&self, desired: &Dataplane, from: &Rendered<Rules>) -> Rules {
        render(self.setting(), desired, from)
    }

    fn diff(&self, observed: &Rules, desired: &Rules) -> Change {
        diff(observed, desired)
    }

    fn observe(&mut self) -> Result<Rules, ObserveError> {
        self.invalid = observe_invalid();
        let mut rules = Rules::default();
        for table in TableName::ALL {
            let held = self.tables()?.observe(table);
            *rules.of_mut(table) = TableRules::observed(held.map_err(|e| self.unread(e))?);
        }
        Ok(rules)
    }

    fn observe_drift(&mut self) -> Result<Drift, ObserveError> {
        // An administrator may tune conntrack long after the first rule was written.
        self.invalid = observe_invalid();
        let drift = match (&self.tables, self.variant) {
            (Some(tables), Variant::NfTables) => hold(tables).observe_drift(),
            // A rule that replaces another of the same length is only visible in a full read.
            // Changes that are visible without one are detected between such reads
            // (`NotificationListener`).
            (Some(_), Variant::Legacy) => Ok(true),
            (None, _) => return Err(Detached(self.family).into()),
        };
        match drift.map_err(|e| self.unread(e))? {
            true => Ok(Drift::Possible),
            false => Ok(Drift::None),
        }
    }

    fn commit(&mut self, change: Change) -> Result<Receipt, CommitError> {
        let may_end = |step, chains| change.may_end(step, chains);
        let committed = self.tables()?.commit_divided(&change.steps, may_end);
        match committed {
            Ok(transactions) => Ok(Receipt { transactions }),
            Err(error) => {
                let next = match (recovery(error.fault), error.done) {
                    (recovery @ (Recovery::Retry | Recovery::Isolate), 0) => {
                        (recovery, Effect::None)
                    }
                    // Steps before the failed one took effect, so the kernel differs from the
                    // observed state.
                    (Recovery::Retry | Recovery::Isolate, _) => {
                        (Recovery::Observe, Effect::Possible)
                    }
                    (recovery, _) => (recovery, Effect::Possible),
                };
                Err(CommitError::new(self.family, next, error))
            }
        }
    }

    fn commit_removal(&mut self) -> Result<Receipt, CommitError> {
        let held = self.observe().map_err(|error| {
            let next = (error.recovery, Effect::None);
            CommitError::new(error.family, next, error.source)
        })?;
        self.commit(diff(&held, &Rules::default()))
    }

    fn suspects(&self, change: &Change, desired: &Dataplane) -> BTreeSet<ServiceKey> {
        let is_there = |service: &&ServiceKey| desired.services().get(service).is_some();
        change.services.iter().filter(is_there).cloned().collect()
    }

    fn unsupported_fields(&self, asked: FrontendContext<'_>) -> Vec<UnsupportedField> {
        let is_sticky = asked.frontend.affinity != Affinity::None;
        let is_short = is_sticky && asked.key.family() == self.family;
        let unsupported_field = is_short.then(|| {
            asked.unsupported_field(
                "spec.sessionAffinity",
                "each endpoint remembers no more clients than the kernel's module xt_recent was \
                 loaded for (parameter ip_list_tot, 100 unless set)",
            )
        });
        unsupported_field.into_iter().collect()
    }

    fn without_room(&self, rules: &Rules) -> Vec<UnsupportedField> {
        rules.client_lists.without_room()
    }
}

/// What to do next after a fault, if nothing has taken effect.
pub fn recovery(fault: Fault) -> Recovery {
    match fault {
        Fault::Passing => Recovery::Retry,
        Fault::Changed => Recovery::Observe,
        Fault::Refused => Recovery::Isolate,
        Fault::Impossible => Recovery::Halt,
    }
}

/// Reads conntrack's setting, if it is readable.
fn observe_invalid() -> Invalid {
    match fs::read_to_string(Path::new(LIBERAL)) {
        Ok(setting) if setting.trim() != "0" => Invalid::LetThrough,
        _ => Invalid::Dropped,
    }
}
