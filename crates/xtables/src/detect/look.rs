//! Scans one family of one variant.

use std::error::Error;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use netlink::nf_tables::ListedRule;
use netlink::{ObserveError, Socket};
use rustix::io::Errno;

use super::{HINT_TABLE, HINTS, OwnChains, Presence, TABLES};
use crate::legacy::blob::Table;
use crate::legacy::kernel::Kernel;
use crate::{Family, Fault, Variant};

/// How long a scan that fails temporarily is retried. A momentary shortage of resources ends within
/// this time; Signpost does not wait for longer ones.
const PATIENCE: Duration = Duration::from_millis(200);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// The table and the built-in chain from which the first packet of a connection reaches Signpost's
/// rules.
const ENTRANCE: (&str, &str) = ("nat", "PREROUTING");

/// Why a scan failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    pub(super) source: Box<dyn Error + Send + Sync>,
}

/// Scans one family of one variant. Retries temporary failures for [`PATIENCE`]. A socket that this
/// opens for nf_tables is left in `kept`.
pub(super) fn observe(
    variant: Variant,
    family: Family,
    prefix: &str,
    kept: &mut Option<Socket>,
) -> Result<Presence, Failure> {
    observe_patiently(PATIENCE, || match variant {
        Variant::NfTables => observe_nf_tables(family, prefix, kept),
        Variant::Legacy => observe_legacy(family, prefix),
    })
}

/// Checks for Signpost's rules without reading every rule. The cost does not depend on the number
/// of rules, and the check need not start again when another program makes a change.
pub(super) fn observe_traces(variant: Variant, family: Family, prefix: &str) -> OwnChains {
    let own_chains = match variant {
        Variant::NfTables => observe_nf_tables_traces(family, prefix),
        Variant::Legacy => observe_legacy_traces(family),
    };
    own_chains.unwrap_or(OwnChains::Unknown)
}

/// Calls `look` until it succeeds, fails permanently, or has failed for `patience`.
pub(super) fn observe_patiently<T>(
    patience: Duration,
    mut look: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let start = Instant::now();
    loop {
        match look() {
            Err(Failure {
                fault: Fault::Passing,
                ..
            }) if start.elapsed() < patience => thread::sleep(PAUSE.min(patience)),
            seen => return seen,
        }
    }
}

fn observe_nf_tables(
    family: Family,
    prefix: &str,
    kept: &mut Option<Socket>,
) -> Result<Presence, Failure> {
    let mut socket = match kept.take().map_or_else(Socket::open, Ok) {
        Ok(socket) => socket,
        Err(error) if is_unsupported(error.source()) => return Ok(Presence::default()),
        Err(error) => return Err(Failure::new(error)),
    };
    let presence = observe_through(&mut socket, family, prefix)?;
    *kept = Some(socket);
    Ok(presence)
}

fn observe_through(socket: &mut Socket, family: Family, prefix: &str) -> Result<Presence, Failure> {
    let mut presence = Presence::default();
    for table in TABLES {
        match socket.observe_table(family, table) {
            Ok(true) => {}
            Ok(false) => {
                presence.offered = true;
                continue;
            }
            Err(ObserveError::Refused { source, .. }) if is_unsupported(Some(&source)) => {
                return Ok(presence);
            }
            Err(error) => return Err(Failure::new(error)),
        }
        presence.offered = true;
        let chains = socket.observe_foreign_chains(family, table);
        // List one chain at a time, and skip Signpost's: the larger a listing, the likelier another
        // program changes any table meanwhile, and then the listing has to start again.
        for chain in chains.map_err(Failure::new)? {
            if chain.name.starts_with(prefix) {
                presence.own_chains = OwnChains::Present;
                continue;
            }
            presence.kubelet |= table == HINT_TABLE && HINTS.contains(&&*chain.name);
            let of_others = |rule: &ListedRule<'_>| (!leads_to(rule, prefix)).then_some(());
            let rules = socket.observe_chosen_rules(family, table, Some(&chain.name), of_others);
            presence.rules += rules.map_err(Failure::new)?.len();
        }
    }
    Ok(presence)
}

fn observe_nf_tables_traces(family: Family, prefix: &str) -> Result<OwnChains, Box<dyn Error>> {
    let mut socket = Socket::open()?;
    let (table, chain) = ENTRANCE;
    let into_own_chains = |rule: &ListedRule<'_>| leads_to(rule, prefix).then_some(());
    let entries = socket.observe_chosen_rules(family, table, Some(chain), into_own_chains)?;
    Ok(match entries.is_empty() {
        true => OwnChains::Unlikely,
        false => OwnChains::Present,
    })
}

fn leads_to(rule: &ListedRule<'_>, prefix: &str) -> bool {
    rule.leads_to().is_some_and(|to| to.starts_with(prefix))
}

fn observe_legacy(family: Family, prefix: &str) -> Result<Presence, Failure> {
    let mut presence = Presence::default();
    let kernel = match Kernel::open(family) {
        Ok(kernel) => kernel,
        Err(error) if is_unsupported(Some(&error)) => return Ok(presence),
        Err(error) => return Err(Failure::new(error)),
    };
    let Some(names) = kernel.observe_names().map_err(Failure::new)? else {
        return Ok(presence);
    };
    presence.offered = true;
    for name in names.iter().filter(|name| TABLES.contains(&name.as_str())) {
        let snapshot = kernel.observe_snapshot(name).map_err(Failure::new)?;
        match Table::parse(family, &snapshot.info, snapshot.entries()) {
            Ok(table) => presence = presence.and(legacy_table(&table, name, prefix)),
            // Another program stores something in this table that iptables could not read either.
            Err(_) => presence.rules += snapshot.info.entries as usize,
        }
    }
    Ok(presence)
}

fn legacy_table(table: &Table<'_>, name: &str, prefix: &str) -> Presence {
    let is_hint = |chain: &[u8]| HINTS.iter().any(|hint| hint.as_bytes() == chain);
    let mut presence = Presence::default();
    for chain in &table.chains {
        if chain.begins_with(prefix) {
            presence.own_chains = OwnChains::Present;
            continue;
        }
        presence.kubelet |= name == HINT_TABLE && chain.name().is_some_and(is_hint);
        let rules = chain.rules.clone();
        let of_others = rules.filter(|rule| !table.leads_to_prefix(*rule, prefix));
        presence.rules += of_others.count();
    }
    presence
}

/// Checks the kernel's list of legacy tables, which contains a table from its first use on.
fn observe_legacy_traces(family: Family) -> Result<OwnChains, Box<dyn Error>> {
    let (nat, _) = ENTRANCE;
    let names = Kernel::open(family)?.observe_names()?.unwrap_or_default();
    let is_listed = |table| names.iter().any(|name| name == table);
    Ok(match (is_listed(nat), is_listed("filter")) {
        (true, _) => OwnChains::Likely,
        (false, true) => OwnChains::Unlikely,
        (false, false) => OwnChains::None,
    })
}

/// Whether the kernel was built without the requested feature or has not loaded it.
pub(super) fn is_unsupported(error: Option<&(dyn Error + 'static)>) -> bool {
    let error = error.and_then(|error| error.downcast_ref::<io::Error>());
    matches!(
        error.and_then(Errno::from_io_error),
        Some(
            Errno::AFNOSUPPORT
                | Errno::PROTONOSUPPORT
                | Errno::NOPROTOOPT
                | Errno::OPNOTSUPP
                // nfnetlink has no such subsystem.
                | Errno::INVAL
        )
    )
}

// === impl Failure ===

impl Failure {
    fn new(source: impl Error + Send + Sync + 'static) -> Failure {
        let error: &(dyn Error + 'static) = &source;
        let fault = match error.downcast_ref() {
            // Another program made too many changes, or the kernel did not answer.
            Some(ObserveError::Unsteady { .. } | ObserveError::Socket { .. }) => Fault::Passing,
            _ => Fault::of_opening(error),
        };
        Failure {
            fault,
            source: source.into(),
        }
    }
}
