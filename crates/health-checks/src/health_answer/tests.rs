use std::sync::{Arc, Mutex};

use axum::body::Body as HttpBody;
use catalog::Catalog;
use http::Request;
use http_body_util::BodyExt;
use reconciler::{Activity, FamilySync, Outcome, Reason, Report};
use runtime::BuildInfo;
use serde_json::Value;
use tower::ServiceExt;

use super::*;

/// A node, as its Node object says.
#[derive(Debug)]
struct Facts(Mutex<NodeLifecycle>);

impl NodeFacts for Facts {
    fn lifecycle(&self) -> NodeLifecycle {
        *self.0.lock().expect("no test panics while it holds this")
    }

    fn sync_period(&self) -> Duration {
        Duration::from_secs(30)
    }
}

struct Rig {
    facts: Arc<Facts>,
    proxy: ProxyHealth,
    process: Health,
    metrics: Metrics,
    router: Router,
}

fn rig() -> Rig {
    let facts = Arc::new(Facts(Mutex::new(NodeLifecycle::Staying)));
    let (proxy, process) = (ProxyHealth::default(), Health::new());
    let metrics = Metrics::new(&BuildInfo {
        program: "test",
        version: "0",
    });
    let router = router(
        Arc::<Facts>::clone(&facts),
        proxy.clone(),
        process.clone(),
        &metrics,
    );
    Rig {
        facts,
        proxy,
        process,
        metrics,
        router,
    }
}

impl Rig {
    fn program(&self) {
        let now = Instant::now();
        let finished = Family::ALL.map(|family| {
            Arc::new(FamilySync {
                took: Duration::from_secs(1),
                ended: now,
                ..FamilySync::new(family, Reason::Startup, Outcome::Committed)
            })
        });
        self.proxy.reported(&Report {
            activity: Activity::Waiting,
            families: Vec::new(),
            repair_backoff: None,
            finished: finished.into(),
            latencies: Vec::new(),
        });
    }

    async fn ask(&self, path: &str) -> (StatusCode, Value, String) {
        let request = Request::get(path).body(HttpBody::empty());
        let request = request.expect("a request");
        let response = self.router.clone().oneshot(request).await;
        let response = response.expect("routes are infallible");
        let headers = response.headers();
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        let status = response.status();
        let bytes = response.into_body().collect().await.expect("a body");
        let text = String::from_utf8(bytes.to_bytes().to_vec()).expect("text");
        let json = serde_json::from_str(&text).expect("JSON");
        (status, json, text)
    }
}

/// What becomes of a node with this Node object, or without one.
fn lifecycle(node: Option<Value>) -> NodeLifecycle {
    let mut catalog = Catalog::new("node-1");
    catalog.apply(catalog::Event::<catalog::object::Node>::Init);
    if let Some(node) = node {
        let node: catalog::object::Node = serde_json::from_value(node).expect("a Node");
        catalog.apply(catalog::Event::InitApply(node));
    }
    catalog.apply(catalog::Event::<catalog::object::Node>::InitDone);
    catalog
        .node()
        .map_or(NodeLifecycle::Gone, |node| node.lifecycle)
}

impl Rig {
    fn is(&self, lifecycle: NodeLifecycle) {
        *self
            .facts
            .0
            .lock()
            .expect("no test panics while it holds this") = lifecycle;
    }
}

#[tokio::test]
async fn a_node_that_keeps_up_is_described_as_kube_proxy_would() {
    let rig = rig();
    let node = serde_json::json!({"metadata": {"name": "node-1"}});
    rig.is(lifecycle(Some(node)));
    rig.program();
    let (status, json, text) = rig.ask("/healthz").await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert_eq!(json["nodeEligible"], true);
    assert_eq!(json["healthy"], true);
    assert_eq!(json["lastUpdated"], json["currentTime"]);
    assert_eq!(json["status"]["IPv4"]["healthy"], true);
    assert_eq!(
        json["status"]["IPv6"]["lastUpdated"],
        "1970-01-01T00:00:01Z"
    );
    let order = [
        "lastUpdated",
        "currentTime",
        "nodeEligible",
        "healthy",
        "status",
    ];
    let places = order.map(|field| text.find(&format!("\"{field}\":")));
    assert!(places.is_sorted(), "{text}");
    let (status, json, _) = rig.ask("/livez").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(json.get("nodeEligible"), None);
    let scraped = rig.metrics.scrape().expect("metrics encode");
    for line in [
        "kubeproxy_proxy_healthz_total{code=\"200\"} 1\n",
        "kubeproxy_proxy_livez_total{code=\"200\"} 1\n",
    ] {
        assert!(scraped.contains(line), "no {line} in\n{scraped}");
    }
}

/// Failure story T56: kubernetes#83263.
#[tokio::test]
async fn t56_healthz_is_503_before_anything_is_programmed() {
    let rig = rig();
    let (status, json, _) = rig.ask("/healthz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(json["healthy"], false);
    assert_eq!(json["lastUpdated"], NEVER);
    assert_eq!(rig.ask("/livez").await.0, StatusCode::OK);
}

/// Failure story T59: kubernetes#85643.
#[tokio::test]
async fn t59_a_node_that_is_about_to_go_is_healthy_and_gets_no_traffic() {
    let taint =
        serde_json::json!({"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"});
    for node in [
        Some(serde_json::json!({"metadata": {"name": "node-1"}, "spec": {"taints": [taint]}})),
        Some(serde_json::json!({
            "metadata": {"name": "node-1", "deletionTimestamp": "2026-01-02T03:04:05Z"},
        })),
        None,
    ] {
        let rig = rig();
        rig.is(lifecycle(node.clone()));
        rig.program();
        let (status, json, text) = rig.ask("/healthz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{node:?}: {text}");
        assert_eq!(json["nodeEligible"], false);
        assert_eq!(json["healthy"], true);
        assert_eq!(json["lastUpdated"], "1970-01-01T00:00:01Z");
        assert_eq!(rig.ask("/livez").await.0, StatusCode::OK);
    }
}

#[tokio::test(start_paused = true)]
async fn livez_fails_when_work_hangs() {
    let rig = rig();
    rig.program();
    rig.process
        .heartbeat("reconciler", Duration::from_secs(3600))
        .busy();
    tokio::time::advance(Duration::from_secs(300)).await;
    assert_eq!(rig.ask("/livez").await.0, StatusCode::OK);
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert_eq!(rig.ask("/livez").await.0, StatusCode::SERVICE_UNAVAILABLE);
}
