//! `/debug`: the same texts that appear in logs, tests and bug reports.

mod answer;
mod turns;

use std::fmt::Write;
use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRef, State};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::get;
use conntrack::observe_fill;
use crds::NodeProxyStatus;
use crds::node_proxy::Heartbeat;
use foreign_proxy::ANSWERED_BY;

use crate::board::Board;
use crate::engine_query::EngineQueries;
use turns::QueryLimit;

/// The shared state of the handlers.
#[derive(Debug, Clone)]
struct Sources {
    board: Arc<Board>,
    queries: EngineQueries,
    turns: QueryLimit,
}

/// Returns the routes below `/debug`.
pub(crate) fn router(board: Arc<Board>, queries: EngineQueries) -> Router {
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
            board,
            queries,
            turns: QueryLimit::new(),
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

async fn syncs(State(board): State<Arc<Board>>) -> String {
    let report = board.report().borrow().clone();
    let Some(report) = report else {
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

async fn status(State(board): State<Arc<Board>>) -> Result<String, StatusCode> {
    let status = NodeProxyStatus {
        conntrack: observe_fill(),
        heartbeat: board.heartbeat().borrow().map(|_| Heartbeat::Lease),
        ..NodeProxyStatus::clone(&board.status().borrow())
    };
    serde_saphyr::to_string(&status).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

// === impl Sources ===

impl FromRef<Sources> for Arc<Board> {
    fn from_ref(sources: &Sources) -> Arc<Board> {
        Arc::clone(&sources.board)
    }
}
