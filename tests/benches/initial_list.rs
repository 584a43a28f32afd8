//! The cost of the initial read of all objects, for the API server and the agent:
//! `cargo bench --package tests --bench initial_list`.
//!
//! A real API server has 10,000 Services with five endpoints each. The agent's source reads them
//! until it is current, with a new connection each time; nothing is programmed.

use std::fmt;
use std::fs;
use std::net::SocketAddrV4;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{TryStreamExt, stream};
use http::Request;
use http::header::{ACCEPT, HeaderValue};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::PostParams;
use kube::client::Body;
use kube::{Api, Client};
use runtime::{
    BuildInfo, CancellationToken, ClientSource, Metrics, RestClientMetrics, open_client,
};
use serde_json::{Value, json};
use source::{Delivery, SourceCondition};
use tests::control_plane::{self, ADMINISTRATOR, ControlPlane, Options};
use tests::tcp_connections::connections_to;
use tokio::sync::{mpsc, watch};

const SERVICES: u32 = 10_000;
const ENDPOINTS: u32 = 5;
/// The number of runs; the median counts.
const RUNS: usize = 5;
/// The number of concurrent writes.
const AT_A_TIME: usize = 32;

/// The parameters of the requests.
#[derive(Debug, Clone, Copy)]
struct PacketPath {
    protocol: Protocol,
    format: Format,
}

#[derive(Debug, Clone, Copy)]
enum Protocol {
    /// HTTP/1.1, as kube's own client uses.
    Http1,
    Http2,
}

#[derive(Debug, Clone, Copy)]
enum Format {
    Json,
    Protobuf,
}

/// The results of one run.
struct Figures {
    time: Duration,
    of_api_server: Duration,
    own: Duration,
    bytes: u64,
    connections: usize,
}

fn main() -> Result<()> {
    let control_plane = ControlPlane::start(Options::default())?;
    let kubeconfig = control_plane.kubeconfig(ADMINISTRATOR)?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(fill(&kubeconfig))?;
    let api_server = process_of("kube-apiserver", &kubeconfig)?;
    println!(
        "| HTTP | format | time | processor of the API server | own processor | MB | connections |"
    );
    println!("|---|---|---|---|---|---|---|");
    for way in [
        (Protocol::Http1, Format::Json),
        (Protocol::Http1, Format::Protobuf),
        (Protocol::Http2, Format::Json),
        (Protocol::Http2, Format::Protobuf),
    ] {
        let (protocol, format) = way;
        let way = PacketPath { protocol, format };
        let read =
            || runtime.block_on(way.read_once(&kubeconfig, api_server, control_plane.address()));
        let mut runs = (0..RUNS).map(|_| read()).collect::<Result<Vec<_>>>()?;
        let mut middle = |part: fn(&Figures) -> Duration| {
            runs.sort_by_key(part);
            part(&runs[RUNS / 2])
        };
        let time = middle(|figures| figures.time);
        let of_api_server = middle(|figures| figures.of_api_server);
        let own = middle(|figures| figures.own);
        let Figures {
            bytes, connections, ..
        } = runs[0];
        let megabytes = bytes / 1_000_000;
        println!(
            "| {protocol} | {format:?} | {time:.2?} | {of_api_server:.2?} | {own:.2?} | {megabytes} | {connections} |"
        );
    }
    Ok(())
}

async fn fill(kubeconfig: &Path) -> Result<()> {
    let client = control_plane::client(kubeconfig).await?;
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let slices: Api<EndpointSlice> = Api::namespaced(client, "default");
    let params = PostParams::default();
    stream::iter((0..SERVICES).map(Ok))
        .try_for_each_concurrent(AT_A_TIME, |number| {
            let (services, slices, params) = (&services, &slices, &params);
            async move {
                let [service, slice] = objects(number);
                let service = serde_json::from_value(service)?;
                services.create(params, &service).await?;
                slices
                    .create(params, &serde_json::from_value(slice)?)
                    .await?;
                anyhow::Ok(())
            }
        })
        .await
        .context("failed to write Services")
}

/// Returns a Service, and its EndpointSlice as the EndpointSlice controller writes it.
fn objects(number: u32) -> [serde_json::Value; 2] {
    let name = format!("service-{number}");
    let endpoints = (0..ENDPOINTS).map(|endpoint| {
        let [_, b, c, d] = (number * ENDPOINTS + endpoint).to_be_bytes();
        json!({
            "addresses": [format!("10.{}.{c}.{d}", 128 + b)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{}", endpoint + 1),
            "zone": "zone-a",
            "targetRef": {
                "kind": "Pod", "namespace": "default", "name": format!("{name}-5d8f7c-{endpoint}"),
                "uid": "0f3f5c1e-6f0e-4d2b-9a53-0d9a1f6f4a11",
            },
        })
    });
    [
        json!({
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
        }),
        json!({
            "metadata": {
                "name": format!("{name}-x7k2p"),
                "labels": {
                    "app": name,
                    "kubernetes.io/service-name": name,
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                },
                "annotations": {
                    "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-02T03:04:05Z",
                },
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": endpoints.collect::<Vec<_>>(),
        }),
    ]
}

/// Returns the process of this program in the control plane of the kubeconfig: its command line
/// contains the same folder.
fn process_of(program: &str, kubeconfig: &Path) -> Result<u32> {
    let folder = kubeconfig.parent().context("a file is in a folder")?;
    let folder = folder.display().to_string();
    for process in fs::read_dir("/proc")? {
        let process = process?;
        // Entries that are not processes, and processes that have just ended, have no command line.
        let arguments = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments);
        let is_program = arguments
            .split('\0')
            .next()
            .is_some_and(|path| path.ends_with(program));
        if is_program && arguments.contains(&folder) {
            return Ok(process.file_name().to_string_lossy().parse()?);
        }
    }
    bail!("{program} does not run")
}

/// Returns the processor time of a process so far.
fn processor_time(process: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, rest) = stat.rsplit_once(')').context("a process has a name")?;
    // proc_pid_stat(5): fields 14 and 15, utime and stime; the rest starts with the third field.
    let ticks = rest.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks
        .map(|ticks| ticks.parse::<u64>())
        .sum::<Result<_, _>>()?;
    Ok(Duration::from_millis(
        ticks * 1000 / rustix::param::clock_ticks_per_second(),
    ))
}

// === impl PacketPath ===

impl PacketPath {
    async fn read_once(
        self,
        kubeconfig: &Path,
        api_server: u32,
        address: SocketAddrV4,
    ) -> Result<Figures> {
        let bytes = Arc::new(AtomicU64::new(0));
        let client = self.client(self.protocol.client(kubeconfig).await?, Arc::clone(&bytes));
        let (sender, mut deliveries) = mpsc::channel(64);
        let stop = CancellationToken::new();
        let this = std::process::id();
        let (began, of_api_server, own) = (
            Instant::now(),
            processor_time(api_server)?,
            processor_time(this)?,
        );
        let node = "node-1".to_owned();
        let watch = tokio::spawn(source::kubernetes::watch(
            client,
            node,
            sender,
            watch::Sender::new(Value::Null),
            stop.clone(),
        ));
        loop {
            match deliveries.recv().await.context("the source has ended")? {
                Delivery::Condition(SourceCondition::Fresh) => break,
                Delivery::Condition(other) => bail!("{other:?}"),
                _ => {}
            }
        }
        let figures = Figures {
            time: began.elapsed(),
            of_api_server: processor_time(api_server)?.saturating_sub(of_api_server),
            own: processor_time(this)?.saturating_sub(own),
            bytes: bytes.load(Ordering::Relaxed),
            connections: connections_to(this, address)?,
        };
        stop.cancel();
        drop(deliveries);
        watch.await?.context("the engine is gone")?;
        // Wait until the API server has noticed the closed connection and freed its memory.
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(figures)
    }

    /// Returns a client that requests this format, and counts the bytes of the responses.
    fn client(self, inner: Client, bytes: Arc<AtomicU64>) -> Client {
        let service = tower::service_fn(move |mut request: Request<Body>| {
            let (inner, bytes) = (inner.clone(), Arc::clone(&bytes));
            if matches!(self.format, Format::Json) {
                let json = HeaderValue::from_static("application/json");
                request.headers_mut().insert(ACCEPT, json);
            }
            async move {
                let answer = inner.send(request).await?;
                Ok::<_, kube::Error>(answer.map(|body| {
                    body.map_frame(move |frame| {
                        let length = frame.data_ref().map_or(0, |data| data.len());
                        bytes.fetch_add(length.try_into().unwrap_or_default(), Ordering::Relaxed);
                        frame
                    })
                }))
            }
        });
        Client::new(service, "default")
    }
}

// === impl Protocol ===

impl Protocol {
    async fn client(self, kubeconfig: &Path) -> Result<Client> {
        match self {
            Protocol::Http1 => control_plane::client(kubeconfig).await,
            Protocol::Http2 => {
                let build = BuildInfo {
                    program: "initial-list",
                    version: env!("CARGO_PKG_VERSION"),
                };
                let metrics = RestClientMetrics::register(&Metrics::new(&build));
                let source = ClientSource::from(Some(kubeconfig.to_owned()));
                Ok(open_client(&source, &build, &metrics).await?)
            }
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Http1 => "1.1",
            Protocol::Http2 => "2",
        })
    }
}
