//! The client of the API server.

use std::env::consts;
use std::path::PathBuf;

use http::header::{self, HeaderValue, InvalidHeaderValue};
use kube::client::ConfigExt;
use kube::client::retry::RetryPolicy;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use thiserror::Error;
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder};

use crate::connection::http_client;
use crate::metrics::BuildInfo;
use crate::rest_client::{RestClientLayer, RestClientMetrics};

/// The source of the API server's address and the credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientSource {
    /// The environment and service account of this process's Pod.
    InCluster,
    /// A kubeconfig file.
    Kubeconfig {
        /// The path of the file.
        path: PathBuf,
        /// One of its contexts; `None` means its current context.
        context: Option<String>,
    },
}

/// Why no client could be created.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The file cannot be read or parsed.
    #[error("failed to read kubeconfig {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: KubeconfigError,
    },
    /// The file is valid, but a setting that the context needs is missing.
    #[error("failed to use {} of kubeconfig {path}", describe_context(.context))]
    Context {
        /// The file.
        path: PathBuf,
        /// The context; `None` means the current context.
        context: Option<String>,
        /// What is missing.
        source: KubeconfigError,
    },
    /// The process is not in a Pod, or the Pod has no service account.
    #[error("failed to load the in-cluster configuration, and no kubeconfig is given")]
    InCluster(#[source] InClusterError),
    /// The program's name or version is not valid in a header.
    #[error("failed to use {program}/{version} as user agent")]
    UserAgent {
        /// The name.
        program: &'static str,
        /// The version.
        version: &'static str,
        /// The error.
        source: InvalidHeaderValue,
    },
    /// A proxy is set between this process and the API server.
    #[error(
        "failed to set up a client for {server}: there is no support for proxies, and proxy-url of the kubeconfig, HTTPS_PROXY or \
         https_proxy sets one: remove it, or leave --kubeconfig out to use the Pod's service account"
    )]
    Proxy {
        /// The API server.
        server: String,
    },
    /// The credentials or certificates cannot be used.
    #[error("failed to set up a client for {server}")]
    Build {
        /// The API server.
        server: String,
        /// The error.
        source: kube::Error,
    },
}

/// Creates a client that counts its requests in `metrics`. Reads files but does not connect: the
/// first request detects an API server that is down.
pub async fn open_client(
    source: &ClientSource,
    build: &BuildInfo,
    metrics: &RestClientMetrics,
) -> Result<Client, ClientError> {
    // Fails if another caller has already installed one, which works as well.
    let _ = rustls::crypto::ring::default_provider().install_default();

    let mut config = read_config(source).await?;
    config
        .headers
        .push((header::USER_AGENT, user_agent(build)?));

    let host = config
        .cluster_url
        .authority()
        .map(ToString::to_string)
        .unwrap_or_default();
    let server = config.cluster_url.to_string();
    if config.proxy_url.is_some() {
        return Err(ClientError::Proxy { server });
    }
    assemble(config, &metrics.layer(&host)).map_err(|source| ClientError::Build { server, source })
}

/// The layers of kube's own client, without its log of every request, on top of Signpost's
/// connection.
fn assemble(config: Config, metrics: &RestClientLayer) -> Result<Client, kube::Error> {
    let http = http_client(&config)?;
    let retries = config.default_retry.then(RetryPolicy::server_retry);
    let service = ServiceBuilder::new()
        .layer(metrics)
        .layer(config.base_uri_layer())
        .option_layer(retries.map(RetryLayer::new))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}

async fn read_config(source: &ClientSource) -> Result<Config, ClientError> {
    match source {
        ClientSource::InCluster => Config::incluster().map_err(ClientError::InCluster),
        ClientSource::Kubeconfig { path, context } => {
            let file = Kubeconfig::read_from(path).map_err(|source| ClientError::Read {
                path: path.clone(),
                source,
            })?;
            let named = context.clone().or_else(|| file.current_context.clone());
            let options = KubeConfigOptions {
                context: context.clone(),
                ..KubeConfigOptions::default()
            };
            Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(|source| ClientError::Context {
                    path: path.clone(),
                    context: named,
                    source,
                })
        }
    }
}

/// The user agent of this process, for the API server's audit log, in the format of client-go.
fn user_agent(build: &BuildInfo) -> Result<HeaderValue, ClientError> {
    let (program, version) = (build.program, build.version);
    let text = format!("{program}/{version} ({}/{})", consts::OS, consts::ARCH);
    HeaderValue::try_from(text).map_err(|source| ClientError::UserAgent {
        program,
        version,
        source,
    })
}

fn describe_context(context: &Option<String>) -> String {
    match context {
        Some(name) => format!("context {name:?}"),
        None => "the current context".to_owned(),
    }
}

// === impl ClientSource ===

/// The file if a path is given, otherwise the Pod of this process.
impl From<Option<PathBuf>> for ClientSource {
    fn from(path: Option<PathBuf>) -> Self {
        match path {
            Some(path) => ClientSource::Kubeconfig {
                path,
                context: None,
            },
            None => ClientSource::InCluster,
        }
    }
}

#[cfg(test)]
mod tests;
