//! The backend itself: the two families of one network namespace's nf_tables, over one socket.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use backend::{
    Backend, CommitError, Drift, ObserveError, Receipt, Recovery, Rendered, Shortcoming,
};
use dataplane::{Affinity, Dataplane, Family, ServiceKey};
use netlink::nf_tables::{Chain, Operation, Rule, Set, SetContent, Transaction};
use netlink::{OpenError, Socket};
use rustix::io::Errno;

use crate::diff::{Change, diff};
use crate::layout::{self, SetName, TABLE, nft_family};
use crate::render::{is_withheld, render};
use crate::table::{ChainWithRules, SetWithElements, Table};

/// One family of the network namespace that [`open`] was called in.
#[derive(Debug)]
pub struct Nftables {
    family: Family,
    /// `None`: only what is pure.
    connection: Option<Arc<Mutex<Connection>>>,
    /// How the ruleset stood when this family was last read or written.
    seen: Option<Seen>,
}

/// What both families share.
#[derive(Debug)]
struct Connection {
    socket: Socket,
    /// How many transactions went through this socket.
    transactions: u32,
}

/// The ruleset's generation, and how many transactions of our own it includes. Each transaction of
/// anybody in the namespace raises the generation by one.
#[derive(Debug, Clone, Copy)]
struct Seen {
    generation: u32,
    transactions: u32,
}

/// Opens this thread's network namespace: one backend a family.
pub fn open() -> Result<[Nftables; 2], OpenError> {
    let connection = Arc::new(Mutex::new(Connection {
        socket: Socket::open()?,
        transactions: 0,
    }));
    Ok(Family::ALL.map(|family| Nftables {
        family,
        connection: Some(Arc::clone(&connection)),
        seen: None,
    }))
}

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
#[error("this backend was made without a kernel")]
struct Detached;

// === impl Nftables ===

impl Nftables {
    /// A backend without a kernel: it renders and diffs, and fails to observe and commit.
    pub fn detached(family: Family) -> Nftables {
        Nftables {
            family,
            connection: None,
            seen: None,
        }
    }

    fn connection(&self) -> Result<MutexGuard<'_, Connection>, Detached> {
        let connection = self.connection.as_ref().ok_or(Detached)?;
        // The socket is good between any two messages, so a panic elsewhere does not spoil it.
        Ok(connection.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn unobserved(&self, source: impl Error + Send + Sync + 'static) -> ObserveError {
        ObserveError {
            family: self.family,
            source: source.into(),
        }
    }
}

impl Backend for Nftables {
    type Rules = Table;
    type Change = Change;

    fn family(&self) -> Family {
        self.family
    }

    fn render(&self, desired: &Dataplane, from: &Rendered<Table>) -> Table {
        render(self.family, desired, from)
    }

    fn diff(&self, believed: &Table, wanted: &Table) -> Change {
        diff(self.family, believed, wanted)
    }

    fn observe(&mut self) -> Result<Table, ObserveError> {
        let mut connection = self.connection().map_err(|e| self.unobserved(e))?;
        // Read before the table: what changes meanwhile shows as drift.
        let seen = connection.observe_seen();
        let table = connection.observe_table(self.family);
        drop(connection);
        self.seen = Some(seen.map_err(|e| self.unobserved(e))?);
        table.map_err(|e| self.unobserved(e))
    }

    fn observe_drift(&mut self) -> Result<Drift, ObserveError> {
        let Some(seen) = self.seen else {
            return Ok(Drift::Possible);
        };
        let mut connection = self.connection().map_err(|e| self.unobserved(e))?;
        let now = connection.observe_seen().map_err(|e| self.unobserved(e))?;
        let ours = now.transactions.wrapping_sub(seen.transactions);
        let all = now.generation.wrapping_sub(seen.generation);
        Ok(if ours == all {
            Drift::None
        } else {
            Drift::Possible
        })
    }

    fn commit(&mut self, change: Change) -> Result<Receipt, CommitError> {
        let mut connection = self.connection().map_err(|source| CommitError {
            family: self.family,
            recovery: Recovery::Halt,
            source: source.into(),
        })?;
        for (done, transaction) in change.transactions.iter().enumerate() {
            if let Err(source) = connection.commit(transaction) {
                drop(connection);
                self.seen = None;
                return Err(CommitError {
                    family: self.family,
                    recovery: recovery(&source, done),
                    source: source.into(),
                });
            }
        }
        Ok(Receipt {
            transactions: change.transactions.len(),
        })
    }

    fn commit_removal(&mut self) -> Result<Receipt, CommitError> {
        let mut removal = Transaction::new(nft_family(self.family), layout::name(TABLE));
        // Adding first makes the removal of what may not be there succeed.
        removal.operations = vec![Operation::AddTable, Operation::DeleteTable];
        self.commit(Change {
            transactions: vec![removal],
            frontends: BTreeSet::new(),
        })
    }

    fn suspects(&self, change: &Change, desired: &Dataplane) -> BTreeSet<ServiceKey> {
        change
            .frontends
            .iter()
            .filter_map(|key| desired.frontends().get(key))
            .map(|claims| claims.winner().0.clone())
            .collect()
    }

    fn shortcomings(&self, desired: &Dataplane) -> Vec<Shortcoming> {
        let mut shortcomings = Vec::new();
        for (key, claims) in desired.frontends().iter() {
            if key.family() != self.family {
                continue;
            }
            let (service, frontend) = claims.winner();
            let mut report = |field, message| {
                shortcomings.push(Shortcoming {
                    service: service.clone(),
                    frontend: *key,
                    field,
                    message,
                });
            };
            if is_withheld(frontend) {
                report(
                    "spec.loadBalancerSourceRanges",
                    "source ranges are not enforced yet; the address drops everything instead",
                );
            }
            if frontend.affinity != Affinity::None {
                report(
                    "spec.sessionAffinity",
                    "affinity is not kept yet; every connection is placed anew",
                );
            }
        }
        shortcomings.sort();
        shortcomings
    }
}

/// What to do about a transaction that failed after `done` others had taken effect.
fn recovery(error: &netlink::CommitError, done: usize) -> Recovery {
    let source = match error {
        // What the kernel did is not known.
        netlink::CommitError::Socket { .. } => return Recovery::Observe,
        netlink::CommitError::Refused { source, .. } => source,
    };
    if done > 0 {
        return Recovery::Observe;
    }
    match Errno::from_io_error(source) {
        Some(Errno::BUSY | Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::NOBUFS) => {
            Recovery::Retry
        }
        // The kernel does not hold what was believed.
        Some(Errno::NOENT | Errno::EXIST | Errno::NOTEMPTY) => Recovery::Observe,
        Some(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::PROTONOSUPPORT) => {
            Recovery::Halt
        }
        _ if source.kind() == ErrorKind::PermissionDenied => Recovery::Halt,
        _ => Recovery::Isolate,
    }
}

/// A set that equals none of ours: it has no key.
fn foreign(name: &Arc<str>) -> Set {
    Set {
        name: Arc::clone(name),
        key: Vec::new(),
        content: SetContent::Membership,
    }
}

// === impl Connection ===

impl Connection {
    fn commit(&mut self, transaction: &Transaction) -> Result<(), netlink::CommitError> {
        self.socket.commit(transaction)?;
        self.transactions = self.transactions.wrapping_add(1);
        Ok(())
    }

    fn observe_seen(&mut self) -> Result<Seen, netlink::ObserveError> {
        Ok(Seen {
            generation: self.socket.observe_generation()?,
            transactions: self.transactions,
        })
    }

    fn observe_table(&mut self, family: Family) -> Result<Table, netlink::ObserveError> {
        let of = nft_family(family);
        if !self.socket.observe_table(of, TABLE)? {
            return Ok(Table::default());
        }
        let mut rules: BTreeMap<Arc<str>, Vec<Rule>> = BTreeMap::new();
        for (chain, rule) in self.socket.observe_rules(of, TABLE)? {
            // A rule that is not of our making equals none of ours.
            rules.entry(chain).or_default().push(rule.unwrap_or(Rule {
                expressions: Vec::new(),
            }));
        }
        let mut table = Table {
            exists: true,
            ..Table::default()
        };
        for (name, chain) in self.socket.observe_chains(of, TABLE)? {
            let rules = rules.remove(&name).unwrap_or_default();
            // One of ours with a hook that is not: told from ours by having none.
            let chain = chain.unwrap_or_else(|_| Chain {
                name: Arc::clone(&name),
                hook: None,
            });
            table
                .chains
                .insert(name, Arc::new(ChainWithRules { chain, rules }));
        }
        for (name, set) in self.socket.observe_sets(of, TABLE)? {
            // One of ours with a shape that is not: told from ours by having none.
            let set = set.unwrap_or_else(|_| foreign(&name));
            let ours = SetName::parse(&name).is_some_and(|own| own.set(family) == set);
            let elements = match ours {
                true => self.socket.observe_elements(of, TABLE, &name),
                false => Ok(Vec::new()),
            };
            let (set, elements) = match elements {
                // An element that is not of our making makes the set one that is not ours.
                Err(netlink::ObserveError::Foreign { .. }) => (foreign(&name), Vec::new()),
                elements => (set, elements?),
            };
            let elements = elements.into_iter().collect();
            let set = Arc::new(set);
            table.sets.insert(name, SetWithElements { set, elements });
        }
        Ok(table)
    }
}
