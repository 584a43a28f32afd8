//! The files of one control plane.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// The folder of a control plane.
#[derive(Debug)]
pub(super) enum Folder {
    /// A temporary one, removed on drop.
    Own(TempDir),
    /// That of a control plane on the host of this machine.
    Host(PathBuf),
}

impl Folder {
    pub(super) fn new() -> Result<Folder> {
        // Short, because the whole path of the socket must fit into 108 bytes.
        let root = tempfile::Builder::new()
            .prefix("signpost-cp-")
            .tempdir()
            .context("failed to make a folder for a control plane")?;
        Ok(Folder::Own(root))
    }

    /// The folder itself.
    pub(super) fn path(&self) -> &Path {
        match self {
            Folder::Own(root) => root.path(),
            Folder::Host(root) => root,
        }
    }

    fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The data of etcd.
    pub(super) fn etcd_data(&self) -> PathBuf {
        self.join("etcd")
    }

    /// The socket on which etcd serves clients.
    pub(super) fn etcd_socket(&self) -> PathBuf {
        self.join("etcd.sock")
    }

    /// The socket on which etcd would serve other members.
    pub(super) fn etcd_peer_socket(&self) -> PathBuf {
        self.join("etcd-peer.sock")
    }

    /// The folder for the certificate that the API server generates.
    pub(super) fn certificates(&self) -> PathBuf {
        self.join("certificates")
    }

    /// The file with that certificate and the one that signed it.
    pub(super) fn certificate_authority(&self) -> PathBuf {
        self.certificates().join("apiserver.crt")
    }

    /// The list of tokens and users.
    pub(super) fn tokens(&self) -> PathBuf {
        self.join("tokens.csv")
    }

    /// The key that signs the tokens of service accounts.
    pub(super) fn signing_key(&self) -> PathBuf {
        self.join("service-accounts.key")
    }

    /// The key that verifies the tokens of service accounts.
    pub(super) fn verifying_key(&self) -> PathBuf {
        self.join("service-accounts.pub")
    }

    /// Returns the kubeconfig file for a name.
    pub(super) fn kubeconfig(&self, name: &str) -> PathBuf {
        // User names contain colons, which separate the files in KUBECONFIG, and slashes.
        let name = name.replace([':', '/'], "_");
        self.join(&format!("{name}.kubeconfig"))
    }

    /// The log of a program.
    pub(super) fn log(&self, program: &str) -> PathBuf {
        self.join(&format!("{program}.log"))
    }

    /// The discovery cache of kubectl.
    pub(super) fn kubectl_cache(&self) -> PathBuf {
        self.join("kubectl")
    }
}

/// A file as an argument `--flag=FILE`.
pub(super) fn argument(flag: &str, file: &Path) -> String {
    format!("--{flag}={}", file.display())
}
