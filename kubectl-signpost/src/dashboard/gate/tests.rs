use axum::routing::get;
use tower::ServiceExt;

use super::*;

const PORT: u16 = 4711;

async fn answer(request: &[(&str, &str)], method: Method, path: &str) -> Response {
    let token = Token("0123abcd".to_owned());
    let route = |path| Router::new().route(path, get(|| async { "answered" }));
    let routes = AccessControl::new(PORT, token).around(route("/"), route("/changes"));
    let mut built = Request::builder().method(method).uri(path);
    for (name, value) in request {
        built = built.header(*name, *value);
    }
    let request = built.body(Body::empty()).expect("a request");
    routes.oneshot(request).await.expect("an answer")
}

const OWN: (&str, &str) = ("host", "127.0.0.1:4711");
const TOKEN: (&str, &str) = ("authorization", "Bearer 0123abcd");

#[tokio::test]
async fn a_request_with_host_and_token_is_answered() {
    let localhost = ("host", "localhost:4711");
    for host in [OWN, localhost] {
        let answer = answer(&[host, TOKEN], Method::GET, "/changes").await;
        assert_eq!(answer.status(), StatusCode::OK, "{host:?}");
    }
    let page = answer(&[OWN], Method::GET, "/").await;
    assert_eq!(page.status(), StatusCode::OK);
}

#[tokio::test]
async fn another_host_another_method_and_another_token_are_refused() {
    let on_host = async |host: &str, path| {
        let headers = [("host", host), TOKEN];
        answer(&headers, Method::GET, path).await.status()
    };
    for host in [
        "attacker.example:4711",
        "127.0.0.1:80",
        "127.0.0.1",
        "localhost.:4711",
        "",
    ] {
        for path in ["/", "/changes", "/nothing"] {
            let status = on_host(host, path).await;
            assert_eq!(status, StatusCode::MISDIRECTED_REQUEST, "{host} {path}");
        }
    }
    let without = answer(&[TOKEN], Method::GET, "/changes").await;
    assert_eq!(without.status(), StatusCode::MISDIRECTED_REQUEST);
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
        let answer = answer(&[OWN, TOKEN], method.clone(), "/changes").await;
        assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED, "{method}");
        assert_eq!(answer.headers()[ALLOW], "GET, HEAD");
    }
    let sent = [
        "Bearer 0123abce",
        "Bearer 0123abc",
        "Bearer 0123abcd0",
        "Bearer ",
        "0123abcd",
    ];
    for sent in sent {
        let headers = [OWN, ("authorization", sent)];
        let answer = answer(&headers, Method::GET, "/changes").await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{sent}");
    }
    let without = answer(&[OWN], Method::GET, "/changes").await;
    assert_eq!(without.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn every_answer_forbids_scripts_and_requests_of_other_origins() {
    for (headers, path) in [(vec![OWN], "/"), (vec![], "/"), (vec![OWN], "/changes")] {
        let answer = answer(&headers, Method::GET, path).await;
        let policy = answer.headers()[CONTENT_SECURITY_POLICY].to_str();
        let policy = policy.expect("text");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"));
        assert_eq!(answer.headers()[CACHE_CONTROL], "no-store");
    }
}

#[test]
fn tokens_are_long_differ_and_are_not_in_logs() {
    let [one, other] = [(); 2].map(|()| Token::random().expect("random numbers"));
    assert_eq!(one.to_string().len(), 64);
    assert_ne!(one.to_string(), other.to_string());
    assert_eq!(format!("{one:?}"), "Token(..)");
}
