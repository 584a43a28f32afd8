//! The backend itself: one family of one network namespace's tables.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backend::{
    Asked, Backend, CommitError, Drift, Effect, ObserveError, Receipt, Recovery, Rendered,
    Shortcoming,
};
use dataplane::{Affinity, ChunkSize, Config, Dataplane, Family, ServiceKey};
use xtables::{Fault, OpenError, TableName, Tables, Variant};

use crate::diff::{Change, diff};
use crate::disturbances::Disturbances;
use crate::fixed_chains::Invalid;
use crate::names::PREFIX;
use crate::render::{Setting, render};
use crate::rules::Rules;
use crate::service_chains::Comments;
use crate::table_rules::TableRules;

/// How much of a change one round writes at the most, in variant nf_tables.
const CHUNK_SIZE: ChunkSize = ChunkSize::new(3_000);
/// The same while an empty kernel is filled, and in variant legacy: the kernel checks, or in the legacy variant
/// replaces, the whole table for each round, so 10,000 Services in parts of 3,000 took three times as long as
/// in one. A round of the legacy variant takes hardly less time for a tenth of this, and there are ten of them
/// that a change may come in the middle of.
const REBUILD_SIZE: ChunkSize = ChunkSize::new(30_000);
/// How long that may take: a change that comes meanwhile waits for two such rounds at the most, the one
/// that is under way and its own. The kernel takes most of it to check the whole table, and some 15 µs for
/// each rule: of 20,000 frontends 120 ms, however little is written.
const LONGEST_PART: Duration = Duration::from_millis(250);

/// Non-zero where conntrack takes for valid what else it would call invalid.
const LIBERAL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";

/// One family of the network namespace that [`open`] was called in.
#[derive(Debug)]
pub struct Iptables {
    family: Family,
    variant: Variant,
    /// `None`: only what is pure.
    tables: Option<Arc<Mutex<Tables>>>,
    /// As it was at the last look, or the last question whether one is needed.
    invalid: Invalid,
}

/// How to get at the legacy tables, which are changed under a lock that every program takes.
#[derive(Debug, Clone)]
pub struct Lock {
    /// Its file: `/run/xtables.lock` on every host.
    pub path: PathBuf,
    /// How long a change waits for it.
    pub patience: Duration,
}

/// Opens this thread's network namespace: one backend a family.
pub fn open(variant: Variant, lock: &Lock) -> Result<[Iptables; 2], OpenError> {
    Ok(families(open_tables(variant, lock)?, variant))
}

/// Opens this thread's network namespace, and a way to hear of what others do to what is ours.
pub fn open_with_disturbances(
    variant: Variant,
    lock: &Lock,
) -> Result<([Iptables; 2], Disturbances), OpenError> {
    let tables = open_tables(variant, lock)?;
    let [ipv4, ipv6] = &tables;
    let listener = Tables::listen([&*hold(ipv4), &*hold(ipv6)], PREFIX)?;
    let disturbances = Disturbances::new(listener, tables.clone());
    Ok((families(tables, variant), disturbances))
}

/// The tables of both families, shared with whoever asks whether they have changed.
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

/// Whatever happened to somebody else who held them: they are good between any two calls.
fn hold(tables: &Mutex<Tables>) -> MutexGuard<'_, Tables> {
    tables.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
#[error("this backend has no access to the kernel")]
struct Detached;

// === impl Iptables ===

impl Iptables {
    /// A backend without a kernel: it renders and diffs, and fails to observe and commit.
    pub fn detached(family: Family, variant: Variant) -> Iptables {
        Iptables {
            family,
            variant,
            tables: None,
            invalid: Invalid::default(),
        }
    }

    /// Which of the kernel's two sets of tables it programs.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Whether this kernel has tables of the family at all; without a kernel, it has.
    pub fn is_offered(&self) -> bool {
        let tables = self.tables.as_ref();
        tables.is_none_or(|tables| hold(tables).is_offered())
    }

    /// How long the last change waited for the lock.
    pub fn lock_wait(&self) -> Duration {
        let tables = self.tables.as_ref();
        tables.map_or(Duration::ZERO, |tables| hold(tables).waited())
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

    fn unobserved(
        &self,
        recovery: Recovery,
        source: impl Error + Send + Sync + 'static,
    ) -> ObserveError {
        ObserveError {
            family: self.family,
            recovery,
            source: source.into(),
        }
    }

    fn unread(&self, source: xtables::ObserveError) -> ObserveError {
        let recovery = match recovery(source.fault) {
            Recovery::Halt => Recovery::Halt,
            // The same again is another look.
            Recovery::Retry | Recovery::Observe | Recovery::Isolate => Recovery::Observe,
        };
        self.unobserved(recovery, source)
    }
}

impl Backend for Iptables {
    type Rules = Rules;
    type Change = Change;

    fn family(&self) -> Family {
        self.family
    }

    fn chunk_size(&self, _config: &Config) -> ChunkSize {
        match self.variant {
            Variant::NfTables => CHUNK_SIZE,
            Variant::Legacy => REBUILD_SIZE,
        }
    }

    fn rebuild_size(&self, _config: &Config) -> ChunkSize {
        REBUILD_SIZE
    }

    fn longest_part(&self, _config: &Config) -> Duration {
        LONGEST_PART
    }

    fn render(&self, desired: &Dataplane, from: &Rendered<Rules>) -> Rules {
        render(self.setting(), desired, from)
    }

    fn diff(&self, believed: &Rules, wanted: &Rules) -> Change {
        diff(believed, wanted)
    }

    fn observe(&mut self) -> Result<Rules, ObserveError> {
        self.invalid = observe_invalid();
        let mut rules = Rules::default();
        for table in TableName::ALL {
            let held = match &self.tables {
                Some(tables) => hold(tables).observe(table),
                None => return Err(self.unobserved(Recovery::Halt, Detached)),
            };
            *rules.of_mut(table) = TableRules::observed(held.map_err(|e| self.unread(e))?);
        }
        Ok(rules)
    }

    fn observe_drift(&mut self) -> Result<Drift, ObserveError> {
        // Set by whoever tunes conntrack, which may be long after its first rule was written.
        self.invalid = observe_invalid();
        let drift = match (&self.tables, self.variant) {
            (Some(tables), Variant::NfTables) => hold(tables).observe_drift(),
            // A rule in the place of another of the same length shows only where it is read. What
            // shows without that is noticed between two such looks (`Disturbances`).
            (Some(_), Variant::Legacy) => Ok(true),
            (None, _) => return Err(self.unobserved(Recovery::Halt, Detached)),
        };
        match drift.map_err(|e| self.unread(e))? {
            true => Ok(Drift::Possible),
            false => Ok(Drift::None),
        }
    }

    fn commit(&mut self, change: Change) -> Result<Receipt, CommitError> {
        let family = self.family;
        let failed = |recovery, effect, source: Box<dyn Error + Send + Sync>| CommitError {
            family,
            recovery,
            effect,
            source,
        };
        let Some(tables) = &self.tables else {
            return Err(failed(Recovery::Halt, Effect::None, Detached.into()));
        };
        let mut tables = hold(tables);
        let committed = tables.commit(&change.steps);
        drop(tables);
        match committed {
            Ok(transactions) => Ok(Receipt { transactions }),
            Err(error) => {
                let (recovery, effect) = match (recovery(error.fault), error.done) {
                    (recovery @ (Recovery::Retry | Recovery::Isolate), 0) => {
                        (recovery, Effect::None)
                    }
                    // What was carried out before the step that failed is not what is believed.
                    (Recovery::Retry | Recovery::Isolate, _) => {
                        (Recovery::Observe, Effect::Possible)
                    }
                    (recovery, _) => (recovery, Effect::Possible),
                };
                Err(failed(recovery, effect, error.into()))
            }
        }
    }

    fn commit_removal(&mut self) -> Result<Receipt, CommitError> {
        let held = self.observe().map_err(|error| CommitError {
            family: error.family,
            recovery: error.recovery,
            effect: Effect::None,
            source: error.source,
        })?;
        self.commit(diff(&held, &Rules::default()))
    }

    fn suspects(&self, change: &Change, desired: &Dataplane) -> BTreeSet<ServiceKey> {
        let is_there = |service: &&ServiceKey| desired.services().get(service).is_some();
        change.services.iter().filter(is_there).cloned().collect()
    }

    fn shortcomings(&self, asked: Asked<'_>) -> Vec<Shortcoming> {
        let is_sticky = asked.frontend.affinity != Affinity::None;
        let is_short = is_sticky && asked.key.family() == self.family;
        let shortcoming = is_short.then(|| {
            asked.shortcoming(
                "spec.sessionAffinity",
                "each endpoint remembers no more clients than the kernel's module xt_recent was \
                 loaded for (parameter ip_list_tot, 100 unless set)",
            )
        });
        shortcoming.into_iter().collect()
    }
}

/// What to do next where nothing has taken effect.
pub fn recovery(fault: Fault) -> Recovery {
    match fault {
        Fault::Passing => Recovery::Retry,
        Fault::Changed => Recovery::Observe,
        Fault::Refused => Recovery::Isolate,
        Fault::Impossible => Recovery::Halt,
    }
}

/// As far as the kernel lets this be seen.
fn observe_invalid() -> Invalid {
    match fs::read_to_string(Path::new(LIBERAL)) {
        Ok(setting) if setting.trim() != "0" => Invalid::LetThrough,
        _ => Invalid::Dropped,
    }
}
