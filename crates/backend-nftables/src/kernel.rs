//! The backend: both families of nf_tables in one network namespace, over one socket.

mod flowtable_support;
mod joined_devices;
mod sctp;
mod support;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backend::{
    Backend, CommitError, Detached, Drift, Effect, FrontendContext, ObserveError, Receipt,
    Recovery, Rendered, UnsupportedField,
};
use dataplane::{Config, Dataplane, Family, PartSize, Protocol, ServiceKey};
use netlink::nf_tables::Transaction;
use netlink::{ForeignGenerations, OpenError, Socket};
use nftables_model::{
    MissingFeature, NotificationListener, RulesetVersion, Support, TableSocket, commit_in_parts,
    recovery, recovery_of_reading,
};

use self::flowtable_support::FlowtableSupport;
use self::joined_devices::{JoinedDevices, observe_existence};
use self::sctp::{Sctp, observe_sctp};
use self::support::probe;
use crate::diff::{Change, diff, halves};
use crate::flowtable;
use crate::layout::{self, NEXT, SetName, TABLE};
use crate::render::render;
use crate::table::Table;

/// The most that one sync writes of a change. The endpoints of a frontend are in slots, and a
/// number says how many slots are in use: unchanged endpoints are not written again.
const PART_SIZE: PartSize = PartSize::new(2_500).by_endpoint();
/// The same while an empty kernel is filled, or the rules of another configuration are replaced.
/// Each part compares everything that is still to come and copies what the parts before it left: in
/// parts of [`PART_SIZE`], 10,000 Services cost the agent half as much processor time again.
const REBUILD_SIZE: PartSize = PartSize::new(40_000).by_endpoint();
/// How long a part may take. A change that arrives meanwhile waits for that time, plus the time for
/// small changes: less than 100 ms, even if an API server uses half of the processors.
const LONGEST_PART: Duration = Duration::from_millis(30);

/// One family in the network namespace in which [`open`] was called.
#[derive(Debug)]
pub struct Nftables {
    family: Family,
    /// The connection to the kernel. `None` for a backend that only renders and diffs.
    connection: Option<Arc<Mutex<TableSocket>>>,
    /// The generation of the ruleset when this family was last read or found unchanged.
    seen: Option<RulesetVersion>,
    /// The transactions of other programs, as reported by the listener; empty while it has not
    /// joined.
    foreign_generations: Arc<Mutex<ForeignGenerations>>,
    /// Whether the kernel redirects SCTP. `None` until conntrack is loaded.
    sctp: Option<Sctp>,
    support: Support,
    flowtables: FlowtableSupport,
    joined: JoinedDevices,
}

/// Opens the network namespace of this thread. Returns one backend for each family.
pub fn open() -> Result<[Nftables; 2], OpenError> {
    Ok(open_with_socket(Socket::open()?, &Arc::default()))
}

/// Opens the network namespace of this thread, with a listener for external changes to Signpost's
/// tables. While it listens, changes to other tables cause no read of Signpost's.
pub fn open_with_listener() -> Result<([Nftables; 2], NotificationListener), OpenError> {
    let (socket, foreign_generations) = (Socket::open()?, Arc::default());
    let own = vec![socket.port()];
    let families = open_with_socket(socket, &foreign_generations);
    let listener = NotificationListener::open(vec![TABLE, NEXT], own, foreign_generations)?;
    Ok((families, listener))
}

/// Returns one backend for each family in the network namespace of `socket`, with the transactions of other
/// programs as a [listener](NotificationListener::open) reports them.
pub fn open_with_socket(
    socket: Socket,
    foreign_generations: &Arc<Mutex<ForeignGenerations>>,
) -> [Nftables; 2] {
    let connection = Arc::new(Mutex::new(TableSocket::from(socket)));
    Family::ALL.map(|family| Nftables {
        family,
        connection: Some(Arc::clone(&connection)),
        seen: None,
        foreign_generations: Arc::clone(foreign_generations),
        sctp: None,
        support: Support::Unknown,
        flowtables: FlowtableSupport::UNKNOWN,
        joined: JoinedDevices::default(),
    })
}

// === impl Nftables ===

impl Nftables {
    /// Creates a backend without a kernel: it renders and diffs, and fails to observe and commit.
    pub fn detached(family: Family) -> Nftables {
        Nftables {
            family,
            connection: None,
            seen: None,
            foreign_generations: Arc::default(),
            sctp: None,
            support: Support::Unknown,
            flowtables: FlowtableSupport::UNKNOWN,
            joined: JoinedDevices::default(),
        }
    }

    fn connection(&self) -> Result<MutexGuard<'_, TableSocket>, Detached> {
        let connection = self.connection.as_ref();
        let connection = connection.ok_or(Detached(self.family))?;
        // A panic elsewhere does not invalidate the socket: its state is consistent between
        // messages.
        Ok(connection.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether no other program is known to have changed what was last read or written.
    fn is_unchanged(&mut self) -> bool {
        let drift = self.observe_generation();
        drift.is_ok_and(|drift| drift == Drift::None)
    }

    /// What other programs may have changed.
    fn observe_generation(&mut self) -> Result<Drift, ObserveError> {
        let Some(seen) = self.seen else {
            return Ok(Drift::Possible);
        };
        let mut connection = self.connection()?;
        let now = connection.observe_seen().map_err(|e| self.unread(e))?;
        drop(connection);
        let foreign_generations = self
            .foreign_generations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let elsewhere = foreign_generations.elsewhere(self.family, seen.generation, now.generation);
        drop(foreign_generations);
        if !seen.has_no_foreign_change(&now, elsewhere) {
            return Ok(Drift::Possible);
        }
        self.seen = Some(now);
        Ok(Drift::None)
    }

    /// What the kernel may have changed by itself: the devices of the flowtable. One message, if there is a
    /// flowtable.
    fn observe_devices(&mut self) -> Result<Drift, ObserveError> {
        if !self.joined.has_flowtable() {
            return Ok(Drift::None);
        }
        let mut connection = self.connection()?;
        let listed = connection.socket().observe_flowtables(self.family, TABLE);
        drop(connection);
        let listed = listed.map_err(|e| self.unread(e))?;
        Ok(match self.joined.differ(&listed, observe_existence) {
            true => Drift::Possible,
            false => Drift::None,
        })
    }

    /// Returns the feature that every Signpost table needs and the kernel lacks, if the kernel
    /// names it.
    fn observe_lacking(&mut self) -> Option<MissingFeature> {
        let (family, mut support) = (self.family, self.support);
        let missing = support.observe_missing(self.connection().ok()?.socket(), || probe(family));
        self.support = support;
        missing
    }

    /// Fails if `change` creates a flowtable and the kernel's cannot be used: after a read, the next rendering
    /// is without.
    fn check_flowtable(&mut self, change: &Change) -> Result<(), CommitError> {
        if !change.transactions.iter().any(flowtable::creates_one) {
            return Ok(());
        }
        let connection = self.connection.as_ref();
        let connection = Arc::clone(connection.ok_or(Detached(self.family))?);
        let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = connection.socket();
        let usable = self.flowtables.observe(socket, self.family);
        usable.map_err(|unusable| {
            CommitError::new(self.family, (Recovery::Observe, Effect::None), unusable)
        })
    }

    fn unread(&self, source: netlink::ObserveError) -> ObserveError {
        ObserveError::new(self.family, recovery_of_reading(&source), source)
    }
}

impl Backend for Nftables {
    type Rules = Table;
    type Change = Change;

    fn family(&self) -> Family {
        self.family
    }

    fn part_size(&self, _config: &Config) -> PartSize {
        PART_SIZE
    }

    fn rebuild_size(&self, _config: &Config) -> PartSize {
        REBUILD_SIZE
    }

    fn longest_part(&self, _config: &Config) -> Duration {
        LONGEST_PART
    }

    fn render(&self, desired: &Dataplane, from: &Rendered<Table>) -> Table {
        let mut table = render(self.family, desired, from);
        let devices = desired.node().flowtable_interfaces.as_ref();
        flowtable::render(&mut table, devices.filter(|_| self.flowtables.are_usable()));
        table
    }

    fn diff(&self, observed: &Table, desired: &Table) -> Change {
        diff(self.family, observed, desired)
    }

    fn observe(&mut self) -> Result<Table, ObserveError> {
        let mut connection = self.connection()?;
        // Read before the table, so that a change in between is reported as drift.
        let seen = connection.observe_seen();
        let table = observe_tables(&mut connection, self.family);
        drop(connection);
        self.seen = Some(seen.map_err(|e| self.unread(e))?);
        let table = table.map_err(|e| self.unread(e))?;
        self.joined = JoinedDevices::of(&table);
        Ok(table)
    }

    fn observe_drift(&mut self) -> Result<Drift, ObserveError> {
        self.flowtables.observe_modules();
        match self.observe_generation()? {
            Drift::None => self.observe_devices(),
            drift => Ok(drift),
        }
    }

    fn commit(&mut self, change: Change) -> Result<Receipt, CommitError> {
        if self.sctp.is_none() {
            self.sctp = observe_sctp();
        }
        self.check_flowtable(&change)?;
        let mut connection = self.connection()?;
        let mut transactions = 0;
        let mut changes = Vec::new();
        // Each is freed after its commit: together they are as large as the table itself.
        for transaction in change.transactions {
            let is_of_device = flowtable::is_of_device(&transaction);
            let of_flowtable = flowtable::changes(&transaction);
            let commit = |part: &Transaction| connection.commit(part);
            let halves = |part: &Transaction| halves(self.family, part);
            let (done, result) = commit_in_parts(transaction, halves, commit);
            transactions += done;
            if let Err(source) = result {
                drop(connection);
                // There is no such device any more, and so it is in no flowtable. The interfaces
                // are watched, and the next change is without it.
                if is_of_device && is_missing(&source) && self.is_unchanged() {
                    changes.extend(of_flowtable);
                    connection = self.connection()?;
                    continue;
                }
                self.joined.follow(&changes);
                let done = transactions;
                let refused_whole =
                    done == 0 && matches!(source, netlink::CommitError::Refused { .. });
                let recovery = match recovery(&source, done) {
                    // No other program has changed anything, so the kernel holds the observed
                    // state. What it reports as missing is an expression that some Services need
                    // and it does not support (siderolabs/pkgs#951), unless every table needs it.
                    Recovery::Observe if refused_whole && self.is_unchanged() => Recovery::Isolate,
                    recovery => recovery,
                };
                let lacking = match recovery {
                    Recovery::Isolate | Recovery::Halt if refused_whole => self.observe_lacking(),
                    _ => None,
                };
                if let Some(lacking) = lacking {
                    let never = (Recovery::Halt, Effect::None);
                    return Err(CommitError::new(self.family, never, lacking));
                }
                if !matches!(recovery, Recovery::Isolate | Recovery::Retry) {
                    self.seen = None;
                }
                let effect = match refused_whole {
                    true => Effect::None,
                    false => Effect::Possible,
                };
                return Err(CommitError::new(self.family, (recovery, effect), source));
            }
            changes.extend(of_flowtable);
        }
        drop(connection);
        self.joined.follow(&changes);
        Ok(Receipt { transactions })
    }

    fn commit_removal(&mut self) -> Result<Receipt, CommitError> {
        let removal = |name| Transaction::removal(self.family, &layout::name(name));
        let mut transactions = removal(TABLE).to_vec();
        // The table beside rarely exists. If that cannot be determined, its removal reports why.
        if let Ok(mut connection) = self.connection()
            && !matches!(
                connection.socket().observe_table(self.family, NEXT),
                Ok(false)
            )
        {
            transactions.extend(removal(NEXT));
        }
        self.commit(Change { transactions })
    }

    fn suspects(&self, change: &Change, desired: &Dataplane) -> BTreeSet<ServiceKey> {
        change
            .frontends(self.family)
            .iter()
            .filter_map(|key| desired.frontends().get(key))
            .map(|claims| claims.winner().0.clone())
            .collect()
    }

    fn unsupported_fields(&self, asked: FrontendContext<'_>) -> Vec<UnsupportedField> {
        let is_untracked = asked.key.protocol() == Protocol::Sctp
            && asked.key.family() == self.family
            && self.sctp == Some(Sctp::Untracked);
        let unsupported_field = is_untracked.then(|| {
            asked.unsupported_field(
                "spec.ports",
                "this kernel does not track SCTP connections, so none is sent to an endpoint",
            )
        });
        unsupported_field.into_iter().collect()
    }

    fn limitations(&self, programmed: &Dataplane) -> Vec<String> {
        let is_asked = programmed.node().flowtable_interfaces.is_some();
        let limitation = self.flowtables.limitation();
        limitation.filter(|_| is_asked).into_iter().collect()
    }

    fn without_room(&self, rules: &Table) -> Vec<UnsupportedField> {
        rules.turns.without_room()
    }
}

/// Whether the kernel refused because something does not exist (ENOENT).
fn is_missing(error: &netlink::CommitError) -> bool {
    let netlink::CommitError::Refused { source, .. } = error else {
        return false;
    };
    source.kind() == ErrorKind::NotFound
}

/// Reads Signpost's table and the one beside it.
fn observe_tables(
    socket: &mut TableSocket,
    family: Family,
) -> Result<Table, netlink::ObserveError> {
    let mut observe = |table_name| -> Result<Table, netlink::ObserveError> {
        let own = |set: &str| SetName::parse(set).map(|set| set.set(family));
        let contents = socket.observe_table(family, table_name, own)?;
        Ok(Table {
            exists: contents.exists,
            chains: contents.chains,
            sets: contents.sets,
            flowtables: contents.flowtables,
            ..Table::default()
        })
    };
    let next = observe(NEXT)?;
    Ok(Table {
        next: next.exists.then(|| Arc::new(next)),
        ..observe(TABLE)?
    })
}

#[cfg(test)]
mod parts_tests;
