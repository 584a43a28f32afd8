//! The connection to the API server. If the API server negotiates HTTP/2 in the TLS handshake, all
//! requests and watches share one connection; otherwise requests use HTTP/1.1, with a separate
//! connection for each watch.

use std::time::Duration;

use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::{Body, ConfigExt, RustlsTlsError};

/// Sends requests to the API server, and connects if there is no connection.
pub(crate) type HttpClient = Client<TimeoutConnector<HttpsConnector<HttpConnector>>, Body>;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum silence on a connection. Over HTTP/2 the API server answers pings; over HTTP/1.1 it
/// ends ordinary requests after 60 s and sends a bookmark on every watch about every 60 s.
const READ_TIMEOUT: Duration = Duration::from_secs(90);
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long nothing may arrive over HTTP/2 before a ping is sent, and then how long the answer may
/// take. The loss of one peer stops all watches, so it must be detected before each watch has been
/// silent for too long.
const PING_AFTER: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// How many unread bytes the API server may send for one response, and for all together. A watch
/// whose reader is busy must not use up the window of the others: all watches of an agent together
/// stay far below the sum.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// Creates the client without connecting. It goes through no proxy.
pub(crate) fn http_client(config: &Config) -> Result<HttpClient, kube::Error> {
    let mut connector = TimeoutConnector::new(https_connector(config)?);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_read_timeout(Some(READ_TIMEOUT));
    connector.set_write_timeout(Some(WRITE_TIMEOUT));
    // Otherwise the idle time of a connection counts as silence of the API server.
    connector.set_reset_reader_on_write(true);
    Ok(Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        // A connection with watches but no new requests counts as idle and would be replaced.
        .pool_idle_timeout(None)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(connector))
}

/// The same as kube's own connector, except for HTTP/2.
fn https_connector(config: &Config) -> Result<HttpsConnector<HttpConnector>, kube::Error> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    // A small request must not wait until earlier data is acknowledged.
    http.set_nodelay(true);
    let mut builder = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name
            .clone()
            .try_into()
            .map_err(RustlsTlsError::InvalidServerName)
            .map_err(kube::Error::RustlsTls)?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(builder.enable_http1().enable_http2().wrap_connector(http))
}

#[cfg(test)]
mod tests;
