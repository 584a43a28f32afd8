//! kube-proxy's chains in the legacy variant of iptables.
//!
//! The kernel replaces a legacy table whole. Each kind of chain is removed with one replacement, the
//! callers before what they call, so that a removal that is cut short leaves nothing that leads
//! nowhere, and can be repeated.

use std::path::Path;
use std::time::Duration;

use dataplane::Family;
use thiserror::Error;
use xtables::{
    BuiltIn, ChainKind, CommitError, ObserveError, OpenError, Policy, TableChange, TableName,
    Tables, Variant,
};

use super::kernel::{ForeignDependencies, ScanError, is_kube_proxys, open_legacy};

/// The beginnings of the names of chains that only kube-proxy has, in both modes that use iptables,
/// callers first, and the table that refuses before the one that redirects. Table mangle has one empty chain of kube-proxy's, which no rule leads to.
const KINDS: [(TableName, &str); 22] = [
    (TableName::Filter, "KUBE-SERVICES"),
    (TableName::Filter, "KUBE-EXTERNAL-SERVICES"),
    (TableName::Filter, "KUBE-NODEPORTS"),
    (TableName::Filter, "KUBE-FORWARD"),
    (TableName::Filter, "KUBE-PROXY-FIREWALL"),
    (TableName::Filter, "KUBE-NODE-PORT"),
    (TableName::Filter, "KUBE-SOURCE-RANGES-FIREWALL"),
    (TableName::Filter, "KUBE-LOAD-BALANCER"),
    (TableName::Filter, "KUBE-IPVS-FILTER"),
    (TableName::Filter, "KUBE-IPVS-OUT-FILTER"),
    (TableName::Filter, "KUBE-PROXY-CANARY"),
    (TableName::Nat, "KUBE-SERVICES"),
    (TableName::Nat, "KUBE-NODEPORTS"),
    (TableName::Nat, "KUBE-NODE-PORT"),
    (TableName::Nat, "KUBE-LOAD-BALANCER"),
    (TableName::Nat, "KUBE-FW-"),
    (TableName::Nat, "KUBE-EXT-"),
    (TableName::Nat, "KUBE-XLB-"),
    (TableName::Nat, "KUBE-SVC-"),
    (TableName::Nat, "KUBE-SVL-"),
    (TableName::Nat, "KUBE-SEP-"),
    (TableName::Nat, "KUBE-PROXY-CANARY"),
];

/// Why some or all legacy chains of kube-proxy were not removed. What was removed before stays
/// removed, and another attempt continues.
#[derive(Debug, Error)]
#[error("failed to remove {kind}* of kube-proxy for {family} from legacy table {table}")]
pub struct LegacyRemovalError {
    family: Family,
    table: TableName,
    kind: &'static str,
    source: Cause,
}

#[derive(Debug, Error)]
enum Cause {
    #[error("the tables cannot be opened")]
    Open(#[source] OpenError),
    #[error("the table cannot be read")]
    Observe(#[source] ObserveError),
    #[error("the table cannot be replaced")]
    Commit(#[source] CommitError),
}

/// Removes the chains that only kube-proxy uses, for one family, and the rules that lead to them
/// from built-in chains. Takes the lock at `lock` for each replacement, and waits at most `patience`
/// for it. Fails if a rule of another program leads to one of the chains, without removing it.
pub fn commit_removal(
    family: Family,
    lock: &Path,
    patience: Duration,
) -> Result<(), LegacyRemovalError> {
    for (table, kind) in KINDS {
        commit_kind_removal(family, table, kind, lock, patience).map_err(|source| {
            LegacyRemovalError {
                family,
                table,
                kind,
                source,
            }
        })?;
    }
    Ok(())
}

/// Reads what makes it unsafe to remove kube-proxy's chains for one family. A removal meets a rule of
/// another program only when it has replaced tables already.
pub fn observe_foreign_references(family: Family) -> Result<ForeignDependencies, ScanError> {
    let mut dependencies = ForeignDependencies::default();
    let tables = open_legacy(family).map_err(ScanError::OpenLegacy)?;
    let Tables::Legacy(tables) = tables else {
        return Ok(dependencies);
    };
    let mut has_kube_proxys = false;
    for table in TableName::ALL {
        let chains = tables.observe_chains(table);
        for chain in chains.map_err(ScanError::ObserveLegacy)? {
            let name = match chain.kind {
                ChainKind::BuiltIn(BuiltIn::Forward, Policy::Drop) => {
                    dependencies.drops_forwarded |= table == TableName::Filter;
                    continue;
                }
                ChainKind::BuiltIn(..) => continue,
                ChainKind::Named(name) => name,
            };
            has_kube_proxys |= is_kube_proxys(&name);
            let leads_to = chain.leads_to.into_iter();
            let lost = leads_to.filter(|to| is_kube_proxys(to) && !is_kube_proxys(&name));
            dependencies.others.extend(lost.map(|target| {
                format!("a rule of chain {name} in legacy table {table} leads to {target}")
            }));
        }
    }
    // Without any, nothing of this family changes.
    dependencies.drops_forwarded &= has_kube_proxys;
    Ok(dependencies)
}

fn commit_kind_removal(
    family: Family,
    table: TableName,
    kind: &'static str,
    lock: &Path,
    patience: Duration,
) -> Result<(), Cause> {
    let tables = Tables::open(Variant::Legacy, family, kind, lock, patience);
    let mut tables = tables.map_err(Cause::Open)?;
    if !tables.is_offered() {
        return Ok(());
    }
    let present = tables.observe(table).map_err(Cause::Observe)?;
    let mut change = TableChange::new(table);
    let built_in = present.entries.into_keys();
    change.entries = built_in.map(|chain| (chain, Vec::new())).collect();
    change.removed = present.chains.into_keys().collect();
    tables.commit(&[change]).map_err(Cause::Commit).map(drop)
}
