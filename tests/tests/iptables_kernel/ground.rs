//! A network namespace with the tables of one variant, seen by us and by iptables.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use backend::Rendered;
use backend_iptables::{Disturbances, Iptables, Lock, Rules};
use dataplane::{Dataplane, Family};
use tempfile::TempDir;
use tests::network::{Namespace, Network};
use tests::programmed::{program, richest};
use xtables::{TableName, Variant};

/// Longer than any other process of a test has the lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where one test happens.
pub(crate) struct Ground {
    pub(crate) variant: Variant,
    pub(crate) namespace: Namespace,
    /// Holds the lock: not that of the machine.
    folder: TempDir,
    /// Keeps the namespace.
    _network: Network,
}

/// One family that is programmed.
pub(crate) type Programmed = (Iptables, Rendered<Rules>);

// === impl Ground ===

impl Ground {
    pub(crate) fn new(variant: Variant) -> Result<Ground> {
        let mut network = Network::new()?;
        let [namespace] = network.add_namespaces(["tables"])?;
        Ok(Ground {
            variant,
            namespace,
            // Where that of a node is. On an overlay, the kernel lists locks under another device
            // than the file's, and their holder is not known.
            folder: tempfile::tempdir_in("/run")?,
            _network: network,
        })
    }

    pub(crate) fn lock_file(&self) -> PathBuf {
        self.folder.path().join("lock")
    }

    pub(crate) fn open(&self) -> Result<[Iptables; 2]> {
        self.open_with(PATIENCE)
    }

    /// Opens a backend that waits no longer than this for the lock.
    pub(crate) fn open_with(&self, patience: Duration) -> Result<[Iptables; 2]> {
        self.open_in(&self.namespace, patience)
    }

    /// Opens it with ears.
    pub(crate) fn open_with_disturbances(&self) -> Result<([Iptables; 2], Disturbances)> {
        let lock = Lock {
            path: self.lock_file(),
            patience: PATIENCE,
        };
        let open = || backend_iptables::open_with_disturbances(self.variant, &lock);
        Ok(self.namespace.enter(open)??)
    }

    /// Opens tables that hold nothing, and live as long as what is returned. Their lock is that of
    /// this ground.
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

    /// Brings both families to `dataplane`, from nothing.
    pub(crate) fn program(&self, dataplane: &Dataplane) -> Result<[Programmed; 2]> {
        let [mut ipv4, mut ipv6] = self.open()?;
        let held = [&mut ipv4, &mut ipv6].map(|b| program(b, dataplane, &Rendered::default()));
        let [ipv4_held, ipv6_held] = held;
        Ok([(ipv4, ipv4_held?), (ipv6, ipv6_held?)])
    }

    /// A dataplane that has something of everything.
    pub(crate) fn rich(&self) -> Result<Dataplane> {
        let backends = Family::ALL.map(|family| Iptables::detached(family, self.variant));
        let rules = |rules: &Rules| TableName::ALL.map(|table| rules.count(table)).iter().sum();
        richest(&backends, rules)
    }

    /// `iptables` of this variant, with arguments as a shell splits them.
    pub(crate) fn iptables(&self, family: Family, arguments: &str) -> Result<String> {
        self.shell(&self.line(family, arguments))
    }

    /// The same, as a line for a shell.
    pub(crate) fn line(&self, family: Family, arguments: &str) -> String {
        format!("{} {arguments}", self.program_of(family, ""))
    }

    /// Lets `iptables-restore` put `rules` beside what is there, with their counters.
    pub(crate) fn restore(&self, family: Family, rules: &str) -> Result<()> {
        let restore = self.program_of(family, "-restore");
        self.shell(&format!(
            "{restore} --counters --noflush <<'END'\n{rules}END\n"
        ))?;
        Ok(())
    }

    /// What `iptables-save` prints of tables nat and filter, with all counters, without the hour.
    pub(crate) fn save(&self, family: Family) -> Result<String> {
        let save = self.program_of(family, "-save");
        let saved = self.shell(&format!("{save} -c -t nat && {save} -c -t filter"))?;
        let lines = saved.lines().filter(|line| !line.starts_with('#'));
        Ok(lines.map(|line| format!("{line}\n")).collect())
    }

    /// Fails where `iptables-restore` would not take what `iptables-save` prints.
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
