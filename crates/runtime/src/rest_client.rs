//! Counts requests to the API server under the names that every Kubernetes component uses.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Method, Request, Response, StatusCode};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use tokio::time::Instant;
use tower::{Layer, Service};

use crate::metrics::Metrics;

/// `rest_client_requests_total{code,method,host}` and
/// `rest_client_request_duration_seconds{verb,host}`. Cheap to clone; clones share their counts.
///
/// The duration is the time until the response headers, including retries, so a watch counts with
/// its start and not with its hours.
#[derive(Debug, Clone)]
pub struct RestClientMetrics {
    requests: Family<RequestLabels, Counter>,
    durations: Family<DurationLabels, Histogram, fn() -> Histogram>,
}

/// Counts every request to the API server at one host.
#[derive(Debug, Clone)]
pub struct RestClientLayer {
    metrics: RestClientMetrics,
    host: Arc<str>,
}

/// A service whose requests are counted.
#[derive(Debug, Clone)]
pub struct RestClientService<S> {
    inner: S,
    metrics: RestClientMetrics,
    host: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    code: String,
    method: String,
    host: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    verb: String,
    host: String,
}

/// The value of the code label if there was no response, as in client-go.
const NO_ANSWER: &str = "<error>";

/// The buckets of Kubernetes' own components, so that dashboards are comparable.
const SECONDS: [f64; 12] = [
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
];

// === impl RestClientMetrics ===

impl RestClientMetrics {
    /// Registers the metrics with `metrics`. Call once per process.
    pub fn register(metrics: &Metrics) -> Self {
        let buckets: fn() -> Histogram = || Histogram::new(SECONDS);
        RestClientMetrics {
            requests: metrics.register(
                "rest_client_requests",
                "Requests to the API server by status code, method and host",
                Family::default(),
            ),
            durations: metrics.register(
                "rest_client_request_duration_seconds",
                "Time until the API server answered, by verb and host",
                Family::new_with_constructor(buckets),
            ),
        }
    }

    /// A layer for `ClientBuilder::with_layer`. `host` is the API server's address: at this layer a
    /// request contains only a path.
    pub fn layer(&self, host: &str) -> RestClientLayer {
        RestClientLayer {
            metrics: self.clone(),
            host: host.into(),
        }
    }

    fn observe(&self, host: &str, method: &Method, code: &str, began: Instant) {
        let (method, host) = (method.to_string(), host.to_owned());
        self.requests
            .get_or_create(&RequestLabels {
                code: code.to_owned(),
                method: method.clone(),
                host: host.clone(),
            })
            .inc();
        self.durations
            .get_or_create(&DurationLabels { verb: method, host })
            .observe(began.elapsed().as_secs_f64());
    }
}

// === impl RestClientLayer ===

impl<S> Layer<S> for RestClientLayer {
    type Service = RestClientService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RestClientService {
            inner,
            metrics: self.metrics.clone(),
            host: self.host.clone(),
        }
    }
}

// === impl RestClientService ===

impl<S, B, R> Service<Request<B>> for RestClientService<S>
where
    S: Service<Request<B>, Response = Response<R>, Future: Send + 'static>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (metrics, host) = (self.metrics.clone(), self.host.clone());
        let method = request.method().clone();
        let began = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let status = answer.as_ref().ok().map(Response::status);
            let code = status.as_ref().map_or(NO_ANSWER, StatusCode::as_str);
            metrics.observe(&host, &method, code, began);
            answer
        })
    }
}

#[cfg(test)]
mod tests;
