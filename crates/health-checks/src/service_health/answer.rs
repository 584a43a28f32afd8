//! The answer to a load balancer's health check of one Service, in the form of kube-proxy
//! (pkg/proxy/healthcheck/service_health.go).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use dataplane::ServiceKey;
use http::{StatusCode, header};

use crate::health_answer::patience;
use crate::{NodeFacts, ProxyHealth};

/// The header for load balancers with weights: how much traffic a node should get relative to
/// others.
const WEIGHT: &str = "x-load-balancing-endpoint-weight";

/// Determines whether this node's kernel keeps up with the desired state. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct HealthSource {
    facts: Arc<dyn NodeFacts>,
    proxy: ProxyHealth,
}

/// One Service that load balancers check.
#[derive(Debug, Clone)]
struct Subject {
    service: ServiceKey,
    local_endpoints: Arc<AtomicUsize>,
    judge: HealthSource,
}

// === impl HealthSource ===

impl HealthSource {
    pub(super) fn new(facts: Arc<dyn NodeFacts>, proxy: ProxyHealth) -> HealthSource {
        HealthSource { facts, proxy }
    }

    /// Answers every path: 200 if `service` has endpoints on this node and the kernel keeps up,
    /// otherwise 503.
    pub(super) fn router(&self, service: ServiceKey, local_endpoints: Arc<AtomicUsize>) -> Router {
        Router::new().fallback(answer).with_state(Subject {
            service,
            local_endpoints,
            judge: self.clone(),
        })
    }

    fn keeps_up(&self) -> bool {
        let patience = patience(&*self.facts);
        self.proxy
            .node_health(patience, Instant::now())
            .is_healthy()
    }
}

async fn answer(State(subject): State<Subject>) -> Response {
    let local_endpoints = subject.local_endpoints.load(Ordering::Relaxed);
    let healthy = subject.judge.keeps_up();
    let status = match local_endpoints != 0 && healthy {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let headers = [
        (header::CONTENT_TYPE.as_str(), "application/json".to_owned()),
        (
            header::X_CONTENT_TYPE_OPTIONS.as_str(),
            "nosniff".to_owned(),
        ),
        (WEIGHT, local_endpoints.to_string()),
    ];
    let body = body(&subject.service, local_endpoints, healthy);
    (status, headers, body).into_response()
}

/// Equal to kube-proxy's body byte for byte, because some load balancers compare it.
fn body(service: &ServiceKey, local_endpoints: usize, healthy: bool) -> String {
    let ServiceKey { namespace, name } = service;
    format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{namespace}\",\n\t\t\"name\": \"{name}\"\n\t}},\n\
         \t\"localEndpoints\": {local_endpoints},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_is_that_of_kube_proxy() {
        let expected = "{
\t\"service\": {
\t\t\"namespace\": \"shop\",
\t\t\"name\": \"cart\"
\t},
\t\"localEndpoints\": 3,
\t\"serviceProxyHealthy\": true
}";
        assert_eq!(body(&ServiceKey::new("shop", "cart"), 3, true), expected);
    }
}
