//! `/debug`: the same texts that logs, tests and bug reports use.

use std::fmt::Write;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;

use crate::board::Board;
use crate::explain::{Question, explain};

/// What `/debug` answers.
pub(crate) fn router(board: Arc<Board>) -> Router {
    Router::new()
        .route("/debug", get(index))
        .route("/debug/rounds", get(rounds))
        .route("/debug/status", get(status))
        .route("/debug/dataplane", get(dataplane))
        .route("/debug/services/{namespace}/{name}", get(service))
        .with_state(board)
}

async fn index() -> &'static str {
    "/debug/rounds                         the last ten rounds of each family: why, how long, how much\n\
     /debug/services/NAMESPACE/NAME[:PORT]  what is programmed for a Service\n\
     /debug/dataplane                      what is wanted of the kernel, all of it\n\
     /debug/status                         what this node reports of itself\n"
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
    let status = board.status().borrow().clone();
    serde_saphyr::to_string(&status).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

async fn dataplane(State(board): State<Arc<Board>>) -> String {
    let view = board.view().borrow().clone();
    match view.as_ref().and_then(|view| view.wanted.as_ref()) {
        Some(dataplane) => dataplane.to_string(),
        None => "nothing is wanted of the kernel yet\n".to_owned(),
    }
}

async fn service(
    State(board): State<Arc<Board>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<String, (StatusCode, String)> {
    let question: Question = format!("{namespace}/{name}")
        .parse()
        .map_err(|error| (StatusCode::BAD_REQUEST, format!("{error}\n")))?;
    let not_found = || {
        let text = format!("no Service {namespace}/{name} is known here\n");
        (StatusCode::NOT_FOUND, text)
    };
    let view = board.view().borrow().clone();
    let wanted = view.as_ref().and_then(|view| view.wanted.as_ref());
    let dataplane = wanted.ok_or_else(not_found)?;
    explain(&question, dataplane, |family| board.table(family)).ok_or_else(not_found)
}
