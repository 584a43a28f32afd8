use std::convert::Infallible;
use std::io;

use http::StatusCode;
use tower::{ServiceExt, service_fn};

use super::*;
use crate::metrics::BuildInfo;

fn registered() -> (Metrics, RestClientMetrics) {
    let metrics = Metrics::new(&BuildInfo {
        program: "test",
        version: "0",
    });
    let rest = RestClientMetrics::register(&metrics);
    (metrics, rest)
}

fn request(method: Method) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = method;
    request
}

#[track_caller]
fn assert_sample(metrics: &Metrics, line: &str) {
    let text = metrics.scrape().expect("metrics encode");
    assert!(
        text.lines().any(|found| found == line),
        "no {line} in\n{text}"
    );
}

#[tokio::test]
async fn answers_count_by_code_and_method() {
    let (metrics, rest) = registered();
    let server = service_fn(|request: Request<()>| async move {
        let mut response = Response::new(());
        if request.method() == Method::PATCH {
            *response.status_mut() = StatusCode::CONFLICT;
        }
        Ok::<_, Infallible>(response)
    });
    let client = rest.layer("10.96.0.1:443").layer(server);
    for method in [Method::GET, Method::GET, Method::PATCH] {
        client
            .clone()
            .oneshot(request(method))
            .await
            .expect("the server is infallible");
    }
    assert_sample(
        &metrics,
        r#"rest_client_requests_total{code="200",method="GET",host="10.96.0.1:443"} 2"#,
    );
    assert_sample(
        &metrics,
        r#"rest_client_requests_total{code="409",method="PATCH",host="10.96.0.1:443"} 1"#,
    );
    assert_sample(
        &metrics,
        r#"rest_client_request_duration_seconds_count{verb="GET",host="10.96.0.1:443"} 2"#,
    );
}

#[tokio::test]
async fn no_answer_counts_as_an_error_and_reaches_the_caller() {
    let (metrics, rest) = registered();
    let server = service_fn(|_: Request<()>| async {
        Err::<Response<()>, _>(io::Error::other("unplugged"))
    });
    let client = rest.layer("h").layer(server);
    let error = client
        .oneshot(request(Method::GET))
        .await
        .expect_err("the server is unplugged");
    assert_eq!(error.to_string(), "unplugged");
    assert_sample(
        &metrics,
        r#"rest_client_requests_total{code="<error>",method="GET",host="h"} 1"#,
    );
}
