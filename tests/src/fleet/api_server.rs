//! The load of the API server, from its metrics.

use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;

/// The resources that the operator and the agents write. Other clients write Events too, but not in
/// this cluster.
const WRITTEN: [&str; 3] = ["nodeproxies", "proxyprofiles", "events"];
/// The other resources that the operator or the agents read.
const READ: [&str; 3] = ["nodes", "daemonsets", "leases"];
/// The verbs of write requests in the API server's metrics.
const WRITES: [&str; 5] = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];
/// The verbs with which agents renew Leases. Leaders of elections write theirs with PUT.
const RENEWALS: [&str; 2] = ["POST", "PATCH"];

/// The load since the start of the API server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) requests: Requests,
    /// The watches that are open now.
    pub(super) open_watches: f64,
    /// Processor time.
    pub(super) processor: Duration,
}

/// Numbers of requests of all clients for the resources of the operator and the agents, or such
/// numbers a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Requests {
    /// Lists.
    pub lists: f64,
    /// Reads of one object. Those of leader elections are among them.
    pub reads: f64,
    /// Watches that have ended: the API server counts a request when it ends.
    pub watches: f64,
    /// Writes, except for Leases.
    pub writes: f64,
    /// Renewals of the agents' Leases.
    pub renewals: f64,
}

pub(super) async fn observe(client: &Client) -> Result<Cost> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    parse(&client.request_text(request).await?)
}

/// Parses metrics in the text format of Prometheus.
fn parse(text: &str) -> Result<Cost> {
    let (mut requests, mut open_watches, mut processor) = (Requests::default(), 0.0, None);
    for line in text.lines() {
        let Some((series, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        match name {
            "apiserver_request_total" => requests.add(labels, value.parse()?),
            "apiserver_longrunning_requests" if is_watch(labels) => {
                open_watches += value.parse::<f64>()?;
            }
            "process_cpu_seconds_total" => processor = Some(value.parse()?),
            _ => {}
        }
    }
    let processor = processor.context("the API server does not say what time it has taken")?;
    Ok(Cost {
        requests,
        open_watches,
        processor: Duration::try_from_secs_f64(processor)?,
    })
}

fn is_watch(labels: &str) -> bool {
    label(labels, "verb") == "WATCH" && is_requested(label(labels, "resource"))
}

fn is_requested(resource: &str) -> bool {
    WRITTEN.contains(&resource) || READ.contains(&resource)
}

/// Returns the value of a label; empty if there is none.
fn label<'a>(labels: &'a str, name: &str) -> &'a str {
    let mut all = labels.split(',');
    all.find_map(|label| label.strip_prefix(name)?.strip_prefix("=\""))
        .and_then(|rest| rest.split('"').next())
        .unwrap_or_default()
}

// === impl Requests ===

impl Requests {
    /// Returns the requests a second between two observations this many seconds apart.
    pub(super) fn rates(before: Requests, after: Requests, seconds: f64) -> Requests {
        after.combined(before, |after, before| (after - before) / seconds)
    }

    /// Returns the share of each of `nodes` nodes.
    pub(super) fn for_each(self, nodes: f64) -> Requests {
        self.combined(self, |count, _| count / nodes)
    }

    fn combined(self, other: Requests, by: impl Fn(f64, f64) -> f64) -> Requests {
        Requests {
            lists: by(self.lists, other.lists),
            reads: by(self.reads, other.reads),
            watches: by(self.watches, other.watches),
            writes: by(self.writes, other.writes),
            renewals: by(self.renewals, other.renewals),
        }
    }

    fn add(&mut self, labels: &str, count: f64) {
        let (verb, resource) = (label(labels, "verb"), label(labels, "resource"));
        let counted = match verb {
            "LIST" if is_requested(resource) => &mut self.lists,
            "GET" if is_requested(resource) => &mut self.reads,
            "WATCH" if is_requested(resource) => &mut self.watches,
            write if resource == "leases" && RENEWALS.contains(&write) => &mut self.renewals,
            write if WRITTEN.contains(&resource) && WRITES.contains(&write) => &mut self.writes,
            _ => return,
        };
        *counted += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_verb_and_resource() {
        let request = |verb: &str, resource: &str, count: u32| {
            format!(
                "apiserver_request_total{{code=\"200\",component=\"apiserver\",dry_run=\"\",group=\"\",\
                 resource=\"{resource}\",scope=\"resource\",subresource=\"status\",verb=\"{verb}\",version=\"v1\"}} {count}"
            )
        };
        let lines = [
            "# TYPE apiserver_request_total counter".to_owned(),
            request("APPLY", "nodeproxies", 7),
            request("PATCH", "proxyprofiles", 2),
            request("PATCH", "leases", 30),
            request("PUT", "leases", 100),
            request("GET", "leases", 4),
            request("LIST", "leases", 5),
            request("WATCH", "nodes", 6),
            request("GET", "secrets", 1000),
            "apiserver_longrunning_requests{resource=\"nodeproxies\",verb=\"WATCH\"} 3".to_owned(),
            "apiserver_longrunning_requests{resource=\"secrets\",verb=\"WATCH\"} 9".to_owned(),
            "process_cpu_seconds_total 1.5".to_owned(),
        ];
        let cost = parse(&lines.join("\n")).expect("metrics");
        let expected = Requests {
            lists: 5.0,
            reads: 4.0,
            watches: 6.0,
            writes: 9.0,
            renewals: 30.0,
        };
        assert_eq!(cost.requests, expected);
        assert_eq!(cost.open_watches, 3.0);
        assert_eq!(cost.processor, Duration::from_millis(1500));
        let rates = Requests::rates(Requests::default(), expected, 10.0);
        assert_eq!(rates.renewals, 3.0);
        assert_eq!(rates.for_each(30.0).renewals, 0.1);
    }
}
