//! What the API server has been asked, and what it cost, as its metrics tell it.

use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;

/// What the operator and the agents write. Of these Events are written by others as well, but not on this cluster.
const WRITTEN: [&str; 3] = ["nodeproxies", "proxyprofiles", "events"];
/// Verbs of requests that write, as the API server's metrics have them.
const VERBS: [&str; 5] = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];

/// Since the API server started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    /// Requests that wrote something the operator or the agents write.
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
