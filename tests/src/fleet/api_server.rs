//! The load of the API server, from its metrics.

use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;

/// The resources that the operator and the agents write. Other clients write Events too, but not in
/// this cluster.
const WRITTEN: [&str; 3] = ["nodeproxies", "proxyprofiles", "events"];
/// The verbs of write requests in the API server's metrics.
const VERBS: [&str; 5] = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];

/// The load since the start of the API server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    /// Write requests for the resources of the operator and the agents.
    pub(super) writes: f64,
    /// Processor time.
    pub(super) processor: Duration,
}

pub(super) async fn observe(client: &Client) -> Result<Cost> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let text = client.request_text(request).await?;
    let samples = || text.lines().filter_map(|line| line.rsplit_once(' '));
    let is_write = |series: &str| {
        let has = |label: &str, values: &[&str]| {
            let mut values = values.iter();
            values.any(|value| series.contains(&format!("{label}=\"{value}\"")))
        };
        series.starts_with("apiserver_request_total{")
            && has("verb", &VERBS)
            && has("resource", &WRITTEN)
    };
    let writes = samples().filter(|(series, _)| is_write(series));
    let writes = writes.map(|(_, count)| count.parse::<f64>());
    let processor = samples().find(|(series, _)| *series == "process_cpu_seconds_total");
    let (_, processor) = processor.context("the API server does not say what time it has taken")?;
    Ok(Cost {
        writes: writes.sum::<Result<f64, _>>()?,
        processor: Duration::try_from_secs_f64(processor.parse()?)?,
    })
}
