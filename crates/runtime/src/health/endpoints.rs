//! `/livez` and `/readyz`, in the format of the Kubernetes API server.

use axum::Router;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderName, StatusCode, header};
use std::collections::HashMap;
use std::fmt::Write;

use super::{Health, Report};

const PLAIN_TEXT: [(HeaderName, &str); 2] = [
    (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
];

/// Which checks an answer lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// The failing ones.
    Failures,
    /// All.
    Everything,
}

impl Health {
    /// The routes `/livez` and `/readyz`: 200 if every check passes, else 503. The body is `ok` or
    /// the failing checks, one per line; with `?verbose`, every check.
    pub fn router(&self) -> Router {
        Router::new()
            .route(
                "/livez",
                get(async |State(health): State<Health>, query| {
                    answer("livez", &health.liveness(), query)
                }),
            )
            .with_state(self.clone())
            .merge(self.readiness_router())
    }

    /// `/readyz` alone, for programs with another `/livez`.
    pub fn readiness_router(&self) -> Router {
        Router::new()
            .route(
                "/readyz",
                get(async |State(health): State<Health>, query| {
                    answer("readyz", &health.readiness(), query)
                }),
            )
            .with_state(self.clone())
    }
}

fn answer(
    endpoint: &str,
    report: &Report,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let detail = if query.contains_key("verbose") {
        Detail::Everything
    } else {
        Detail::Failures
    };
    let status = if report.passed() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, PLAIN_TEXT, render(endpoint, report, detail)).into_response()
}

/// The body of an answer.
pub(super) fn render(endpoint: &str, report: &Report, detail: Detail) -> String {
    if report.passed() && detail == Detail::Failures {
        return "ok".to_owned();
    }
    let shown = report
        .lines
        .iter()
        .filter(|line| detail == Detail::Everything || line.failure.is_some());
    let mut body = shown.fold(String::new(), |mut body, line| {
        // Writing to a String cannot fail.
        let _ = writeln!(body, "{line}");
        body
    });
    let verdict = if report.passed() { "passed" } else { "failed" };
    let _ = writeln!(body, "{endpoint} check {verdict}");
    body
}
