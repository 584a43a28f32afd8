//! Rules of other programs, by which Signpost finds the variant of iptables that a node uses.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use xtables::Variant;

use crate::network::Namespace;

/// Adds a rule of another program to `variant` on a node, with this lock.
pub fn add_rule_of_others(node: &Namespace, variant: Variant, lock: &Path) -> Result<()> {
    let program = match variant {
        Variant::NfTables => "iptables-nft",
        Variant::Legacy => "iptables-legacy",
    };
    let mut command = node.command(program);
    command.args(["-A", "INPUT", "-s", "203.0.113.1", "-j", "ACCEPT"]);
    command.env("XTABLES_LOCKFILE", lock);
    let status = command
        .status()
        .with_context(|| format!("unable to run {program}"))?;
    ensure!(status.success(), "{program} failed: {status}");
    Ok(())
}
