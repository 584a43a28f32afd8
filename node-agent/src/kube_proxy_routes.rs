//! What else kube-proxy answers beside its metrics, for whoever asks: which mode, which configuration.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::Value;

use crate::board::Board;
use crate::configz::render_configz;
use crate::mechanism::findings;

#[derive(Debug, Clone)]
struct Sources {
    board: Arc<Board>,
    node: Arc<str>,
}

/// `/healthz`, which says no more than that this server answers, `/proxyMode` and `/configz`.
pub(crate) fn router(board: Arc<Board>, node: &str) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/proxyMode", get(proxy_mode))
        .route("/configz", get(configz))
        .with_state(Sources {
            board,
            node: node.into(),
        })
}

/// The mode in force, whatever the profile asks for.
async fn proxy_mode(State(sources): State<Sources>) -> impl IntoResponse {
    let headers = [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    let mode = findings::mode(&sources.board.carried()).unwrap_or_default();
    (headers, mode.to_string())
}

async fn configz(State(sources): State<Sources>) -> Json<Value> {
    let view = sources.board.view().borrow().clone();
    let config = view.map_or_else(Default::default, |view| Arc::clone(&view.effective));
    Json(render_configz(&sources.node, &config))
}
