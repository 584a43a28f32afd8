//! The HTTP routes: the files of the page, and its data.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::stream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::gate::AccessControl;
use super::questions;
use super::view::View;
use crate::cluster::Cluster;

/// The embedded files of the page: path, type, content.
const FILES: [(&str, &str, &str); 11] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/page.css", "text/css", include_str!("page/page.css")),
    ("/page.js", JAVASCRIPT, include_str!("page/page.js")),
    ("/asking.js", JAVASCRIPT, include_str!("page/asking.js")),
    ("/drift.js", JAVASCRIPT, include_str!("page/drift.js")),
    ("/elements.js", JAVASCRIPT, include_str!("page/elements.js")),
    ("/nodes.js", JAVASCRIPT, include_str!("page/nodes.js")),
    ("/packet.js", JAVASCRIPT, include_str!("page/packet.js")),
    (
        "/rejections.js",
        JAVASCRIPT,
        include_str!("page/rejections.js"),
    ),
    ("/rollouts.js", JAVASCRIPT, include_str!("page/rollouts.js")),
    ("/service.js", JAVASCRIPT, include_str!("page/service.js")),
];
const HTML: &str = "text/html; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// An empty line is sent after this time without a change, to detect a closed page.
const SILENCE: Duration = Duration::from_secs(20);

/// Returns all routes, protected by `gate`.
pub(super) fn router(
    gate: &AccessControl,
    views: watch::Receiver<Arc<View>>,
    cluster: Cluster,
) -> Router {
    let mut files = Router::new();
    for (path, kind, content) in FILES {
        files = files.route(path, get(([(CONTENT_TYPE, kind)], content)));
    }
    let changes = get(move || async move { changes(views.clone()) });
    let guarded = questions::router(cluster).route("/changes", changes);
    gate.around(files, guarded)
}

/// Streams one line of JSON for each change; the first line contains the whole view.
fn changes(mut views: watch::Receiver<Arc<View>>) -> Response {
    views.mark_changed();
    let shown: Option<Arc<View>> = None;
    let lines = stream::unfold((views, shown), |(mut views, shown)| async move {
        let (line, shown) = match timeout(SILENCE, views.changed()).await {
            Err(_) => ("\n".to_owned(), shown),
            // The sender was dropped: no more views will come.
            Ok(Err(_)) => return None,
            Ok(Ok(())) => {
                let now = Arc::clone(&views.borrow_and_update());
                let change = now.difference(shown.as_deref());
                // A change contains only texts, numbers and lists, which JSON can represent.
                let line = serde_json::to_string(&change).unwrap_or_default() + "\n";
                (line, Some(now))
            }
        };
        Some((Ok::<_, Infallible>(line), (views, shown)))
    });
    let body = Body::from_stream(lines);
    ([(CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}
