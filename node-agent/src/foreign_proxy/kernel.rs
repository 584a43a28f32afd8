//! What other proxies have in the kernel, and its removal.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dataplane::Family;
use netlink::nf_tables::{self, Entry, Jump, Operation, Transaction};
use netlink::{CommitError, ObserveError, OpenError, Socket, conntrack};
use nix::net::if_::if_nametoindex;
use thiserror::Error;
use xtables::{TableName, Tables, Variant};

use super::{Found, Legacy, Mechanism};

/// kube-proxy's own table in mode nftables (pkg/proxy/nftables/proxier.go).
pub(crate) const TABLE: &str = "kube-proxy";
/// The device that has the addresses of virtual servers in mode ipvs (pkg/proxy/ipvs/proxier.go).
const IPVS_DEVICE: &str = "kube-ipvs0";
/// Chains that only kube-proxy creates: its entry, and those by which it notices a flush
/// (pkg/proxy/iptables/proxier.go).
const PROOF: [(&str, &str); 4] = [
    ("nat", "KUBE-SERVICES"),
    ("nat", "KUBE-PROXY-CANARY"),
    ("filter", "KUBE-PROXY-CANARY"),
    ("mangle", "KUBE-PROXY-CANARY"),
];
/// Where the kernel names the tables of legacy iptables, one a line.
const LEGACY_TABLES: [(xtables::Family, &str); 2] = [
    (xtables::Family::Ipv4, "/proc/net/ip_tables_names"),
    (xtables::Family::Ipv6, "/proc/net/ip6_tables_names"),
];
/// The prefix of chains of table `nat` that only kube-proxy creates:
/// `KUBE-SERVICES`, `KUBE-SVC-…`, `KUBE-SEP-…`.
const LEGACY_PREFIX: &str = "KUBE-S";
/// How many chains a transaction removes: few enough that other programs do not wait long for the kernel's lock.
const CHAINS_AT_ONCE: usize = 2000;

/// The tables of iptables that kube-proxy has chains in. What redirects goes first.
const IPTABLES: [&str; 3] = ["nat", "filter", "mangle"];
/// Chains that are kube-proxy's alone. `KUBE-MARK-MASQ` and `KUBE-POSTROUTING` are not among them:
/// kubelets before 1.28 have them, and rules of CNI's portmap lead there. `KUBE-FIREWALL` is a
/// kubelet's to this day.
const NAMES: [&str; 6] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-FORWARD",
    "KUBE-PROXY-FIREWALL",
    "KUBE-PROXY-CANARY",
];
/// How the names of its chains for one Service or endpoint begin.
const PREFIXES: [&str; 6] = [
    "KUBE-SVC-",
    "KUBE-SVL-",
    "KUBE-SEP-",
    "KUBE-EXT-",
    "KUBE-FW-",
    "KUBE-XLB-",
];

/// Why it is not known what is there.
#[derive(Debug, Error)]
pub(crate) enum LookError {
    #[error("failed to open a socket to the kernel")]
    Open(#[source] OpenError),
    #[error("failed to look for rules of other proxies")]
    Observe(#[source] ObserveError),
    #[error("failed to list connections to node ports")]
    Flows(#[source] conntrack::ObserveError),
    #[error("failed to read {file}")]
    Read {
        file: &'static str,
        source: io::Error,
    },
}

/// Why rules of another proxy were not removed, or not all of them.
#[derive(Debug, Error)]
pub(crate) enum RemoveError {
    #[error("failed to list the rules to remove")]
    Look(#[source] LookError),
    #[error("failed to remove rules of kube-proxy for {family} from table {table}")]
    Commit {
        family: Family,
        table: &'static str,
        source: CommitError,
    },
}

/// Looks for rules of other proxies in the network namespace of this thread.
pub(crate) fn observe() -> Result<Found, LookError> {
    let mut socket = open()?;
    let mut found = Found::default();
    for family in Family::ALL {
        if socket
            .observe_table(family, TABLE)
            .map_err(LookError::Observe)?
        {
            found.add(Mechanism::Nftables, family);
        }
        for (table, chain) in PROOF {
            if socket
                .observe_chain(family, table, chain)
                .map_err(LookError::Observe)?
            {
                found.add(Mechanism::Iptables, family);
                break;
            }
        }
    }
    if if_nametoindex(IPVS_DEVICE).is_ok() {
        found.add(Mechanism::Ipvs, Family::Ipv4);
        found.add(Mechanism::Ipvs, Family::Ipv6);
    }
    for (family, file) in LEGACY_TABLES {
        let names = match fs::read_to_string(file) {
            // A kernel that has no legacy iptables, or has not been asked for it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            read => read.map_err(|source| LookError::Read { file, source })?,
        };
        if names.lines().any(|name| name == "nat") {
            found.legacy = found.legacy.max(observe_legacy(family));
        }
    }
    Ok(found)
}

/// What table `nat` of the legacy variant has of kube-proxy's.
fn observe_legacy(family: xtables::Family) -> Legacy {
    // Nothing is changed, so that no lock is taken.
    let (lock, patience) = (Path::new(""), Duration::ZERO);
    let tables = Tables::open(Variant::Legacy, family, LEGACY_PREFIX, lock, patience);
    let chains = tables.map(|mut tables| tables.observe(TableName::Nat).map(|held| held.chains));
    match chains {
        Ok(Ok(chains)) if chains.is_empty() => Legacy::None,
        Ok(Ok(_)) => Legacy::Chains,
        Ok(Err(_)) | Err(_) => Legacy::Unreadable,
    }
}

/// Removes the table of mode nftables, of one family, in one transaction. Established connections go
/// on as long as another program has chains of type nat. A missing table is no failure.
pub(crate) fn commit_table_removal(family: Family) -> Result<(), RemoveError> {
    let mut socket = open().map_err(RemoveError::Look)?;
    let mut removal = Transaction::new(family, TABLE.into());
    removal.operations = vec![Operation::AddTable, Operation::DeleteTable];
    commit(&mut socket, family, TABLE, &removal)
}

/// Removes the chains of mode iptables that are kube-proxy's alone, of one family. First the rules
/// that lead there, in one transaction a table; what is left then is part of no packet's way.
pub(crate) fn commit_chains_removal(family: Family) -> Result<(), RemoveError> {
    let mut socket = open().map_err(RemoveError::Look)?;
    for table in IPTABLES {
        let jumps = observe_entries(&mut socket, family, table).map_err(RemoveError::Look)?;
        let mut entries = Transaction::new(family, table.into());
        let delete = |jump: Jump| Operation::DeleteRule {
            chain: jump.chain,
            handle: jump.handle,
        };
        entries.operations = jumps.into_iter().map(delete).collect();
        commit(&mut socket, family, table, &entries)?;

        let chains = observe_chains(&mut socket, family, table).map_err(RemoveError::Look)?;
        // All are emptied before the first is removed: they lead to one another.
        let steps: [fn(Arc<str>) -> Operation; 2] = [Operation::FlushChain, Operation::DeleteChain];
        for step in steps {
            for some in chains.chunks(CHAINS_AT_ONCE) {
                let mut transaction = Transaction::new(family, table.into());
                transaction.operations = some.iter().cloned().map(step).collect();
                commit(&mut socket, family, table, &transaction)?;
            }
        }
    }
    Ok(())
}

/// Whether packets get to the Services of mode iptables, of one family: kube-proxy has its entry, and
/// the hook that forwarded packets come through leads there.
pub(crate) fn observe_entrance(family: Family) -> Result<bool, LookError> {
    let mut socket = open()?;
    let jumps = observe_entries(&mut socket, family, "nat")?;
    let leads = |jump: &Jump| &*jump.chain == "PREROUTING" && &*jump.target == "KUBE-SERVICES";
    Ok(jumps.iter().any(leads))
}

/// What of mode iptables keeps its removal from being safe, of one family, in words.
pub(crate) fn observe_entanglements(family: Family) -> Result<Entanglements, LookError> {
    let mut socket = open()?;
    let mut entanglements = Entanglements::default();
    for table in IPTABLES {
        let own: BTreeSet<Arc<str>> = observe_own(&mut socket, family, table, &mut entanglements)?;
        for jump in observe_entries(&mut socket, family, table)? {
            if !own.contains(&jump.chain) {
                continue;
            }
            let Jump { chain, target, .. } = jump;
            let words = format!("a rule of chain {chain} in table {table} leads to {target}");
            entanglements.others.push(words);
        }
    }
    Ok(entanglements)
}

/// How rules of other programs depend on kube-proxy's chains of mode iptables.
#[derive(Debug, Default)]
pub(crate) struct Entanglements {
    /// Rules of other programs that lead to chains of kube-proxy: removing these would break them.
    pub(crate) others: Vec<String>,
    /// The node forwards nothing that no rule accepts, and kube-proxy's rules accept what is sent to
    /// Services.
    pub(crate) drops_forwarded: bool,
}

/// The chains of a table that are neither kube-proxy's nor at a hook: those of other programs.
fn observe_own(
    socket: &mut Socket,
    family: Family,
    table: &str,
    entanglements: &mut Entanglements,
) -> Result<BTreeSet<Arc<str>>, LookError> {
    let chains = socket.observe_foreign_chains(family, table);
    let chains = chains.map_err(LookError::Observe)?;
    let forward = |chain: &nf_tables::ForeignChain| {
        &*chain.name == "FORWARD" && chain.entry == Entry::HookDrop
    };
    entanglements.drops_forwarded |= table == "filter" && chains.iter().any(forward);
    let own = chains.into_iter().filter(|c| c.entry == Entry::Jump);
    Ok(own.map(|chain| chain.name).collect())
}

/// The rules of all chains but kube-proxy's, those at hooks included, that lead to kube-proxy's.
fn observe_entries(
    socket: &mut Socket,
    family: Family,
    table: &str,
) -> Result<Vec<Jump>, LookError> {
    let jumps = socket.observe_jumps(family, table);
    let mut jumps = jumps.map_err(LookError::Observe)?;
    jumps.retain(|jump| is_kube_proxys(&jump.target) && !is_kube_proxys(&jump.chain));
    Ok(jumps)
}

fn observe_chains(
    socket: &mut Socket,
    family: Family,
    table: &str,
) -> Result<Vec<Arc<str>>, LookError> {
    let chains = socket.observe_foreign_chains(family, table);
    let chains = chains.map_err(LookError::Observe)?;
    let names = chains.into_iter().map(|chain| chain.name);
    Ok(names.filter(|name| is_kube_proxys(name)).collect())
}

fn commit(
    socket: &mut Socket,
    family: Family,
    table: &'static str,
    transaction: &Transaction,
) -> Result<(), RemoveError> {
    socket
        .commit(transaction)
        .map_err(|source| RemoveError::Commit {
            family,
            table,
            source,
        })
}

pub(super) fn open() -> Result<Socket, LookError> {
    Socket::open().map_err(LookError::Open)
}

/// Whether a chain in a table of iptables is kube-proxy's alone.
fn is_kube_proxys(chain: &str) -> bool {
    NAMES.contains(&chain) || PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

// === impl Found ===

impl Found {
    fn add(&mut self, mechanism: Mechanism, family: Family) {
        self.rules.entry(mechanism).or_default().insert(family);
    }
}
