//! A process whose tables no other process can write or remove.

use std::io::Write as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use demo::deadline::wait_for;
use demo::network::Namespace;
use netlink::nf_tables::{Family, family_name};

/// How long `nft` may take to add the tables.
const PROMPTLY: Duration = Duration::from_secs(20);

/// Owns tables until it is dropped.
#[derive(Debug)]
pub struct TableOwner(Child);

// === impl TableOwner ===

impl TableOwner {
    /// Adds `tables` of `family` in `namespace`. None of them may exist.
    pub fn start(namespace: &Namespace, family: Family, tables: &[&str]) -> Result<TableOwner> {
        let mut command = namespace.command("nft");
        command.arg("--interactive");
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        let mut owner = TableOwner(child);
        let stdin = owner.0.stdin.as_mut().context("it was piped")?;
        let family = family_name(family);
        for table in tables {
            // Removed with its owner.
            writeln!(stdin, "add table {family} {table} {{ flags owner; }}")?;
        }
        stdin.flush()?;
        let lines: Vec<String> = tables
            .iter()
            .map(|table| format!("table {family} {table}"))
            .collect();
        wait_for("the tables of another program", PROMPTLY, || {
            let listed = namespace.nft(&["list", "tables"])?;
            let is_listed = |line: &String| listed.lines().any(|listed| listed == line);
            Ok(lines.iter().all(is_listed).then_some(()))
        })?;
        Ok(owner)
    }
}

impl Drop for TableOwner {
    fn drop(&mut self) {
        // An error means that the process has already ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
