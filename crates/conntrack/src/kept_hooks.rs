//! Keeps connections redirected while no proxy has any rules.
//!
//! The kernel rewrites the packets of a connection by what conntrack remembers, without a look at
//! rules. But it does so only as long as some rule needs conntrack and some chain needs NAT. When a
//! program removes all tables (`nft flush ruleset`, as a restart of nftables.service does), it
//! removes these hooks, too. The next answer of an endpoint then reaches the client from the
//! endpoint's own address. The client resets the unknown connection, and the endpoint ends it.

use std::mem;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use dataplane::Family;
use netlink::nf_tables::{
    Chain, ChainKind, CtKey, Expression, Hook, HookPoint, Operation, Register, Rule, Transaction,
};
use netlink::{CommitError, KEPT_HOOKS, OpenError, Socket};
use thiserror::Error;

/// The chain that needs NAT. Only new connections to this node traverse it, and it is empty.
const NAT: &str = "nat";
/// The chain whose rule needs conntrack. No packet traverses it.
const TRACKED: &str = "tracked";
/// The priority of source NAT, `NF_IP_PRI_NAT_SRC`.
const PRIORITY: i32 = 100;

/// The hooks of conntrack and NAT of one family, which stay until this value is dropped or the
/// process ends, whatever other programs remove.
///
/// They belong to a table that has an owner, since Linux 5.12. Its name contains the time, because
/// the kernel refuses a file of rules whole if that contains a table of another owner: an
/// administrator who has saved the ruleset of a node must be able to load it again.
#[derive(Debug)]
pub struct KeptHooks {
    family: Family,
    /// Its end is that of the table.
    owner: Socket,
    table: Arc<str>,
}

/// Why the hooks go if another program removes all tables.
#[derive(Debug, Error)]
pub enum KeepError {
    /// No socket could be opened.
    #[error("unable to reach nf_tables")]
    Open(#[source] OpenError),
    /// The kernel refuses the table: a kernel before 5.12 for good.
    #[error("unable to create a table that this process owns")]
    Create(#[source] CommitError),
    /// The table before could not be removed.
    #[error("unable to remove a table that this process owns")]
    Remove(#[source] CommitError),
}

// === impl KeptHooks ===

impl KeptHooks {
    /// Keeps the hooks of `family` in the network namespace of this thread.
    pub fn commit(family: Family) -> Result<KeptHooks, KeepError> {
        let mut owner = Socket::open().map_err(KeepError::Open)?;
        let table = name();
        owner
            .commit(&compile(family, &table))
            .map_err(KeepError::Create)?;
        Ok(KeptHooks {
            family,
            owner,
            table,
        })
    }

    /// Gives the table another name, at another second than before. The hooks stay. Drop this value
    /// after an error.
    pub fn renew(&mut self) -> Result<(), KeepError> {
        let table = name();
        let created = self.owner.commit(&compile(self.family, &table));
        created.map_err(KeepError::Create)?;
        let before = mem::replace(&mut self.table, table);
        let mut removal = Transaction::new(self.family, before);
        removal.operations.push(Operation::DeleteTable);
        self.owner.commit(&removal).map_err(KeepError::Remove)
    }
}

/// Returns the name of a table that begins now.
fn name() -> Arc<str> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = now.map_or(0, |now| now.as_secs());
    format!("{KEPT_HOOKS}{seconds}").into()
}

/// Returns the table of `family`.
fn compile(family: Family, table: &Arc<str>) -> Transaction {
    let nat = Hook {
        kind: ChainKind::Nat,
        point: HookPoint::Input,
        priority: PRIORITY,
    };
    let chain = |name: &str, hook| {
        Operation::AddChain(Chain {
            name: name.into(),
            hook,
        })
    };
    let tracks = Rule {
        expressions: vec![Expression::Ct {
            key: CtKey::State,
            direction: None,
            to: Register(0),
        }],
        comment: None,
    };
    let mut transaction = Transaction::new(family, Arc::clone(table));
    transaction.operations = vec![
        Operation::AddOwnedTable,
        chain(NAT, Some(nat)),
        chain(TRACKED, None),
        Operation::AddRule {
            chain: TRACKED.into(),
            rule: tracks,
        },
    ];
    transaction
}
