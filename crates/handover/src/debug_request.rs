//! Queries over the agent's socket, with the answers of `/debug`. The metrics port may belong to
//! another program, such as a kube-proxy that bound it first, and the agent releases it after a
//! handback.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderValue, Request, StatusCode};
use inspect::Agreement;
use serde::{Deserialize, Serialize};
use tower::ServiceExt;

use super::socket_within;

/// A request for an answer of `/debug`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DebugRequest {
    /// The path with its query.
    pub(crate) debug_request: String,
}

/// The answer of `/debug` to a request over the socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The HTTP status code.
    status: u16,
    /// Whether the kernel agrees with the desired state, if the answer compares them.
    pub agreement: Agreement,
    /// The body.
    pub text: String,
}

/// How long an answer may take: the agent reads the kernel, and waits for other queries that do.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks the agent with this state directory. Reads at most `longest` bytes. Returns `None` if no
/// agent answers there.
pub fn inquire(state: &Path, path: String, longest: u64) -> Option<Answer> {
    let stream = UnixStream::connect(socket_within(state)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let debug_request = serde_json::to_string(&DebugRequest {
        debug_request: path,
    })
    .ok()?;
    writeln!(&stream, "{debug_request}").ok()?;
    let mut line = String::new();
    BufReader::new(stream.take(longest))
        .read_line(&mut line)
        .ok()?;
    serde_json::from_str(&line).ok()
}

/// Answers with the response of the `debug` router.
pub(super) async fn answer(debug: Router, debug_request: &DebugRequest) -> Answer {
    let request = match Request::get(&debug_request.debug_request).body(Body::empty()) {
        Ok(request) => request,
        Err(error) => {
            return Answer {
                status: StatusCode::BAD_REQUEST.as_u16(),
                agreement: Agreement::Agrees,
                text: error.to_string(),
            };
        }
    };
    let response = match debug.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let (head, body) = response.into_parts();
    let agreement = head.headers.get(Agreement::HEADER);
    let agreement = agreement.map(HeaderValue::as_bytes);
    // The data that the answer is made from is not limited, either.
    let text = to_bytes(body, usize::MAX).await.unwrap_or_default();
    Answer {
        status: head.status.as_u16(),
        agreement: Agreement::of_header(agreement),
        text: String::from_utf8_lossy(&text).into_owned(),
    }
}

// === impl Answer ===

impl Answer {
    /// Whether the status code means success.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;

    use super::*;

    #[tokio::test]
    async fn an_inquiry_gets_what_the_route_answers() {
        let differs = [(Agreement::HEADER, Agreement::Differs.as_str())];
        let debug = Router::new().route(
            "/debug/trace",
            get(move || async move { (differs, "reject\n") }),
        );
        let ask = async |path: &str| {
            let debug_request = path.to_owned();
            answer(debug.clone(), &DebugRequest { debug_request }).await
        };
        let traced = ask("/debug/trace?packet=x%20y").await;
        assert!(traced.is_success());
        assert_eq!(
            (traced.agreement, traced.text.as_str()),
            (Agreement::Differs, "reject\n")
        );
        assert_eq!(ask("/debug/nothing").await.status, 404);
        assert_eq!(ask("not a path").await.status, 400);
    }
}
