//! Where the files of one control plane are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// A temporary folder, removed when this is dropped.
#[derive(Debug)]
pub(super) struct Folder {
    root: TempDir,
}

impl Folder {
    pub(super) fn new() -> Result<Folder> {
        // Short: the socket's whole path must fit into 108 bytes.
        let root = tempfile::Builder::new()
            .prefix("signpost-cp-")
            .tempdir()
            .context("failed to make a folder for a control plane")?;
        Ok(Folder { root })
    }

    fn join(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The data of etcd.
    pub(super) fn etcd_data(&self) -> PathBuf {
        self.join("etcd")
    }

    /// Where etcd serves.
    pub(super) fn etcd_socket(&self) -> PathBuf {
        self.join("etcd.sock")
    }

    /// Where etcd would serve other members.
    pub(super) fn etcd_peer_socket(&self) -> PathBuf {
        self.join("etcd-peer.sock")
    }

    /// Where the API server puts the certificate that it makes for itself.
    pub(super) fn certificates(&self) -> PathBuf {
        self.join("certificates")
    }

    /// That certificate together with the one that signed it.
    pub(super) fn certificate_authority(&self) -> PathBuf {
        self.certificates().join("apiserver.crt")
    }

    /// The tokens and whose they are.
    pub(super) fn tokens(&self) -> PathBuf {
        self.join("tokens.csv")
    }

    /// The key that signs the tokens of service accounts.
    pub(super) fn signing_key(&self) -> PathBuf {
        self.join("service-accounts.key")
    }

    /// The key that verifies them.
    pub(super) fn verifying_key(&self) -> PathBuf {
        self.join("service-accounts.pub")
    }

    /// The kubeconfig of whoever this name is for.
    pub(super) fn kubeconfig(&self, name: &str) -> PathBuf {
        // Names of users have colons, at which KUBECONFIG is split into several files, and slashes.
        let name = name.replace([':', '/'], "_");
        self.join(&format!("{name}.kubeconfig"))
    }

    /// What a program logs.
    pub(super) fn log(&self, program: &str) -> PathBuf {
        self.join(&format!("{program}.log"))
    }

    /// What kubectl remembers of the API server.
    pub(super) fn kubectl_cache(&self) -> PathBuf {
        self.join("kubectl")
    }
}

/// A file as an argument `--flag=FILE`.
pub(super) fn argument(flag: &str, file: &Path) -> String {
    format!("--{flag}={}", file.display())
}
