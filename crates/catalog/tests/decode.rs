//! Objects as an API server sends them, and as people write them in manifests.

use std::net::Ipv4Addr;

use catalog::object::{EndpointSlice, Field, Node, Object, Service, ServiceCidr};
use catalog::{Catalog, Event, ObjectKey};
use dataplane::{ServiceKey, ServiceKind};

const SERVICE: &str = r#"{
  "apiVersion": "v1", "kind": "Service",
  "metadata": {
    "annotations": {
      "kubectl.kubernetes.io/last-applied-configuration": "{\"apiVersion\":\"v1\"}\n",
      "cloud.example.org/weights": "{\"a\": [1, 2]}"
    },
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "finalizers": ["service.kubernetes.io/load-balancer-cleanup"],
    "labels": {"app": "cart"},
    "managedFields": [{
      "apiVersion": "v1", "fieldsType": "FieldsV1", "manager": "kubectl-client-side-apply",
      "fieldsV1": {"f:spec": {"f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}}},
      "operation": "Update", "time": "2026-01-01T00:00:00Z"
    }],
    "name": "cart", "namespace": "shop", "resourceVersion": "1234",
    "uid": "7f3c1e0a-8f0b-4f0e-9c64-0d6a4b6a3b52"
  },
  "spec": {
    "allocateLoadBalancerNodePorts": true,
    "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"],
    "externalTrafficPolicy": "Local", "healthCheckNodePort": 31234,
    "internalTrafficPolicy": "Cluster",
    "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
    "ports": [{"appProtocol": "http", "name": "http", "nodePort": 30080, "port": 80, "protocol": "TCP", "targetPort": "web"}],
    "selector": {"app": "cart"},
    "sessionAffinity": "None", "type": "LoadBalancer",
    "aFieldOfTheFuture": {"of": ["any", "shape"]}
  },
  "status": {
    "conditions": [{"type": "x", "status": "True"}],
    "loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP", "ports": [{"port": 80, "protocol": "TCP"}]}]}
  }
}"#;

const SLICE: &str = r#"{
  "addressType": "IPv4", "apiVersion": "discovery.k8s.io/v1",
  "endpoints": [{
    "addresses": ["10.0.1.5"],
    "conditions": {"ready": true, "serving": true, "terminating": false},
    "nodeName": "node-1",
    "targetRef": {"kind": "Pod", "name": "cart-0", "namespace": "shop", "uid": "0b1e"},
    "zone": "zone-a"
  }],
  "kind": "EndpointSlice",
  "metadata": {
    "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:07Z"},
    "creationTimestamp": "2026-01-01T00:00:00Z", "generateName": "cart-", "generation": 3,
    "labels": {
      "app": "cart",
      "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
      "kubernetes.io/service-name": "cart"
    },
    "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": {"f:endpoints": {}}}],
    "name": "cart-x7k2p", "namespace": "shop",
    "ownerReferences": [{"apiVersion": "v1", "blockOwnerDeletion": true, "controller": true, "kind": "Service", "name": "cart", "uid": "7f3c"}],
    "resourceVersion": "1300", "uid": "c0ffee"
  },
  "ports": [{"appProtocol": "http", "name": "http", "port": 8080, "protocol": "TCP"}]
}"#;

const NODE: &str = r#"{
  "apiVersion": "v1", "kind": "Node",
  "metadata": {
    "labels": {"kubernetes.io/os": "linux", "topology.kubernetes.io/zone": "zone-a"},
    "name": "node-1", "resourceVersion": "9", "uid": "abc"
  },
  "spec": {"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24"], "taints": [{"effect": "NoSchedule", "key": "dedicated", "value": "x"}]},
  "status": {
    "addresses": [{"address": "192.168.0.1", "type": "InternalIP"}, {"address": "node-1", "type": "Hostname"}],
    "capacity": {"cpu": "2"}, "images": [{"names": ["a"], "sizeBytes": 123456789}]
  }
}"#;

const SERVICE_CIDR: &str = r#"{
  "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
  "metadata": {"name": "kubernetes", "finalizers": ["networking.k8s.io/service-cidr-finalizer"]},
  "spec": {"cidrs": ["10.96.0.0/16", "fd00:10:96::/112"]},
  "status": {"conditions": [{"type": "Ready", "status": "True"}]}
}"#;

/// Decodes as a caller would that uses these types with its own client library.
fn decoded<T: Object + for<'de> serde::Deserialize<'de>>(json: &str) -> T {
    serde_json::from_str(json).expect("an API server sends this")
}

#[test]
fn what_an_api_server_sends_is_read() {
    let mut catalog = Catalog::new("node-1");
    catalog.apply(Event::Apply(decoded::<Service>(SERVICE)));
    catalog.apply(Event::Apply(decoded::<EndpointSlice>(SLICE)));
    catalog.apply(Event::Apply(decoded::<Node>(NODE)));
    catalog.apply(Event::Apply(decoded::<ServiceCidr>(SERVICE_CIDR)));

    assert_eq!(catalog.rejections().count(), 0);
    let view = catalog
        .service(&ServiceKey::new("shop", "cart"))
        .expect("served");
    assert_eq!(view.service.kind, ServiceKind::LoadBalancer);
    assert_eq!(
        view.service.cluster_ipv4,
        Some(Ipv4Addr::new(10, 96, 0, 10))
    );
    assert_eq!(view.service.load_balancer_ips.len(), 1);
    let endpoints: Vec<String> = view
        .endpoints
        .by_port
        .values()
        .flatten()
        .map(|endpoint| format!("{}:{}", endpoint.address, endpoint.port))
        .collect();
    assert_eq!(endpoints, ["10.0.1.5:8080"]);
    let node = catalog.node().expect("the agent's own");
    assert_eq!(node.zone.as_deref(), Some("zone-a"));
    assert_eq!(node.labels.len(), 2);
    assert_eq!(catalog.service_cidrs().len(), 2);
}

#[test]
fn metadata_holds_what_a_watch_needs() {
    let slice: EndpointSlice = decoded(SLICE);
    let metadata = slice.metadata();
    assert_eq!(metadata.resource_version.as_deref(), Some("1300"));
    assert_eq!(metadata.uid.as_deref(), Some("c0ffee"));
    assert_eq!(
        metadata.creation_timestamp.as_deref(),
        Some("2026-01-01T00:00:00Z")
    );
    assert_eq!(slice.key(), ObjectKey::namespaced("shop", "cart-x7k2p"));
    let service: Service = decoded(SERVICE);
    assert!(
        service.metadata.annotations.is_empty(),
        "no reader needs them"
    );
}

#[test]
fn only_a_wrong_shape_fails_an_object() {
    let odd =
        r#"{"metadata": {"name": "s"}, "spec": {"ports": [{"port": "eighty"}], "clusterIP": 7}}"#;
    let odd: Service = decoded(odd);
    assert_eq!(odd.spec.ports[0].port, Field::Odd("\"eighty\"".to_owned()));
    assert_eq!(odd.spec.cluster_ip, Field::Odd("7".to_owned()));

    let shapes = [
        r#"{"spec": {}}"#,
        r#"{"metadata": {}}"#,
        r#"{"metadata": ["s"]}"#,
        r#"{"metadata": {"name": "s"}, "spec": []}"#,
        r#"{"metadata": {"name": "s"}, "spec": {"ports": {"port": 80}}}"#,
        r#"{"metadata": {"name": "s"}, "spec": {"ports": [["http", "TCP", 80]]}}"#,
        r#"{"metadata": {"name": "s"}, "spec": {"ports": [null]}}"#,
    ];
    for shape in shapes {
        assert!(serde_json::from_str::<Service>(shape).is_err(), "{shape}");
    }
}

#[test]
fn files_are_read_as_people_write_them() {
    let yaml = "
metadata:
  name: cart
  labels: {version: 2, canary: true}
spec:
  clusterIP: None
  ports:
  - port: 80
";
    let headless: Service = serde_saphyr::from_str(yaml).expect("valid YAML");
    assert_eq!(headless.spec.cluster_ip, Field::from("None"));
    assert_eq!(headless.spec.ports[0].port, Field::Given(80));
    assert_eq!(headless.metadata.labels["canary"], "true");
    assert_eq!(headless.key(), ObjectKey::namespaced("default", "cart"));

    let yaml = "
metadata: {name: cart-1, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
- addresses: [10.0.1.5]
  conditions: {ready: true}
- addresses: ~
  hints: ~
";
    let slice: EndpointSlice = serde_saphyr::from_str(yaml).expect("valid YAML");
    assert_eq!(slice.endpoints[0].conditions.ready, Field::Given(true));
    assert_eq!(slice.endpoints[1].addresses, []);
}
