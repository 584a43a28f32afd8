//! The page's queries to agents: a Service on all nodes, and the path of a packet.

use std::error::Error as StdError;
use std::sync::Arc;

use anyhow::Context;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use runtime::chain;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::advice::{next, problem};
use crate::agent::{Agreement, AskError};
use crate::arguments::{AgentOutput, ExplainOptions, TraceOptions};
use crate::cluster::{Cluster, ClusterError};
use crate::inspect::{self, Comparison};

/// The agents, and the semaphore that serializes queries: each query may contact many agents.
#[derive(Clone)]
struct Agents {
    cluster: Cluster,
    turn: Arc<Semaphore>,
}

/// The query for the differences between kernel and desired state on all nodes, for a Service or an
/// address.
#[derive(Debug, Deserialize)]
struct OnAllNodes {
    about: String,
}

/// The query for the path of a packet.
#[derive(Debug, Deserialize)]
struct Packet {
    from: String,
    to: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    node: String,
}

/// The path of a packet.
#[derive(Debug, Serialize)]
struct Way {
    /// The node whose agent answered.
    node: String,
    /// Whether the rules forward the packet as desired.
    agrees: bool,
    /// The trace as JSON from the agent.
    trace: Value,
}

/// The error response.
#[derive(Debug, Serialize)]
struct Failure {
    error: String,
    /// The next step for the user.
    advice: String,
    #[serde(skip)]
    status: StatusCode,
}

/// Returns the routes of the queries.
pub(super) fn router(cluster: Cluster) -> Router {
    let agents = Agents {
        cluster,
        turn: Arc::new(Semaphore::new(1)),
    };
    Router::new()
        .route("/explain", get(explain))
        .route("/trace", get(trace))
        .with_state(agents)
}

async fn explain(
    State(agents): State<Agents>,
    Query(question): Query<OnAllNodes>,
) -> Result<Json<Comparison>, Failure> {
    let _turn = agents.turn.acquire().await.context("the page has ended")?;
    let options = ExplainOptions {
        about: word(&question.about)?,
        node: None,
        all_nodes: true,
        output: AgentOutput::Text,
    };
    let found = inspect::compare(&agents.cluster, &options).await?;
    Ok(Json(found.compare()))
}

async fn trace(
    State(agents): State<Agents>,
    Query(question): Query<Packet>,
) -> Result<Json<Way>, Failure> {
    let _turn = agents.turn.acquire().await.context("the page has ended")?;
    let given = |text: String| (!text.is_empty()).then_some(text);
    let options = TraceOptions {
        from: word(&question.from)?,
        to: word(&question.to)?,
        namespace: given(question.namespace),
        node: given(question.node),
        output: AgentOutput::Json,
    };
    let (node, answer) = inspect::follow(&agents.cluster, &options).await?;
    let trace = serde_json::from_str(&answer.text);
    Ok(Json(Way {
        agrees: answer.agreement == Agreement::Agrees,
        trace: trace.with_context(|| format!("failed to read the answer of node {node}"))?,
        node,
    }))
}

/// Validates an argument as the command line does: it must not look like a flag to the agent.
fn word(text: &str) -> Result<String, anyhow::Error> {
    const NEXT: &str = "write an object, such as svc/NAME, or an address";
    match text.trim() {
        "" => Err(problem("a field is empty", NEXT).into()),
        flag if flag.starts_with('-') => {
            let what = format!("{flag} is neither an object nor an address");
            Err(problem(what, NEXT).into())
        }
        text => Ok(text.to_owned()),
    }
}

// === impl Failure ===

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        let of_others =
            |cause: &(dyn StdError + 'static)| cause.is::<ClusterError>() || cause.is::<AskError>();
        Failure {
            status: match error.chain().any(of_others) {
                true => StatusCode::BAD_GATEWAY,
                false => StatusCode::UNPROCESSABLE_ENTITY,
            },
            advice: next(&error).to_owned(),
            error: chain(error.as_ref()).to_string(),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(self)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use serde_json::json;
    use tower::{ServiceExt, service_fn};

    use super::*;

    /// Returns the response to a query, in a cluster with one running Pod and no agent.
    async fn ask(path: &str) -> (StatusCode, Value) {
        let api = service_fn(|request: Request<kube::client::Body>| async move {
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"},
                "spec": {"nodeName": "n1", "containers": []},
                "status": {"podIPs": [{"ip": "10.0.1.9"}]},
            });
            let (status, body) = match request.uri().path() {
                "/api/v1/pods" => (200, json!({"metadata": {}, "items": []})),
                "/api/v1/namespaces/shop/pods/client" => (200, pod),
                path => {
                    let missing = json!({
                        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "message": format!("{path} not found"), "reason": "NotFound", "code": 404,
                    });
                    (404, missing)
                }
            };
            let response = axum::http::Response::builder().status(status);
            response.body(Body::from(body.to_string()))
        });
        let client = kube::Client::new(api, "default");
        let routes = router(Cluster::of(client));
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let response = routes.oneshot(request).await.expect("an answer");
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 20)
            .await
            .expect("a body");
        (status, serde_json::from_slice(&body).expect("JSON"))
    }

    #[tokio::test]
    async fn a_question_that_no_agent_can_answer_is_answered_with_the_reason() {
        let (status, answer) = ask("/explain?about=shop/cart").await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(error == "no agent runs", "{answer}");

        let (status, answer) = ask("/trace?from=pod/client&to=10.96.0.10:80&namespace=shop").await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(error == "no agent runs on node n1", "{answer}");

        let (status, answer) = ask("/trace?from=pod/other&to=10.96.0.10:80").await;
        assert_eq!(status, StatusCode::BAD_GATEWAY);
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(
            error.starts_with("failed to read Pod default/other"),
            "{answer}"
        );
        assert!(answer["advice"].is_string(), "{answer}");
    }

    #[tokio::test]
    async fn flags_are_not_passed_to_agents() {
        for path in [
            "/explain?about=--output%3Djson",
            "/explain?about=%20-x",
            "/trace?from=-x&to=10.96.0.10:80",
            "/trace?from=10.0.1.9&to=--help",
            "/explain?about=",
        ] {
            let (status, answer) = ask(path).await;
            assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{path}: {answer}");
            assert!(answer["advice"].is_string(), "{path}: {answer}");
        }
    }
}
