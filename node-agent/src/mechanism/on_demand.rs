//! One family's rules in the tables of iptables, which are opened when they are wanted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use backend::{Backend, CommitError, Drift, Effect, ObserveError, Receipt, Recovery};
use backend_iptables::{Change, Iptables, Rules, recovery};
use dataplane::Family;
use runtime::chain;
use tracing::warn;
use xtables::{Fault, OpenError, TableName, Variant};

use super::LockStanding;
use super::variants::{Knowledge, Opened, Variants, Ways};

/// Open only from when rules of ours are wanted there, or were seen there, until there are none any
/// more: others keep thousands of rules in the same tables, all of which a look reads.
#[derive(Debug)]
pub(super) struct OnDemand {
    family: Family,
    /// Stands for the tables while they are not open: without a kernel.
    closed: Iptables,
    open: Option<Open>,
    /// Of what may be there while they are not open.
    knowledge: Knowledge,
    pub(super) offer: Offer,
    variants: Arc<Variants>,
    tally: Tally,
}

/// What was found and done so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    /// The variant that was used last.
    pub(super) variant: Option<Variant>,
    /// The longest that a change has waited for the lock.
    pub(super) longest_lock_wait: Duration,
    /// How the last change found it.
    pub(super) lock: LockStanding,
    /// How many rules the last change has written, by table.
    pub(super) written: BTreeMap<TableName, usize>,
}

/// Whether the kernel has tables of the family, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    /// It has, or nobody has asked yet.
    Assumed,
    /// The variant that was used last has none: legacy IPv6 with `ipv6.disable=1`.
    Lacking,
}

#[derive(Debug)]
struct Open {
    ways: Ways,
    opened: Arc<Opened>,
}

// === impl OnDemand ===

impl OnDemand {
    /// Those of one family, not open.
    pub(super) fn new(family: Family, variants: Arc<Variants>) -> OnDemand {
        OnDemand {
            family,
            closed: Iptables::detached(family, Variant::NfTables),
            open: None,
            knowledge: Knowledge::Read,
            offer: Offer::Assumed,
            variants,
            tally: Tally::default(),
        }
    }

    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Chooses a variant, unless the other family has; what is there is not known yet.
    pub(super) fn open(&mut self) -> Result<(), OpenError> {
        if self.open.is_some() {
            return Ok(());
        }
        let opened = self.variants.open()?;
        self.knowledge = Knowledge::Read;
        self.tally.variant = Some(opened.variant);
        let ways = opened.take(self.family);
        self.offer = match &ways {
            Some(ways) if !ways.used.is_offered() => Offer::Lacking,
            Some(_) | None => Offer::Assumed,
        };
        self.open = ways.map(|ways| Open { ways, opened });
        Ok(())
    }

    pub(super) fn close(&mut self) {
        if let Some(Open { ways, opened }) = self.open.take() {
            opened.give_back(self.family, ways);
        }
    }

    /// Something of ours may be there: they are opened at the next look, or at the first one at which
    /// that can be done.
    pub(super) fn suspect(&mut self) {
        self.knowledge = Knowledge::Owed;
    }

    /// Opens them where something of ours may be there.
    pub(super) fn open_suspected(&mut self) {
        if self.knowledge == Knowledge::Read {
            return;
        }
        if let Err(error) = self.open() {
            if error.fault == Fault::Impossible {
                self.knowledge = Knowledge::Read;
            }
            let (family, error) = (self.family, chain(&error));
            warn!(%family, %error, "rules of ours may be in the tables of iptables, and stay there");
        }
    }

    /// Whether something of ours may be where it could not be looked yet.
    pub(super) fn owes_a_look(&self) -> bool {
        let stray = self.open.as_ref().and_then(|open| open.ways.stray.as_ref());
        let of_stray = stray.map(|stray| stray.knowledge);
        [Some(self.knowledge), of_stray].contains(&Some(Knowledge::Owed))
    }

    /// Nothing is left in the variant that is not used, as far as it was read.
    pub(super) fn close_stray(&mut self) {
        if let Some(open) = &mut self.open {
            open.ways
                .stray
                .take_if(|stray| stray.knowledge == Knowledge::Read);
        }
    }

    /// What is pure.
    pub(super) fn pure(&self) -> &Iptables {
        let open = self.open.as_ref();
        open.map_or(&self.closed, |open| &open.ways.used)
    }

    /// What the variant that is used holds; nothing while it is not open.
    pub(super) fn observe(&mut self) -> Result<Rules, ObserveError> {
        self.tally.lock = LockStanding::Free;
        let used = self.used();
        used.map_or_else(|| Ok(Rules::default()), Iptables::observe)
    }

    /// What the other one holds, if anything of ours may be there. What is used is served all the
    /// same where that cannot be read, and it is read again later.
    pub(super) fn observe_stray(&mut self) -> Rules {
        let Some(open) = &mut self.open else {
            return Rules::default();
        };
        let Some(stray) = &mut open.ways.stray else {
            return Rules::default();
        };
        let variant = stray.tables.variant();
        let (rules, is_done) = match stray.tables.observe() {
            Ok(rules) => {
                stray.knowledge = Knowledge::Read;
                let is_empty = rules == Rules::default();
                (rules, is_empty)
            }
            Err(error) => {
                stray.knowledge = Knowledge::Owed;
                warn!(error = %chain(&error), %variant, "rules of ours may be in the other variant of iptables");
                (Rules::default(), error.recovery == Recovery::Halt)
            }
        };
        if is_done {
            open.ways.stray = None;
        }
        rules
    }

    pub(super) fn observe_drift(&mut self) -> Result<Drift, ObserveError> {
        let used = self.used();
        used.map_or(Ok(Drift::None), Iptables::observe_drift)
    }

    pub(super) fn commit(&mut self, change: Change) -> Result<Receipt, CommitError> {
        self.tally.written = TableName::ALL.map(|table| (table, 0)).into();
        for step in change.steps() {
            *self.tally.written.entry(step.table).or_default() += step.rules();
        }
        let (committed, wait) = commit(self.used(), change);
        self.note_wait(wait, committed.is_ok());
        committed
    }

    /// Carries out a change of the variant that is not used.
    pub(super) fn commit_stray(&mut self, change: Change) -> Result<Receipt, CommitError> {
        let (committed, wait) = commit(self.stray(), change);
        self.note_wait(wait, committed.is_ok());
        committed
    }

    /// Takes back what a change that was cut short may have left.
    pub(super) fn commit_withdrawal(&mut self) -> Result<(), CommitError> {
        self.used()
            .map_or(Ok(()), |used| used.commit_removal().map(drop))
    }

    /// Removes everything that is ours, from whichever variant. One that fails keeps the other from
    /// nothing.
    pub(super) fn commit_removal(&mut self) -> Vec<Result<Receipt, CommitError>> {
        self.close();
        let failed = |recovery, source| CommitError {
            family: self.family,
            recovery,
            effect: Effect::None,
            source,
        };
        // Of one that could not be looked at, the removal itself says whether it holds anything.
        let suspected = self.variants.observe_suspected();
        let removals = suspected.into_iter().map(|variant| {
            let opened = self.variants.open_family(self.family, variant);
            let opened = opened.map_err(|error| failed(recovery(error.fault), error.into()));
            opened?.commit_removal()
        });
        removals.collect()
    }

    fn used(&mut self) -> Option<&mut Iptables> {
        self.open.as_mut().map(|open| &mut open.ways.used)
    }

    fn stray(&mut self) -> Option<&mut Iptables> {
        let stray = self.open.as_mut()?.ways.stray.as_mut();
        stray.map(|stray| &mut stray.tables)
    }

    fn note_wait(&mut self, wait: Option<Duration>, succeeded: bool) {
        let Some(wait) = wait else { return };
        self.variants.waited(wait);
        self.tally.longest_lock_wait = self.tally.longest_lock_wait.max(wait);
        // Whoever waits less has got it.
        let in_vain = !succeeded && wait >= self.variants.patience();
        self.tally.lock = match in_vain {
            true => LockStanding::Held,
            false => LockStanding::Free,
        };
    }
}

/// Carries out `change`, where that is open; and how long it waited for the lock, if there is one.
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
