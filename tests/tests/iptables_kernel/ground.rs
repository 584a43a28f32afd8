//! A network namespace with the tables of one variant, accessed by Signpost and by iptables.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use backend::Rendered;
use backend_iptables::{Iptables, Lock, NotificationListener, Rules};
use dataplane::{Dataplane, Family};
use tempfile::TempDir;
use tests::network::{Namespace, Network};
use tests::programmed::{program, richest};
use tests::xtables_lock::xtables_lock_folder;
use xtables::{TableName, Variant};

/// Longer than any other process of a test holds the lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// The environment of one test.
pub(crate) struct Ground {
    pub(crate) variant: Variant,
    pub(crate) namespace: Namespace,
    /// The folder of the lock, separate from the machine's.
    folder: TempDir,
    /// Keeps the namespace alive.
    _network: Network,
}

/// A programmed family.
pub(crate) type Programmed = (Iptables, Rendered<Rules>);

// === impl Ground ===

impl Ground {
    pub(crate) fn new(variant: Variant) -> Result<Ground> {
        let mut network = Network::new()?;
        let [namespace] = network.add_namespaces(["tables"])?;
        Ok(Ground {
            variant,
            namespace,
            folder: xtables_lock_folder()?,
            _network: network,
        })
    }

    pub(crate) fn lock_file(&self) -> PathBuf {
        self.folder.path().join("lock")
    }

    pub(crate) fn open(&self) -> Result<[Iptables; 2]> {
        self.open_with(PATIENCE)
    }

    /// Opens backends that wait at most this long for the lock.
    pub(crate) fn open_with(&self, patience: Duration) -> Result<[Iptables; 2]> {
        self.open_in(&self.namespace, patience)
    }

    /// Opens backends with a listener.
    pub(crate) fn open_with_listener(&self) -> Result<([Iptables; 2], NotificationListener)> {
        let lock = Lock {
            path: self.lock_file(),
            patience: PATIENCE,
        };
        let open = || backend_iptables::open_with_listener(self.variant, &lock);
        Ok(self.namespace.enter(open)??)
    }

    /// Opens empty tables, which live as long as the returned backends and use the lock of this
    /// environment.
    pub(crate) fn open_elsewhere(&self) -> Result<[Iptables; 2]> {
        let mut network = Network::new()?;
        let [namespace] = network.add_namespaces(["tables"])?;
        self.open_in(&namespace, PATIENCE)
    }

    fn open_in(&self, namespace: &Namespace, patience: Duration) -> Result<[Iptables; 2]> {
        let path = self.lock_file();
        let lock = Lock { path, patience };
        let open = || backend_iptables::open(self.variant, &lock);
        Ok(namespace.enter(open)??)
    }

    /// Programs both families with `dataplane`, starting from nothing.
    pub(crate) fn program(&self, dataplane: &Dataplane) -> Result<[Programmed; 2]> {
        let [mut ipv4, mut ipv6] = self.open()?;
        let held = [&mut ipv4, &mut ipv6].map(|b| program(b, dataplane, &Rendered::default()));
        let [ipv4_held, ipv6_held] = held;
        Ok([(ipv4, ipv4_held?), (ipv6, ipv6_held?)])
    }

    /// Returns a dataplane that covers all features.
    pub(crate) fn rich(&self) -> Result<Dataplane> {
        let backends = Family::ALL.map(|family| Iptables::detached(family, self.variant));
        let rules = |rules: &Rules| TableName::ALL.map(|table| rules.count(table)).iter().sum();
        richest(&backends, rules)
    }

    /// Runs `iptables` of this variant with arguments that the shell splits.
    pub(crate) fn iptables(&self, family: Family, arguments: &str) -> Result<String> {
        self.shell(&self.line(family, arguments))
    }

    /// Returns that command as a line of shell.
    pub(crate) fn line(&self, family: Family, arguments: &str) -> String {
        format!("{} {arguments}", self.program_of(family, ""))
    }

    /// Adds `rules` with their counters to the existing ones with `iptables-restore`.
    pub(crate) fn restore(&self, family: Family, rules: &str) -> Result<()> {
        let restore = self.program_of(family, "-restore");
        self.shell(&format!(
            "{restore} --counters --noflush <<'END'\n{rules}END\n"
        ))?;
        Ok(())
    }

    /// Returns the output of `iptables-save` for tables nat and filter, with all counters but
    /// without the time.
    pub(crate) fn save(&self, family: Family) -> Result<String> {
        let save = self.program_of(family, "-save");
        let saved = self.shell(&format!("{save} -c -t nat && {save} -c -t filter"))?;
        let lines = saved.lines().filter(|line| !line.starts_with('#'));
        Ok(lines.map(|line| format!("{line}\n")).collect())
    }

    /// Fails unless `iptables-restore` accepts the output of `iptables-save`.
    pub(crate) fn expect_restorable(&self, family: Family) -> Result<()> {
        let (save, restore) = (
            self.program_of(family, "-save"),
            self.program_of(family, "-restore"),
        );
        self.shell(&format!("{save} | {restore} --test"))?;
        Ok(())
    }

    fn program_of(&self, family: Family, suffix: &str) -> String {
        let family = match family {
            Family::Ipv4 => "iptables",
            Family::Ipv6 => "ip6tables",
        };
        let variant = match self.variant {
            Variant::NfTables => "nft",
            Variant::Legacy => "legacy",
        };
        format!("{family}-{variant}{suffix}")
    }

    pub(crate) fn shell(&self, line: &str) -> Result<String> {
        let mut command = self.namespace.command("sh");
        command.args(["-c", line]);
        command.env("XTABLES_LOCKFILE", self.lock_file());
        let output = command.output().context("unable to run sh")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{line}: {}: {errors}",
            output.status
        );
        Ok(String::from_utf8(output.stdout)?)
    }
}
