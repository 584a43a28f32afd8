//! `/healthz` and `/livez` for load balancers and monitors, in kube-proxy's format.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use catalog::NodeLifecycle;
use dataplane::Family;
use http::{StatusCode, header};
use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Labelled;
use runtime::{Health, Metrics};
use serde::Serialize;

use crate::{FamilyHealth, NodeFacts, NodeHealth, ProxyHealth};

/// How Go prints a time that was never set (time.Time's zero value).
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The shared state of the handlers.
#[derive(Debug, Clone)]
struct Sources {
    facts: Arc<dyn NodeFacts>,
    proxy: ProxyHealth,
    process: Health,
    counts: Counts,
}

/// The number of answers by status code.
#[derive(Debug, Clone, Default)]
struct Counts {
    healthz: Labelled<OfCode, Counter>,
    livez: Labelled<OfCode, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCode {
    code: &'static str,
}

/// The body, in the order of kube-proxy's fields.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    status: BTreeMap<String, FamilyBody>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyBody {
    last_updated: String,
    healthy: bool,
}

/// Returns the routes `/healthz`, which says whether this node should receive traffic, and
/// `/livez`, which says whether the agent should be restarted. Both answer 200 or 503 and are
/// counted in `metrics` as `kubeproxy_proxy_healthz_total` and `kubeproxy_proxy_livez_total`.
///
/// An agent is alive if it has nothing to do, if it has not read its cluster yet, and also during a
/// long sync, until `process` considers that a hang.
pub fn router(
    facts: Arc<dyn NodeFacts>,
    proxy: ProxyHealth,
    process: Health,
    metrics: &Metrics,
) -> Router {
    let counts = Counts::default();
    metrics.register(
        "kubeproxy_proxy_healthz",
        "Answers to /healthz by status code",
        counts.healthz.clone(),
    );
    metrics.register(
        "kubeproxy_proxy_livez",
        "Answers to /livez by status code",
        counts.livez.clone(),
    );
    for counter in [&counts.healthz, &counts.livez] {
        for code in ["200", "503"] {
            drop(counter.get_or_create(&OfCode { code }));
        }
    }
    Router::new()
        .route("/healthz", get(healthz))
        .route("/livez", get(livez))
        .with_state(Sources {
            facts,
            proxy,
            process,
            counts,
        })
}

/// Returns how late an update may be on this node.
pub(super) fn patience(facts: &dyn NodeFacts) -> Duration {
    2 * facts.sync_period()
}

async fn healthz(State(sources): State<Sources>) -> Response {
    let node_health = sources
        .proxy
        .node_health(patience(&*sources.facts), Instant::now());
    let eligible = sources.facts.lifecycle() == NodeLifecycle::Staying;
    let healthy = node_health.is_healthy();
    let body = body(
        &node_health,
        healthy && eligible,
        healthy,
        SystemTime::now(),
    );
    let body = Body {
        node_eligible: Some(eligible),
        ..body
    };
    answer(healthy && eligible, body, &sources.counts.healthz)
}

async fn livez(State(sources): State<Sources>) -> Response {
    let node_health = sources
        .proxy
        .node_health(patience(&*sources.facts), Instant::now());
    let alive = node_health.is_alive() && sources.process.liveness().passed();
    let body = body(&node_health, alive, alive, SystemTime::now());
    answer(alive, body, &sources.counts.livez)
}

/// `passes` says whether the code is 200. If it is, the time of the last update is now, as in older
/// releases of kube-proxy, on which monitors rely.
fn body(node_health: &NodeHealth, passes: bool, healthy: bool, now: SystemTime) -> Body {
    let last_updated = if passes {
        Some(now)
    } else {
        node_health.last_updated()
    };
    let family = |(family, health): (&Family, &FamilyHealth)| {
        let body = FamilyBody {
            last_updated: go_time(health.last_updated),
            healthy: health.is_healthy(),
        };
        (family.to_string(), body)
    };
    Body {
        last_updated: go_time(last_updated),
        current_time: go_time(Some(now)),
        node_eligible: None,
        healthy,
        status: node_health.families.iter().map(family).collect(),
    }
}

fn answer(passes: bool, body: Body, counts: &Labelled<OfCode, Counter>) -> Response {
    let (status, code) = if passes {
        (StatusCode::OK, "200")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "503")
    };
    counts.get_or_create(&OfCode { code }).inc();
    let sniffing = [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, sniffing, Json(body)).into_response()
}

/// Prints a time as Go does in JSON: RFC 3339 with as many fractional digits as needed.
fn go_time(time: Option<SystemTime>) -> String {
    let time = time.and_then(|time| Timestamp::try_from(time).ok());
    time.map_or_else(|| NEVER.to_owned(), |time| time.to_string())
}

#[cfg(test)]
mod tests;
