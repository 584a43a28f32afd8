//! A client of the API server.

use std::path::Path;

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// Creates a client with the credentials of this kubeconfig. It does not connect yet; it connects
/// from the network namespace of the thread that makes a request.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let file = Kubeconfig::read_from(kubeconfig).context("failed to read a kubeconfig")?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    let config = config.context("failed to use a kubeconfig")?;
    Client::try_from(config).context("failed to set up a client for the API server")
}
