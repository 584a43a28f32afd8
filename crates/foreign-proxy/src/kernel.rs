//! Finds and removes kube-proxy's rules in the kernel.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dataplane::Family;
use netlink::nf_tables::{self, Entry, Jump, ListedRule, Operation, Transaction};
use netlink::{CommitError, ObserveError, OpenError, Socket, conntrack};
use thiserror::Error;
use xtables::{TableName, Tables, Variant};

use super::virtual_servers::{self, VirtualServerError};
use super::{Found, Legacy, Mode};

/// kube-proxy's own table in mode nftables (pkg/proxy/nftables/proxier.go).
pub const TABLE: &str = "kube-proxy";
/// Chains that only kube-proxy creates: its entry chain, and the canary chains by which it detects
/// a flush (pkg/proxy/iptables/proxier.go).
const PROOF: [(&str, &str); 4] = [
    ("nat", "KUBE-SERVICES"),
    ("nat", "KUBE-PROXY-CANARY"),
    ("filter", "KUBE-PROXY-CANARY"),
    ("mangle", "KUBE-PROXY-CANARY"),
];
/// The files in which the kernel lists the tables of legacy iptables, one name per line.
const LEGACY_TABLES: [(Family, &str); 2] = [
    (Family::Ipv4, "/proc/net/ip_tables_names"),
    (Family::Ipv6, "/proc/net/ip6_tables_names"),
];
/// The prefix of chains in table `nat` that only kube-proxy creates: `KUBE-SERVICES`, `KUBE-SVC-…`,
/// `KUBE-SEP-…`.
const LEGACY_PREFIX: &str = "KUBE-S";
/// How many chains one transaction removes: few enough that other programs do not wait long for the
/// kernel's lock.
const CHAINS_AT_ONCE: usize = 2000;

/// The iptables tables that contain chains of kube-proxy. The table that refuses comes first: as
/// long as nat redirects, mode ipvs of Signpost does not send packets through filter with the
/// address of a Service.
const IPTABLES: [&str; 3] = ["filter", "nat", "mangle"];
/// Chains that only kube-proxy uses. `KUBE-MARK-MASQ` and `KUBE-POSTROUTING` are not listed:
/// kubelets before 1.28 have them, and rules of CNI's portmap jump there. `KUBE-FIREWALL` still
/// belongs to the kubelet.
const NAMES: [&str; 11] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-FORWARD",
    "KUBE-PROXY-FIREWALL",
    "KUBE-PROXY-CANARY",
    // Of mode ipvs alone.
    "KUBE-NODE-PORT",
    "KUBE-LOAD-BALANCER",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];
/// A chain of kube-proxy and of kubelets before 1.28, which stays.
const MASQUERADING: &str = "KUBE-POSTROUTING";
/// The prefixes of the chains that kube-proxy has for one Service or endpoint.
const PREFIXES: [&str; 6] = [
    "KUBE-SVC-",
    "KUBE-SVL-",
    "KUBE-SEP-",
    "KUBE-EXT-",
    "KUBE-FW-",
    "KUBE-XLB-",
];

/// Why the kernel could not be scanned.
#[derive(Debug, Error)]
pub enum ScanError {
    /// No socket.
    #[error("failed to open a socket to the kernel")]
    Open(#[source] OpenError),
    /// The kernel refused to list rules.
    #[error("failed to look for rules of other proxies")]
    Observe(#[source] ObserveError),
    /// The kernel refused to list connections.
    #[error("failed to list connections to node ports")]
    Flows(#[source] conntrack::ObserveError),
    /// The legacy tables could not be opened.
    #[error("failed to open the tables of legacy iptables")]
    OpenLegacy(#[source] xtables::OpenError),
    /// A legacy table could not be read.
    #[error("failed to look for rules of kube-proxy in legacy iptables")]
    ObserveLegacy(#[source] xtables::ObserveError),
    /// Virtual servers, or what belongs to them, could not be read.
    #[error("failed to look for mode ipvs of kube-proxy")]
    VirtualServers(#[source] VirtualServerError),
    /// A file of `/proc` could not be read.
    #[error("failed to read {file}")]
    Read {
        /// Its path.
        file: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// Why some or all rules of another proxy were not removed.
#[derive(Debug, Error)]
pub enum RemoveError {
    /// They could not be listed; none was removed.
    #[error("failed to list the rules to remove")]
    List(#[source] ScanError),
    /// The kernel refused a transaction; earlier ones took effect.
    #[error("failed to remove rules of kube-proxy for {family} from table {table}")]
    Commit {
        /// The family.
        family: Family,
        /// The table.
        table: &'static str,
        /// The cause.
        source: CommitError,
    },
}

/// Scans the network namespace of this thread for rules of other proxies. The socket is left in
/// `kept` after a scan without errors.
pub fn observe(kept: &mut Option<Socket>) -> Result<Found, ScanError> {
    let mut socket = kept.take().map_or_else(open, Ok)?;
    let found = observe_through(&mut socket)?;
    *kept = Some(socket);
    Ok(found)
}

fn observe_through(socket: &mut Socket) -> Result<Found, ScanError> {
    let mut found = Found::default();
    for family in Family::ALL {
        if socket
            .observe_table(family, TABLE)
            .map_err(ScanError::Observe)?
        {
            found.add(Mode::Nftables, family);
        }
        for (table, chain) in PROOF {
            if socket
                .observe_chain(family, table, chain)
                .map_err(ScanError::Observe)?
            {
                found.add(Mode::Iptables, family);
                break;
            }
        }
    }
    for (family, file) in LEGACY_TABLES {
        let names = match fs::read_to_string(file) {
            // The kernel has no legacy iptables, or no program has used it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            read => read.map_err(|source| ScanError::Read { file, source })?,
        };
        if names.lines().any(|name| name == "nat") {
            let legacy = observe_legacy(family);
            found.legacy = found.legacy.max(legacy);
            if legacy == Legacy::Chains {
                found.legacy_families.insert(family);
            }
        }
    }
    found.note_virtual_servers(virtual_servers::observe().map_err(ScanError::VirtualServers)?);
    Ok(found)
}

/// Opens the legacy tables to read them, which takes no lock.
pub(super) fn open_legacy(family: Family) -> Result<Tables, xtables::OpenError> {
    let (lock, patience) = (Path::new(""), Duration::ZERO);
    Tables::open(Variant::Legacy, family, LEGACY_PREFIX, lock, patience)
}

/// Checks the legacy table `nat` for chains of kube-proxy.
fn observe_legacy(family: Family) -> Legacy {
    let chains = open_legacy(family)
        .map(|mut tables| tables.observe(TableName::Nat).map(|held| held.chains));
    match chains {
        Ok(Ok(chains)) if chains.is_empty() => Legacy::None,
        Ok(Ok(_)) => Legacy::Chains,
        Ok(Err(_)) | Err(_) => Legacy::Unreadable,
    }
}

/// Removes kube-proxy's table of mode nftables for one family, its rules first. Established
/// connections continue as long as another program has chains of type nat. Succeeds if the table
/// does not exist.
pub fn commit_table_removal(family: Family) -> Result<(), RemoveError> {
    let mut socket = open().map_err(RemoveError::List)?;
    let steps = Transaction::removal(family, &TABLE.into());
    let mut steps = steps.iter();
    steps.try_for_each(|step| commit(&mut socket, family, TABLE, step))
}

/// Removes the chains that only kube-proxy's mode iptables uses, for one family. In each table, one
/// transaction first removes the rules that jump to them, so that no packet traverses the rest.
pub fn commit_chains_removal(family: Family) -> Result<(), RemoveError> {
    let mut socket = open().map_err(RemoveError::List)?;
    commit_set_rules_removal(&mut socket, family)?;
    for table in IPTABLES {
        let jumps = observe_entries(&mut socket, family, table).map_err(RemoveError::List)?;
        let mut entries = Transaction::new(family, table.into());
        let delete = |jump: Jump| Operation::DeleteRule {
            chain: jump.chain,
            handle: jump.handle,
        };
        entries.operations = jumps.into_iter().map(delete).collect();
        commit(&mut socket, family, table, &entries)?;

        let chains = observe_chains(&mut socket, family, table).map_err(RemoveError::List)?;
        // Flushes all chains before it deletes the first, because they jump to one another.
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

/// Removes the rules of mode ipvs in a chain that stays: they masquerade what a set contains, and
/// keep the set.
fn commit_set_rules_removal(socket: &mut Socket, family: Family) -> Result<(), RemoveError> {
    const TABLE: &str = "nat";
    let handle = |rule: &ListedRule<'_>| rule.uses_match("set").then(|| rule.handle());
    let handles = socket.observe_chosen_rules(family, TABLE, Some(MASQUERADING), handle);
    let handles = handles.map_err(|error| RemoveError::List(ScanError::Observe(error)))?;
    let mut removal = Transaction::new(family, TABLE.into());
    let delete = |handle| Operation::DeleteRule {
        chain: MASQUERADING.into(),
        handle,
    };
    removal.operations = handles.into_iter().map(delete).collect();
    commit(socket, family, TABLE, &removal)
}

/// Returns whether packets reach the Service rules of kube-proxy's mode iptables in `family`:
/// whether `PREROUTING` in table `nat` jumps to `KUBE-SERVICES`.
pub fn observe_entrance(family: Family) -> Result<bool, ScanError> {
    let mut socket = open()?;
    let jumps = observe_entries(&mut socket, family, "nat")?;
    let leads = |jump: &Jump| &*jump.chain == "PREROUTING" && &*jump.target == "KUBE-SERVICES";
    Ok(jumps.iter().any(leads))
}

/// Returns whether chain `INPUT` of table `filter` drops what none of its rules accepts.
pub fn observe_input_policy(family: Family) -> Result<bool, ScanError> {
    let chains = open()?.observe_foreign_chains(family, "filter");
    let chains = chains.map_err(ScanError::Observe)?;
    let drops =
        |chain: &nf_tables::ForeignChain| &*chain.name == "INPUT" && chain.entry == Entry::HookDrop;
    Ok(chains.iter().any(drops))
}

/// Reads what makes it unsafe to remove kube-proxy's rules of mode iptables in `family`.
pub fn observe_foreign_references(family: Family) -> Result<ForeignDependencies, ScanError> {
    let mut socket = open()?;
    let mut foreign_references = ForeignDependencies::default();
    for table in IPTABLES {
        let own: BTreeSet<Arc<str>> =
            observe_own(&mut socket, family, table, &mut foreign_references)?;
        for jump in observe_entries(&mut socket, family, table)? {
            if !own.contains(&jump.chain) {
                continue;
            }
            let Jump { chain, target, .. } = jump;
            let words = format!("a rule of chain {chain} in table {table} leads to {target}");
            foreign_references.others.push(words);
        }
    }
    Ok(foreign_references)
}

/// How rules of other programs depend on kube-proxy's chains of mode iptables.
#[derive(Debug, Default)]
pub struct ForeignDependencies {
    /// Rules of other programs that jump to chains of kube-proxy, in words. Removing those chains
    /// would break these rules.
    pub others: Vec<String>,
    /// The policy of chain `FORWARD` is drop, and kube-proxy's rules accept traffic to Services.
    pub drops_forwarded: bool,
}

/// Returns the chains of a table that are not attached to a hook, which includes those of other
/// programs. Notes in `foreign_references` whether `FORWARD` drops by default.
fn observe_own(
    socket: &mut Socket,
    family: Family,
    table: &str,
    foreign_references: &mut ForeignDependencies,
) -> Result<BTreeSet<Arc<str>>, ScanError> {
    let chains = socket.observe_foreign_chains(family, table);
    let chains = chains.map_err(ScanError::Observe)?;
    let forward = |chain: &nf_tables::ForeignChain| {
        &*chain.name == "FORWARD" && chain.entry == Entry::HookDrop
    };
    foreign_references.drops_forwarded |= table == "filter" && chains.iter().any(forward);
    let own = chains.into_iter().filter(|c| c.entry == Entry::Jump);
    Ok(own.map(|chain| chain.name).collect())
}

/// Returns the rules that jump to a chain of kube-proxy from any other chain, hooks included.
fn observe_entries(
    socket: &mut Socket,
    family: Family,
    table: &str,
) -> Result<Vec<Jump>, ScanError> {
    let jumps = socket.observe_jumps(family, table);
    let mut jumps = jumps.map_err(ScanError::Observe)?;
    jumps.retain(|jump| is_kube_proxys(&jump.target) && !is_kube_proxys(&jump.chain));
    Ok(jumps)
}

fn observe_chains(
    socket: &mut Socket,
    family: Family,
    table: &str,
) -> Result<Vec<Arc<str>>, ScanError> {
    let chains = socket.observe_foreign_chains(family, table);
    let chains = chains.map_err(ScanError::Observe)?;
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

pub(super) fn open() -> Result<Socket, ScanError> {
    Socket::open().map_err(ScanError::Open)
}

/// Returns whether only kube-proxy uses an iptables chain of this name.
pub(super) fn is_kube_proxys(chain: &str) -> bool {
    NAMES.contains(&chain) || PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

// === impl Found ===

impl Found {
    fn add(&mut self, mode: Mode, family: Family) {
        self.rules.entry(mode).or_default().insert(family);
    }
}
