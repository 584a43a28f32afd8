//! `/debug`: the same texts that appear in logs, tests and bug reports.

mod answer;
mod query_limit;

use std::fmt::Write;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::get;
use conntrack::observe_fill;
use crds::NodeProxyStatus;
use crds::node_proxy::Heartbeat;
use foreign_proxy::ANSWERED_BY;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::engine::View;
use crate::engine_query::EngineQueries;
use crate::programmed::Programmed;
use query_limit::QueryLimit;

/// What answers are taken from.
#[derive(Debug, Clone)]
pub(crate) struct DebugState {
    pub(crate) view: watch::Receiver<Option<Arc<View>>>,
    pub(crate) programmed: Arc<Programmed>,
    pub(crate) status: watch::Receiver<Arc<NodeProxyStatus>>,
    pub(crate) renewed_since: watch::Receiver<Option<Instant>>,
}

/// The shared state of the handlers.
#[derive(Debug, Clone)]
struct Sources {
    state: DebugState,
    queries: EngineQueries,
    limit: QueryLimit,
}

/// Returns the routes below `/debug`.
pub(crate) fn router(state: DebugState, queries: EngineQueries) -> Router {
    Router::new()
        .route("/debug", get(index))
        .route("/debug/syncs", get(syncs))
        .route("/debug/status", get(status))
        .route("/debug/dataplane", get(answer::dataplane))
        .route("/debug/rules", get(answer::rules))
        .route("/debug/services/{namespace}/{name}", get(answer::service))
        .route("/debug/explain", get(answer::explanation))
        .route("/debug/trace", get(answer::trace))
        .with_state(Sources {
            state,
            queries,
            limit: QueryLimit::new(),
        })
        .layer(map_response(sign))
}

async fn sign(mut response: Response) -> Response {
    let name = HeaderValue::from_static("signpost-agent");
    response.headers_mut().insert(ANSWERED_BY, name);
    response
}

async fn index() -> &'static str {
    "/debug/syncs                         the last ten syncs of each family: why, how long, how much\n\
     /debug/services/NAMESPACE/NAME[:PORT]  what is programmed for a Service, and where the kernel differs\n\
     /debug/explain?about=ADDRESS:PORT      whose address that is, and whose endpoint\n\
     /debug/trace?packet=PACKET             the way of a packet, and whether it is the right one\n\
     /debug/dataplane                       the complete desired state of the kernel\n\
     /debug/rules                           Signpost's rules in the kernel\n\
     /debug/status                          what this node reports of itself\n\
     Explanations and traces take output=json.\n"
}

async fn syncs(State(sources): State<Sources>) -> String {
    let Some(report) = sources.state.programmed.last_report() else {
        return "no sync has run yet\n".to_owned();
    };
    let mut text = String::new();
    for family in &report.families {
        for sync in family.syncs.iter() {
            let _ = writeln!(text, "{sync}");
        }
    }
    text
}

async fn status(State(Sources { state, .. }): State<Sources>) -> Result<String, StatusCode> {
    let status = NodeProxyStatus {
        conntrack: observe_fill(),
        heartbeat: state.renewed_since.borrow().map(|_| Heartbeat::Lease),
        ..NodeProxyStatus::clone(&state.status.borrow())
    };
    serde_saphyr::to_string(&status).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}
