//! A client of the API server.

use std::net::SocketAddrV4;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::time::timeout;

/// How long [`ask`] waits for an answer: an attempt that hangs must not use up the time of later
/// ones.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// Creates a client with the credentials of this kubeconfig. It does not connect yet; it connects
/// from the network namespace of the thread that makes a request.
pub async fn client(kubeconfig: &Path) -> Result<Client> {
    let config = config(kubeconfig).await?;
    Client::try_from(config).context("failed to set up a client for the API server")
}

/// Requests this path once from the API server at `address`; an answer other than success is an
/// error.
pub(super) async fn ask(kubeconfig: &Path, address: SocketAddrV4, path: &str) -> Result<()> {
    let mut config = config(kubeconfig).await?;
    config.cluster_url = format!("https://{address}").parse()?;
    let client = Client::try_from(config)?;
    let request = Request::get(path).body(Vec::new())?;
    timeout(ANSWERED_WITHIN, client.request_text(request)).await??;
    Ok(())
}

async fn config(kubeconfig: &Path) -> Result<Config> {
    let file = Kubeconfig::read_from(kubeconfig).context("failed to read a kubeconfig")?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    config.context("failed to use a kubeconfig")
}
