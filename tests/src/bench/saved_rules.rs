//! Rules of the legacy tables: when they change, and which addresses they contain, by the output of
//! `iptables-legacy-save` or, for awaited addresses, by the kernel's copy of the table.
//!
//! These tables send no notifications, so they must be polled.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use xtables::{Family, TableName, Tables, Variant};

use crate::network::Namespace;

/// Table nat of one node.
#[derive(Debug)]
pub(super) struct SavedRules {
    node: Namespace,
    tables: Tables,
}

// === impl SavedRules ===

impl SavedRules {
    /// Opens the table on `node` in its present state.
    pub(super) fn open(node: &Namespace) -> Result<SavedRules> {
        // Reads only, so the lock is never taken.
        // No chain has this prefix: decoding the rules of one takes time.
        let lock = Path::new("/nonexistent");
        let open = || {
            Tables::open(
                Variant::Legacy,
                Family::Ipv4,
                "UNUSED-",
                lock,
                Duration::ZERO,
            )
        };
        let mut tables = node
            .enter(open)?
            .context("failed to open the legacy tables")?;
        let _ = tables.observe(TableName::Nat)?;
        Ok(SavedRules {
            node: node.clone(),
            tables,
        })
    }

    /// Whether the table has changed since the last call, judged by its length. Cheap.
    pub(super) fn has_changed(&mut self) -> Result<bool> {
        let changed = self.tables.observe_drift()?;
        if changed {
            let _ = self.tables.observe(TableName::Nat)?;
        }
        Ok(changed)
    }

    /// Returns which of these addresses the table contains. Takes little longer than the kernel's copy of it.
    pub(super) fn observe_among(&self, among: &BTreeSet<Ipv4Addr>) -> Result<BTreeSet<Ipv4Addr>> {
        match &self.tables {
            Tables::Legacy(tables) => Ok(tables.observe_addresses(TableName::Nat, among)?),
            Tables::NfTables(_) => bail!("these are not the legacy tables"),
        }
    }

    /// Returns every address in the table, with duplicates.
    pub(super) fn observe_addresses(&self) -> Result<Vec<u32>> {
        let mut command = self.node.command("iptables-legacy-save");
        let output = command.args(["-t", "nat"]).output()?;
        ensure!(
            output.status.success(),
            "iptables-legacy-save failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(parse_addresses(&String::from_utf8_lossy(&output.stdout)))
    }
}

fn parse_addresses(text: &str) -> Vec<u32> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let words = text.split(|c: char| !is_part(c));
    let addresses = words.filter_map(|word| word.parse::<Ipv4Addr>().ok());
    addresses.map(u32::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_whatever_is_around_them() {
        let text = "-A KUBE-SVC-X -d 10.96.1.7/32 -p tcp -m tcp --dport 80 -j Y\n\
                    -A KUBE-SEP-Y -p tcp -j DNAT --to-destination 10.128.0.3:8080\n";
        let found = parse_addresses(text);
        let expected = [[10, 96, 1, 7], [10, 128, 0, 3]].map(u32::from_be_bytes);
        assert_eq!(found, expected);
    }
}
