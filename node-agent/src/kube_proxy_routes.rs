//! The routes that kube-proxy serves in addition to its metrics: its mode and its configuration.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use modes::findings;
use runtime::{Log, on_loopback_only};
use serde_json::Value;
use tokio::sync::watch;

use crate::configz::render_configz;
use crate::engine::View;
use crate::programmed::Programmed;

#[derive(Debug, Clone)]
struct Sources {
    view: watch::Receiver<Option<Arc<View>>>,
    programmed: Arc<Programmed>,
    node: Arc<str>,
    log: Log,
}

/// Returns the routes `/healthz`, which only says that this server answers, `/proxyMode`, and
/// `/configz`, which answers peers on loopback only.
pub(crate) fn router(
    view: watch::Receiver<Option<Arc<View>>>,
    programmed: Arc<Programmed>,
    node: &str,
    log: Log,
) -> Router {
    let sources = Sources {
        view,
        programmed,
        node: node.into(),
        log,
    };
    let configuration = Router::new()
        .route("/configz", get(configz))
        .with_state(sources.clone());
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/proxyMode", get(proxy_mode))
        .with_state(sources)
        .merge(on_loopback_only(configuration))
}

/// Answers with the mode in force, whatever the profile asks for.
async fn proxy_mode(State(sources): State<Sources>) -> impl IntoResponse {
    let headers = [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    let mode = findings::mode(&sources.programmed.modes()).unwrap_or_default();
    (headers, mode.to_string())
}

async fn configz(State(sources): State<Sources>) -> Json<Value> {
    let view = sources.view.borrow().clone();
    let config = view.map_or_else(Default::default, |view| Arc::clone(&view.effective));
    Json(render_configz(
        &sources.node,
        &config,
        &sources.log.options(),
    ))
}
