//! A network namespace with the tables of one variant and family, accessed by Signpost and by
//! iptables.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tests::network::{Namespace, Network};
use tests::xtables_lock::xtables_lock_folder;
use xtables::{Family, OwnRules, Rule, TableChange, TableName, Tables, Variant};

/// The prefix of the names of Signpost's chains.
pub(crate) const PREFIX: &str = "SIGNPOST-";
/// No other process holds the lock of a test.
const PATIENCE: Duration = Duration::from_secs(10);

/// The environment of one test.
pub(crate) struct Ground {
    pub(crate) family: Family,
    variant: Variant,
    pub(crate) namespace: Namespace,
    /// The folder of the lock, separate from the machine's.
    folder: TempDir,
    /// Keeps the namespace alive.
    _network: Network,
}

// === impl Ground ===

impl Ground {
    pub(crate) fn new(variant: Variant, family: Family) -> Result<Ground> {
        let mut network = Network::new()?;
        let [namespace] = network.add_namespaces(["tables"])?;
        Ok(Ground {
            family,
            variant,
            namespace,
            folder: xtables_lock_folder()?,
            _network: network,
        })
    }

    pub(crate) fn open(&self) -> Result<Tables> {
        self.open_with(PATIENCE)
    }

    /// Opens tables that wait at most `patience` for the lock.
    pub(crate) fn open_with(&self, patience: Duration) -> Result<Tables> {
        let lock = self.lock();
        let open = || Tables::open(self.variant, self.family, PREFIX, &lock, patience);
        Ok(self.namespace.enter(open)??)
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.folder.path().join("lock")
    }

    pub(crate) fn open_families(&self) -> Result<[Tables; 2]> {
        let lock = self.folder.path().join("lock");
        let open = || Tables::open_families(self.variant, PREFIX, &lock, PATIENCE);
        Ok(self.namespace.enter(open)??)
    }

    /// Returns Signpost's rules as a new process reads them.
    pub(crate) fn observe(&self, table: TableName) -> Result<OwnRules> {
        Ok(self.open()?.observe(table)?)
    }

    /// Runs `iptables` of this variant and family with arguments that the shell splits.
    pub(crate) fn iptables(&self, table: TableName, arguments: &str) -> Result<String> {
        self.shell(&format!("{} -t {table} {arguments}", self.program("")))
    }

    /// Returns the output of `iptables-save` for a table, with counters but without the time.
    pub(crate) fn save(&self, table: TableName) -> Result<String> {
        let saved = self.shell(&format!("{} -c -t {table}", self.program("-save")))?;
        let lines = saved.lines().filter(|line| !line.starts_with('#'));
        Ok(lines.map(|line| format!("{line}\n")).collect())
    }

    /// Returns the rules of a chain as `iptables-save` prints them after its name.
    pub(crate) fn listed(&self, table: TableName, chain: &str) -> Result<Vec<String>> {
        let listed = self.iptables(table, &format!("-S {chain}"))?;
        let start = format!("-A {chain} ");
        let rules = listed.lines().filter_map(|line| line.strip_prefix(&start));
        Ok(rules.map(str::to_owned).collect())
    }

    /// Lets `nft` list the whole ruleset, which does not contain legacy tables.
    pub(crate) fn list_ruleset(&self) -> Result<()> {
        self.namespace.nft(&["list", "ruleset"]).map(drop)
    }

    /// Returns the name of an iptables program of this variant and family.
    pub(crate) fn program(&self, suffix: &str) -> String {
        let family = match self.family {
            Family::Ipv4 => "iptables",
            Family::Ipv6 => "ip6tables",
        };
        let variant = match self.variant {
            Variant::NfTables => "nft",
            Variant::Legacy => "legacy",
        };
        format!("{family}-{variant}{suffix}")
    }

    /// Runs a line of shell in which iptables uses the lock of this test.
    pub(crate) fn shell(&self, line: &str) -> Result<String> {
        let output = self
            .namespace
            .command("sh")
            .args(["-c", line])
            .env("XTABLES_LOCKFILE", self.lock())
            .output()
            .context("unable to run iptables: install it")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{line}: {}: {errors}",
            output.status
        );
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// A step that makes chains hold rules.
pub(crate) fn chains(table: TableName, chains: &[(&str, &[Rule])]) -> TableChange {
    let mut change = TableChange::new(table);
    let chains = chains
        .iter()
        .map(|(name, rules)| ((*name).into(), (*rules).into()));
    change.chains = chains.collect();
    change
}
