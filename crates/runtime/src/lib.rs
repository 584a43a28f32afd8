//! The process of a Signpost program: its start, its monitoring and its end.
//!
//! Both binaries share it: ownership of tasks and what happens when one ends ([`Supervisor`]), the
//! signal to stop ([`CancellationToken`]), logging ([`LogOptions`]), probes ([`Health`]), metrics
//! ([`Metrics`]), HTTP on a port ([`serve`]), the client of the API server ([`open_client`]), and small
//! files that outlive the process ([`KeptFile`]).
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use clap::Parser;
//! use runtime::{BindPolicy, BuildInfo, GRACE, Health, LogOptions, Metrics};
//!
//! #[derive(Parser)]
//! struct Arguments {
//!     #[command(flatten)]
//!     log: LogOptions,
//! }
//!
//! fn main() -> ExitCode {
//!     let arguments = Arguments::parse();
//!     runtime::run(&arguments.log, GRACE, |supervisor, _log| async move {
//!         let metrics = Metrics::new(&BuildInfo { program: "signpost-agent", version: "0.1.0" });
//!         let health = Health::new();
//!         let routes = metrics.router().merge(health.router());
//!         let address = ([127, 0, 0, 1], 10249).into();
//!         supervisor.spawn("http", runtime::serve(address, BindPolicy::Retry, routes, supervisor.stop()));
//!         supervisor.spawn_thread("reconciler", |stop| while !stop.is_cancelled() { /* ... */ });
//!         Ok::<(), std::io::Error>(())
//!     })
//! }
//! ```

mod apply_status;
mod blocking;
mod client;
mod connection;
mod descriptor_limit;
mod error_chain;
mod health;
mod http_server;
pub mod jitter;
mod kept_file;
mod logging;
mod metrics;
mod rest_client;
mod signals;
mod supervisor;

pub use apply_status::{AppliedStatus, apply_status, without_fields};
pub use blocking::run_blocking;
pub use client::{ClientError, ClientSource, open_client};
pub use descriptor_limit::raise_descriptor_limit;
pub use error_chain::{Chain, chain};
pub use health::{Check, Health, Heartbeat, Readiness, Report, ReportLine};
pub use http_server::{
    BindError, BindPolicy, ConnectionLimit, ListenConfig, Peer, on_loopback_only, serve, serve_at,
    serve_on,
};
pub use kept_file::{KeptFile, KeptFileError};
pub use logging::{Log, LogFormat, LogOptions, LoggingError, ModuleVerbosity};
pub use metrics::{BuildInfo, Metrics};
pub use rest_client::{RestClientLayer, RestClientMetrics, RestClientService};
pub use signals::{Signal, Signals, SignalsError};
pub use supervisor::{End, GRACE, Supervisor, TaskEnd, TaskResult, run, supervise};
pub use tokio_util::sync::CancellationToken;
