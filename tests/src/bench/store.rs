//! Writes Services directly into etcd, bypassing the API server.
//!
//! For each created Service, the API server counts all allocated addresses
//! (`ipallocator.Allocator.Used`, for a metric): 50,000 Services take it 25 minutes. Therefore the
//! API server creates one Service of each sort, and the other Services and their allocated
//! addresses are written to etcd as copies of it. Read through the API server they look the same.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::IPAddress;
use kube::api::ObjectMeta;
use serde::Serialize;
use serde_json::json;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::population;

/// The number of Services written at a time, with one address each: a transaction of etcd has at
/// most 128 operations (`--max-txn-ops`).
const AT_A_TIME: usize = 64;

/// A Service and its allocated address, as the API server has stored them.
#[derive(Debug, Clone)]
pub(super) struct Pattern {
    pub(super) service: Service,
    pub(super) address: IPAddress,
}

/// A connection to etcd's JSON gateway.
#[derive(Debug)]
pub(super) struct Store {
    sender: SendRequest<Full<Bytes>>,
    connection: JoinHandle<hyper::Result<()>>,
}

/// A value at a key, in the encoding of the gateway.
#[derive(Debug, Serialize)]
struct Put {
    key: ByteString,
    value: ByteString,
}

// === impl Store ===

impl Store {
    /// Connects to the socket of an etcd.
    pub(super) async fn connect(socket: &Path) -> Result<Store> {
        let stream = UnixStream::connect(socket)
            .await
            .with_context(|| format!("failed to connect to {}", socket.display()))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        Ok(Store {
            sender,
            connection: tokio::spawn(connection),
        })
    }

    /// Writes Services with these numbers, using each of `patterns` in turn.
    pub(super) async fn copy(
        &mut self,
        patterns: &[Pattern],
        numbers: impl Iterator<Item = u32>,
    ) -> Result<()> {
        let copies = patterns.iter().cycle().zip(numbers);
        let puts = copies.map(|(pattern, number)| pattern.copy(number));
        let puts: Vec<[Put; 2]> = puts.collect::<Result<_>>()?;
        for some in puts.chunks(AT_A_TIME) {
            self.commit(some.as_flattened()).await?;
        }
        Ok(())
    }

    async fn commit(&mut self, puts: &[Put]) -> Result<()> {
        let operations = puts.iter().map(|put| json!({"requestPut": put}));
        let transaction = json!({"success": operations.collect::<Vec<_>>()});
        let request = Request::post("/v3/kv/txn")
            .header(header::HOST, "etcd")
            .body(Full::from(serde_json::to_vec(&transaction)?))?;
        let answer = self.sender.send_request(request).await?;
        let status = answer.status();
        // The body must be read to its end before the connection can be used again.
        let body = answer.into_body().collect().await?.to_bytes();
        ensure!(
            status.is_success(),
            "etcd answers {status}: {}",
            String::from_utf8_lossy(&body)
        );
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

// === impl Pattern ===

impl Pattern {
    /// Returns the Service with this number and its address.
    fn copy(&self, number: u32) -> Result<[Put; 2]> {
        let Pattern {
            mut service,
            mut address,
        } = self.clone();
        let own = population::cluster_ip(number).to_string();
        let name = population::service_name(number);

        rename(&mut service.metadata, &name, (1, number));
        let spec = service.spec.as_mut().context("a Service has a spec")?;
        spec.cluster_ip = Some(own.clone());
        spec.cluster_ips = Some(vec![own.clone()]);

        rename(&mut address.metadata, &own, (2, number));
        let spec = address.spec.as_mut().context("an address has a spec")?;
        spec.parent_ref.name = name.clone();

        let namespace = population::NAMESPACE;
        Ok([
            Put {
                key: key(format!("services/specs/{namespace}/{name}")),
                value: ByteString(serde_json::to_vec(&service)?),
            },
            Put {
                key: key(format!("ipaddresses/{own}")),
                value: ByteString(serde_json::to_vec(&address)?),
            },
        ])
    }
}

/// Gives a copy its name and a UID derived from its kind and its number.
fn rename(metadata: &mut ObjectMeta, name: &str, (kind, number): (u8, u32)) {
    metadata.name = Some(name.to_owned());
    metadata.uid = Some(format!("00000000-0000-4000-800{kind}-{number:012}"));
    // etcd determines the version.
    metadata.resource_version = None;
}

fn key(path: String) -> ByteString {
    ByteString(format!("/registry/{path}").into_bytes())
}
