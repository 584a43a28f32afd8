//! The iptables programs of one variant for the components of a node.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use xtables::Variant;

use crate::network::Namespace;

/// The programs that kube-proxy (pkg/util/iptables) and kubelets look up in their PATH.
const NAMES: [&str; 6] = [
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
];
/// The programs that change one rule, one for each family.
const OF_FAMILIES: [&str; 2] = ["iptables", "ip6tables"];
/// The chain in table mangle with which a kubelet indicates its variant to other programs
/// (KEP-3178).
const HINT: &str = "KUBE-IPTABLES-HINT";

/// A folder in which the programs have their generic names.
#[derive(Debug)]
pub struct Programs {
    folder: PathBuf,
}

// === impl Programs ===

impl Programs {
    /// Links the programs of `variant` into a new folder in `parent`.
    pub fn link(parent: &Path, variant: Variant) -> Result<Programs> {
        let (name, program) = match variant {
            Variant::NfTables => ("nft", "xtables-nft-multi"),
            Variant::Legacy => ("legacy", "xtables-legacy-multi"),
        };
        let path = env::var_os("PATH").unwrap_or_default();
        let program = env::split_paths(&path)
            .map(|folder| folder.join(program))
            .find(|file| file.is_file())
            .with_context(|| format!("{program} is not in PATH: install iptables"))?;
        let folder = parent.join(name);
        if !folder.exists() {
            fs::create_dir(&folder).context("failed to make a folder for iptables")?;
            for name in NAMES {
                symlink(&program, folder.join(name))
                    .with_context(|| format!("failed to make a link called {name}"))?;
            }
        }
        Ok(Programs { folder })
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes `command` find only these programs, and use a separate lock file.
    pub fn show_to(&self, command: &mut Command) -> Result<()> {
        let before = env::var_os("PATH").unwrap_or_default();
        let folders = [self.folder.clone()].into_iter();
        let path: OsString = env::join_paths(folders.chain(env::split_paths(&before)))
            .context("PATH can be joined as it was split")?;
        command.env("PATH", path);
        command.env("XTABLES_LOCKFILE", self.folder.join("lock"));
        Ok(())
    }

    /// Creates the chain on `node` that a kubelet creates at startup, in both families.
    pub(crate) fn hint(&self, node: &Namespace) -> Result<()> {
        for program in OF_FAMILIES {
            self.run(node, program, &["-t", "mangle", "-N", HINT])?;
        }
        Ok(())
    }

    /// Fails unless table nat of both families on `node` has this chain.
    pub(super) fn ensure_chain(&self, node: &Namespace, chain: &str) -> Result<()> {
        for program in OF_FAMILIES {
            self.run(node, program, &["-t", "nat", "-S", chain])?;
        }
        Ok(())
    }

    fn run(&self, node: &Namespace, program: &str, arguments: &[&str]) -> Result<()> {
        let mut command = node.command(self.folder.join(program));
        self.show_to(&mut command)?;
        // The legacy variant waits for the lock only with `-w`.
        let output = command.arg("-w").args(arguments).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{program} {}: {errors}",
            arguments.join(" ")
        );
        Ok(())
    }
}
