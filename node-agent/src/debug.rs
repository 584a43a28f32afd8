//! `/debug`: the same texts that logs, tests and bug reports use.

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
use crds::NodeProxyStatus;

use crate::board::Board;
use crate::conntrack::observe_fill;
use crate::inquiry::Inquiries;
use turns::Turns;

/// Whom answers are had from.
#[derive(Debug, Clone)]
struct Sources {
    board: Arc<Board>,
    inquiries: Inquiries,
    turns: Turns,
}

/// The header by which an answer of ours is told from that of whatever else has the port.
pub(crate) const ANSWERED_BY: &str = "x-answered-by";

/// What `/debug` answers.
pub(crate) fn router(board: Arc<Board>, inquiries: Inquiries) -> Router {
    Router::new()
        .route("/debug", get(index))
        .route("/debug/rounds", get(rounds))
        .route("/debug/status", get(status))
        .route("/debug/dataplane", get(answer::dataplane))
        .route("/debug/services/{namespace}/{name}", get(answer::service))
        .route("/debug/explain", get(answer::explanation))
        .route("/debug/trace", get(answer::trace))
        .with_state(Sources {
            board,
            inquiries,
            turns: Turns::new(),
        })
        .layer(map_response(sign))
}

async fn sign(mut response: Response) -> Response {
    let us = HeaderValue::from_static("signpost-agent");
    response.headers_mut().insert(ANSWERED_BY, us);
    response
}

async fn index() -> &'static str {
    "/debug/rounds                         the last ten rounds of each family: why, how long, how much\n\
     /debug/services/NAMESPACE/NAME[:PORT]  what is programmed for a Service, and where the kernel differs\n\
     /debug/explain?about=ADDRESS:PORT      whose address that is, and whose endpoint\n\
     /debug/trace?packet=PACKET             the way of a packet, and whether it is the right one\n\
     /debug/dataplane                       what is wanted of the kernel, all of it\n\
     /debug/status                          what this node reports of itself\n\
     Explanations and traces take output=json.\n"
}

async fn rounds(State(board): State<Arc<Board>>) -> String {
    let report = board.report().borrow().clone();
    let Some(report) = report else {
        return "no round has run yet\n".to_owned();
    };
    let mut text = String::new();
    for family in &report.families {
        for round in family.rounds.iter() {
            let _ = writeln!(text, "{round}");
        }
    }
    text
}

async fn status(State(board): State<Arc<Board>>) -> Result<String, StatusCode> {
    let status = NodeProxyStatus {
        conntrack: observe_fill(),
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
