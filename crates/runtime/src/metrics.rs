//! The metrics of this process.

mod plain_text;
mod process;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{StatusCode, header};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};
use tokio::task::spawn_blocking;

use crate::metrics::plain_text::{MEDIA_TYPE, plain_text};
use crate::metrics::process::ProcessCollector;

/// All metrics of the process. Cheap to clone; clones share their state.
///
/// # Names
///
/// The registry appends `_total` to the name of a counter and `_info` to that of an info metric:
/// kube-proxy's counter `kubeproxy_proxy_livez_total` is registered as `kubeproxy_proxy_livez`. A
/// gauge keeps its name, so kube-proxy's gauge
/// `kubeproxy_sync_proxy_rules_no_local_endpoints_total` is registered under its whole name.
#[derive(Clone)]
pub struct Metrics(Arc<Mutex<Registry>>);

/// The content of `signpost_build_info`.
#[derive(Debug, Clone, Copy)]
pub struct BuildInfo {
    /// The program's name: `signpost-agent`.
    pub program: &'static str,
    /// Its version, as in `env!("CARGO_PKG_VERSION")`.
    pub version: &'static str,
}

// === impl Metrics ===

impl Metrics {
    /// Creates the registry with `signpost_build_info` and the standard process metrics:
    /// `process_cpu_seconds_total`, `process_resident_memory_bytes`,
    /// `process_virtual_memory_bytes`, `process_start_time_seconds`, `process_open_fds`,
    /// `process_max_fds`. Those are read from the kernel at each scrape; one that cannot be read is
    /// left out.
    pub fn new(build: &BuildInfo) -> Self {
        let mut registry = Registry::default();
        let labels = vec![("program", build.program), ("version", build.version)];
        registry.register(
            "signpost_build",
            "What is running; always 1",
            Info::new(labels),
        );
        registry.register_collector(Box::new(ProcessCollector));
        Metrics(Arc::new(Mutex::new(registry)))
    }

    /// Adds `metric` and returns it. Give `name` without the suffix and `help` without the full
    /// stop, which the format adds. Scrapers report a name that is registered twice as an error.
    pub fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.registry().register(name, help, metric.clone());
        metric
    }

    /// Adds metrics with the registry's own API: collectors, prefixes, units.
    pub fn register_with(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry());
    }

    /// The current value of every metric, in the Prometheus text format 0.0.4.
    pub fn scrape(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry())?;
        Ok(plain_text(&text))
    }

    /// The route `/metrics`.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/metrics", get(answer))
            .with_state(self.clone())
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

async fn answer(State(metrics): State<Metrics>) -> Response {
    // Collectors read files, and some ask the kernel.
    match spawn_blocking(move || metrics.scrape()).await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, MEDIA_TYPE)], text).into_response(),
        Ok(Err(_)) | Err(_) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "failed to write a metric\n",
        )
            .into_response(),
    }
}

#[cfg(test)]
mod tests;
