use axum::http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;

/// A cluster with these ConfigMaps in namespace kube-system, by their names.
fn cluster(maps: Value) -> Cluster {
    let service = service_fn(move |request: Request<Body>| {
        let name = request.uri().path().rsplit('/').next().unwrap_or_default();
        let (code, body) = match maps.get(name) {
            Some(data) => (200, json!({"metadata": {"name": name}, "data": data})),
            None => (
                404,
                json!({"status": "Failure", "message": "not found", "code": 404}),
            ),
        };
        async move {
            let response = Response::builder().status(code);
            response.body(Body::from(body.to_string().into_bytes()))
        }
    });
    Cluster::of(Client::new(service, "default"))
}

/// Failure story T440.
#[tokio::test]
async fn t440_the_configuration_of_eks_is_found_beside_its_kubeconfig() {
    let configuration = json!({"config": "kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v1alpha1\n"});
    let kubeconfig = json!({"kubeconfig": "kind: Config\n"});
    let read = async |maps: Value| {
        let read = read_not_carried_over(&cluster(maps)).await;
        read.expect("both may be read")
    };
    let eks = json!({"kube-proxy": kubeconfig, "kube-proxy-config": configuration});
    let notes = read(eks).await.expect("there is a configuration");
    assert_eq!(notes.first().map(|note| note.field.as_str()), Some("mode"));
    let error = read(json!({"kube-proxy": kubeconfig})).await;
    let error = error.expect_err("there is none");
    assert!(advice::next(&error).contains("--config-map"));
    assert!(read(json!({})).await.expect("nothing to read").is_empty());
}
