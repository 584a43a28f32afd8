//! One family's rules in the iptables tables, which are opened only when needed.

mod inspect;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backend::{
    Backend, Change as _, CommitError, Drift, Effect, FrontendContext, ObserveError, Receipt,
    Recovery, Rendered, Size, UnsupportedField,
};
use backend_iptables::{Change, Iptables, Rules, recovery};
use dataplane::{Config, Dataplane, Family, PartSize, ServiceKey};
use runtime::chain;
use thiserror::Error;
use tracing::warn;
use xtables::{Fault, OpenError, TableName, Variant};

use super::LockState;
use super::variants::{FamilyTables, OpenVariant, ReadState, Variants};

/// The iptables tables of one family. They are open only while Signpost's rules are desired or were
/// found there: other programs keep thousands of rules in the same tables, and every scan reads all
/// of them.
#[derive(Debug)]
pub(super) struct OpenOnDemand {
    family: Family,
    /// A backend without a kernel that is used while the tables are not open.
    closed: Iptables,
    open: Option<Open>,
    /// Whether the tables are known to be free of Signpost's rules while they are not open.
    knowledge: ReadState,
    pub(super) offer: TableAvailability,
    /// `None` if the tables are never opened.
    variants: Option<Arc<Variants>>,
    figures: IptablesFigures,
}

/// Signpost's rules in the iptables tables.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct VariantRules {
    /// The rules in the variant in use.
    pub used: Rules,
    /// Leftover rules in the other variant, written by an earlier agent that used it.
    pub leftover: Rules,
}

/// A change between two states.
#[derive(Debug, Clone)]
pub(super) struct VariantChange {
    used: Change,
    leftover: Change,
}

/// The error of a commit before the tables were read.
#[derive(Debug, Error)]
#[error("the iptables tables have not been read yet")]
struct Unread;

/// The current figures about the iptables tables of one family, shared with its backend.
#[derive(Debug, Clone, Default)]
pub struct IptablesFigures(Arc<Mutex<Figures>>);

/// Figures about the iptables tables, for status and metrics.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures {
    /// The variant that was used last.
    pub(super) variant: Option<Variant>,
    /// The longest wait of a change for the xtables lock.
    pub(super) longest_lock_wait: Duration,
    /// The state in which the last change found that lock.
    pub(super) lock: LockState,
    /// How many rules the last change wrote, by table.
    pub(super) written: BTreeMap<TableName, usize>,
}

/// Whether the kernel has tables of this family, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableAvailability {
    /// It has, or the tables were not opened yet.
    Assumed,
    /// The variant that was used last has none: legacy IPv6 with `ipv6.disable=1`.
    Lacking,
}

#[derive(Debug)]
struct Open {
    family_tables: FamilyTables,
    /// The variant opened for both families; `None` if this family was opened alone, to be read.
    opened: Option<Arc<OpenVariant>>,
}

// === impl IptablesFigures ===

impl IptablesFigures {
    pub(super) fn current(&self) -> Figures {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Figures> {
        // The figures are consistent between any two statements that change them, so a poisoned
        // lock is harmless.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl OpenOnDemand ===

impl OpenOnDemand {
    /// The tables of both families, not open unless they contain rules of Signpost.
    pub(super) fn families(variants: &Arc<Variants>) -> [OpenOnDemand; 2] {
        let is_suspected = !variants.observe_suspected().is_empty();
        Family::ALL.map(|family| {
            let mut iptables = OpenOnDemand::new(family, Arc::clone(variants));
            if is_suspected {
                iptables.suspect();
                iptables.open_suspected();
            }
            iptables
        })
    }

    /// The tables of one family, not open.
    fn new(family: Family, variants: Arc<Variants>) -> OpenOnDemand {
        OpenOnDemand {
            variants: Some(variants),
            ..OpenOnDemand::detached(Iptables::detached(family, Variant::NfTables))
        }
    }

    /// The tables of one family without a kernel.
    pub(super) fn detached(closed: Iptables) -> OpenOnDemand {
        OpenOnDemand {
            family: closed.family(),
            closed,
            open: None,
            knowledge: ReadState::Read,
            offer: TableAvailability::Assumed,
            variants: None,
            figures: IptablesFigures::default(),
        }
    }

    /// Tables that are open already, read-only.
    pub(super) fn reading(used: Iptables) -> OpenOnDemand {
        let closed = Iptables::detached(used.family(), used.variant());
        let family_tables = FamilyTables {
            used,
            leftover: None,
        };
        OpenOnDemand {
            open: Some(Open {
                family_tables,
                opened: None,
            }),
            ..OpenOnDemand::detached(closed)
        }
    }

    /// Returns the figures, which stay current for as long as this backend exists.
    pub(super) fn figures(&self) -> IptablesFigures {
        self.figures.clone()
    }

    fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Opens the tables. Selects a variant, unless the other family has done so. The rules in the
    /// tables are not read here.
    fn open_variant(&mut self) -> Result<(), OpenError> {
        if self.open.is_some() {
            return Ok(());
        }
        let Some(variants) = &self.variants else {
            return Ok(());
        };
        let opened = variants.open()?;
        self.knowledge = ReadState::Read;
        self.figures.lock().variant = Some(opened.variant);
        let family_tables = opened.take(self.family);
        self.offer = match &family_tables {
            Some(family_tables) if !family_tables.used.is_offered() => TableAvailability::Lacking,
            Some(_) | None => TableAvailability::Assumed,
        };
        let opened = Some(opened);
        self.open = family_tables.map(|family_tables| Open {
            family_tables,
            opened,
        });
        Ok(())
    }

    fn close(&mut self) {
        if let Some(Open {
            family_tables,
            opened,
        }) = self.open.take()
            && let Some(opened) = opened
        {
            opened.give_back(self.family, family_tables);
        }
    }

    /// Notes that the tables may contain rules of Signpost. The next read opens them, or the first
    /// read after that which can.
    fn suspect(&mut self) {
        self.knowledge = ReadState::MustRead;
    }

    /// Opens the tables if they may contain rules of Signpost.
    fn open_suspected(&mut self) {
        if self.knowledge == ReadState::Read {
            return;
        }
        if let Err(error) = self.open_variant() {
            if error.fault == Fault::Impossible {
                self.knowledge = ReadState::Read;
            }
            let (family, error) = (self.family, chain(&error));
            warn!(%family, %error, "unable to open the iptables tables: rules of Signpost may remain in them");
        }
    }

    /// Returns whether tables that could not be read yet may contain rules of Signpost.
    fn owes_a_look(&self) -> bool {
        let leftover = self
            .open
            .as_ref()
            .and_then(|open| open.family_tables.leftover.as_ref());
        let of_leftover = leftover.map(|leftover| leftover.knowledge);
        [Some(self.knowledge), of_leftover].contains(&Some(ReadState::MustRead))
    }

    /// Closes the unused variant once it was read. A committed change has then removed all of
    /// Signpost's rules there.
    fn close_leftover(&mut self) {
        if let Some(open) = &mut self.open {
            open.family_tables
                .leftover
                .take_if(|leftover| leftover.knowledge == ReadState::Read);
        }
    }

    /// Returns the backend for operations that do not access the kernel.
    fn pure(&self) -> &Iptables {
        let open = self.open.as_ref();
        open.map_or(&self.closed, |open| &open.family_tables.used)
    }

    /// Reads the rules in the variant in use; none while it is not open.
    fn observe_used(&mut self) -> Result<Rules, ObserveError> {
        self.figures.lock().lock = LockState::Free;
        let used = self.used();
        used.map_or_else(|| Ok(Rules::default()), Iptables::observe)
    }

    /// Reads the rules in the other variant, if it may contain rules of Signpost. If that fails,
    /// the variant in use is still served, and the read is tried again later.
    fn observe_leftover(&mut self) -> Rules {
        let Some(open) = &mut self.open else {
            return Rules::default();
        };
        let Some(leftover) = &mut open.family_tables.leftover else {
            return Rules::default();
        };
        let variant = leftover.tables.variant();
        let (rules, is_done) = match leftover.tables.observe() {
            Ok(rules) => {
                leftover.knowledge = ReadState::Read;
                let is_empty = rules == Rules::default();
                (rules, is_empty)
            }
            Err(error) => {
                leftover.knowledge = ReadState::MustRead;
                warn!(error = %chain(&error), %variant, "unable to read the iptables variant that is not in use: rules of Signpost may remain in it");
                (Rules::default(), error.recovery == Recovery::Halt)
            }
        };
        if is_done {
            open.family_tables.leftover = None;
        }
        rules
    }

    /// Commits a change of the variant in use.
    fn commit_used(&mut self, change: Change) -> Result<Receipt, CommitError> {
        let mut written = TableName::ALL.map(|table| (table, 0)).into();
        for step in change.steps() {
            let written: &mut BTreeMap<_, _> = &mut written;
            *written.entry(step.table).or_default() += step.rules();
        }
        self.figures.lock().written = written;
        let (committed, wait) = commit(self.used(), change);
        self.note_wait(wait, committed.is_ok());
        committed
    }

    /// Commits a change of the unused variant.
    fn commit_leftover(&mut self, change: Change) -> Result<Receipt, CommitError> {
        let (committed, wait) = commit(self.leftover(), change);
        self.note_wait(wait, committed.is_ok());
        committed
    }

    /// Removes all of Signpost's rules from both variants. A failure in one variant does not
    /// prevent the removal from the other.
    fn commit_removals(&mut self) -> Vec<Result<Receipt, CommitError>> {
        if let Some(open) = &mut self.open {
            let leftover = open
                .family_tables
                .leftover
                .as_mut()
                .map(|leftover| &mut leftover.tables);
            let family_tables = std::iter::once(&mut open.family_tables.used).chain(leftover);
            return family_tables.map(Iptables::commit_removal).collect();
        }
        let Some(variants) = &self.variants else {
            return Vec::new();
        };
        // If a variant could not be scanned, the removal itself finds out whether it contains any
        // rules.
        let suspected = variants.observe_suspected();
        let removals = suspected.into_iter().map(|variant| {
            let opened = variants.open_family(self.family, variant);
            opened
                .map_err(|error| self.not_opened(error))?
                .commit_removal()
        });
        removals.collect()
    }

    fn not_opened(&self, error: OpenError) -> CommitError {
        let next = (recovery(error.fault), Effect::None);
        CommitError::new(self.family, next, error)
    }

    fn used(&mut self) -> Option<&mut Iptables> {
        self.open.as_mut().map(|open| &mut open.family_tables.used)
    }

    fn leftover(&mut self) -> Option<&mut Iptables> {
        let leftover = self.open.as_mut()?.family_tables.leftover.as_mut();
        leftover.map(|leftover| &mut leftover.tables)
    }

    fn note_wait(&mut self, wait: Option<Duration>, succeeded: bool) {
        let (Some(wait), Some(variants)) = (wait, &self.variants) else {
            return;
        };
        variants.waited(wait);
        let mut figures = self.figures.lock();
        figures.longest_lock_wait = figures.longest_lock_wait.max(wait);
        // A shorter wait means that the lock was acquired.
        let in_vain = !succeeded && wait >= variants.patience();
        figures.lock = match in_vain {
            true => LockState::Held,
            false => LockState::Free,
        };
    }
}

impl Backend for OpenOnDemand {
    type Rules = VariantRules;
    type Change = VariantChange;

    fn family(&self) -> Family {
        self.family
    }

    fn part_size(&self, config: &Config) -> PartSize {
        self.pure().part_size(config)
    }

    fn rebuild_size(&self, config: &Config) -> PartSize {
        self.pure().rebuild_size(config)
    }

    fn longest_part(&self, config: &Config) -> Duration {
        self.pure().longest_part(config)
    }

    fn render(&self, desired: &Dataplane, from: &Rendered<VariantRules>) -> VariantRules {
        let from = Rendered {
            dataplane: from.dataplane.clone(),
            rules: from.rules.used.clone(),
        };
        VariantRules {
            used: self.pure().render(desired, &from),
            leftover: Rules::default(),
        }
    }

    fn diff(&self, observed: &VariantRules, desired: &VariantRules) -> VariantChange {
        VariantChange {
            used: self.pure().diff(&observed.used, &desired.used),
            leftover: self.pure().diff(&observed.leftover, &desired.leftover),
        }
    }

    fn observe(&mut self) -> Result<VariantRules, ObserveError> {
        self.open_suspected();
        Ok(VariantRules {
            used: self.observe_used()?,
            leftover: self.observe_leftover(),
        })
    }

    fn observe_drift(&mut self) -> Result<Drift, ObserveError> {
        if self.owes_a_look() {
            return Ok(Drift::Possible);
        }
        let used = self.used();
        used.map_or(Ok(Drift::None), Iptables::observe_drift)
    }

    fn commit(&mut self, change: VariantChange) -> Result<Receipt, CommitError> {
        let VariantChange { used, leftover } = change;
        let mut transactions = 0;
        if !used.size().is_empty() {
            if !self.is_open() {
                self.open_variant()
                    .map_err(|error| self.not_opened(error))?;
                // The rendered rules depend on the variant, and the current rules are not known:
                // observe first.
                let next = (Recovery::Observe, Effect::Possible);
                return Err(CommitError::new(self.family, next, Unread));
            }
            transactions += self.commit_used(used)?.transactions;
        }
        if !leftover.size().is_empty() {
            let removed = self.commit_leftover(leftover).map_err(|error| CommitError {
                // The desired rules are programmed; only this removal is tried again.
                recovery: Recovery::Observe,
                effect: Effect::Possible,
                ..error
            });
            transactions += removed?.transactions;
        }
        self.close_leftover();
        Ok(Receipt { transactions })
    }

    fn commit_removal(&mut self) -> Result<Receipt, CommitError> {
        let mut transactions = 0;
        for removal in self.commit_removals() {
            transactions += removal?.transactions;
        }
        Ok(Receipt { transactions })
    }

    fn release(&mut self) {
        // Keep the tables open while the other variant may contain rules of Signpost.
        if !self.owes_a_look() {
            self.close();
        }
    }

    fn is_offered(&self) -> bool {
        self.offer == TableAvailability::Assumed
    }

    fn suspects(&self, change: &VariantChange, desired: &Dataplane) -> BTreeSet<ServiceKey> {
        let mut suspects = self.pure().suspects(&change.used, desired);
        suspects.extend(self.pure().suspects(&change.leftover, desired));
        suspects
    }

    fn unsupported_fields(&self, asked: FrontendContext<'_>) -> Vec<UnsupportedField> {
        self.pure().unsupported_fields(asked)
    }
}

impl fmt::Display for VariantRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.used, self.leftover)
    }
}

impl fmt::Display for VariantChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.used, self.leftover)
    }
}

impl backend::Change for VariantChange {
    fn size(&self) -> Size {
        let (used, leftover) = (self.used.size(), self.leftover.size());
        Size {
            elements: used.elements + leftover.elements,
            objects: used.objects + leftover.objects,
        }
    }
}

/// Commits `change` if the tables are open. Also returns the wait for the xtables lock, if the
/// variant has one.
fn commit(
    tables: Option<&mut Iptables>,
    change: Change,
) -> (Result<Receipt, CommitError>, Option<Duration>) {
    let Some(tables) = tables else {
        return (Ok(Receipt { transactions: 0 }), None);
    };
    let committed = tables.commit(change);
    let wait = match tables.variant() {
        Variant::Legacy => Some(tables.lock_wait()),
        Variant::NfTables => None,
    };
    (committed, wait)
}
