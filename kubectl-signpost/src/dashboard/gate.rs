//! Access control of the dashboard: only its own page is answered.
//!
//! Other pages in the user's browser can send requests to loopback, also under their own name if it
//! resolves to a loopback address, and other users of the machine can connect. Therefore data about
//! the cluster requires a token. The token is in the fragment of the printed address, which
//! browsers send to no server. The page stores it for its own origin and tab and sends it in a
//! header, which a page of another origin cannot do. A cookie would reach every port of 127.0.0.1.

use std::fmt;
use std::hint::black_box;

use anyhow::anyhow;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};

/// The secret required by every request for data about the cluster: 256 bits.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Token(String);

/// The conditions that a request must meet.
#[derive(Debug, Clone)]
pub(super) struct AccessControl {
    hosts: [String; 2],
    token: Token,
}

/// Why a request is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// Its Host header is not the page's.
    Host,
    /// Its method is not that of a read.
    Method,
    /// Its token is missing or wrong.
    Token,
}

/// The headers of every response: only files of this origin are used, and nothing is cached or
/// framed.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (CACHE_CONTROL, "no-store"),
    (REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

// === impl Token ===

impl Token {
    /// Creates a token from the operating system's random numbers.
    pub(super) fn random() -> anyhow::Result<Token> {
        let mut bytes = [0; 32];
        let random = rustls::crypto::ring::default_provider().secure_random;
        let filled = random.fill(&mut bytes);
        filled.map_err(|_| anyhow!("failed to get random numbers from the operating system"))?;
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        Ok(Token(digits.collect()))
    }

    /// Whether `text` is the token. The comparison takes constant time.
    fn is(&self, text: &str) -> bool {
        let (own, other) = (self.0.as_bytes(), text.as_bytes());
        let pairs = own.iter().zip(other);
        let differing = pairs.fold(0, |differing, (a, b)| black_box(differing | (a ^ b)));
        own.len() == other.len() && differing == 0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

// === impl AccessControl ===

impl AccessControl {
    pub(super) fn new(port: u16, token: Token) -> AccessControl {
        AccessControl {
            hosts: ["127.0.0.1", "localhost"].map(|name| format!("{name}:{port}")),
            token,
        }
    }

    /// Combines the routes: `open` requires the page's own address, `guarded` also the token.
    pub(super) fn around(&self, open: Router, guarded: Router) -> Router {
        let with_token = middleware::from_fn_with_state(self.clone(), check_token);
        let on_address = middleware::from_fn_with_state(self.clone(), check_address);
        open.merge(guarded.route_layer(with_token))
            .layer(on_address)
    }

    fn address(&self, method: &Method, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = headers.get(HOST).map(HeaderValue::as_bytes);
        if !self.hosts.iter().any(|own| host == Some(own.as_bytes())) {
            return Err(Refusal::Host);
        }
        match *method {
            Method::GET | Method::HEAD => Ok(()),
            _ => Err(Refusal::Method),
        }
    }

    fn token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let sent = headers
            .get(AUTHORIZATION)
            .and_then(|sent| sent.to_str().ok());
        let sent = sent.and_then(|sent| sent.strip_prefix("Bearer "));
        match sent.is_some_and(|sent| self.token.is(sent)) {
            true => Ok(()),
            false => Err(Refusal::Token),
        }
    }
}

async fn check_address(
    State(gate): State<AccessControl>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = match gate.address(request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

async fn check_token(State(gate): State<AccessControl>, request: Request, next: Next) -> Response {
    match gate.token(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

// === impl Refusal ===

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, text) = match self {
            Refusal::Host => (
                StatusCode::MISDIRECTED_REQUEST,
                "use the address that the command printed",
            ),
            Refusal::Method => (StatusCode::METHOD_NOT_ALLOWED, "the page changes nothing"),
            Refusal::Token => (
                StatusCode::UNAUTHORIZED,
                "open the address that the command printed: it contains the token",
            ),
        };
        let mut response = (status, Body::from(text)).into_response();
        if self == Refusal::Method {
            let allowed = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(ALLOW, allowed);
        }
        response
    }
}

#[cfg(test)]
mod tests;
