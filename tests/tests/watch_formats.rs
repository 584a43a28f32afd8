//! What the agent reads from a real API server is the same in protobuf and in JSON: in a list in one answer, in a
//! streamed and in a paged one, and of what happens after.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use catalog::object::{EndpointSlice, Object, Service};
use catalog::{Change, Event, ObjectKey};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use runtime::CancellationToken;
use serde_json::{Value, json};
use source::{Delivery, SourceCondition};
use tests::control_plane::{self, ADMINISTRATOR, ControlPlane, Options, User};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// Everything here takes a second; the rest is a reserve for busy machines.
const DEADLINE: Duration = Duration::from_secs(60);
/// The name of the Service and the EndpointSlice created last.
const LAST: &str = "the-last";

/// Services and EndpointSlices with every field that the agent reads, and with as few fields as
/// possible.
const OBJECTS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata:
  name: everything
  namespace: shop
  finalizers: [signpost.dev/test]
  labels: {app: web, empty: ""}
  annotations:
    signpost.dev/scheduler: rr
    endpoints.kubernetes.io/last-change-trigger-time: "2026-01-02T03:04:05Z"
    not-read: "ä\n"
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv6, IPv4]
  externalIPs: [192.0.2.1, "2001:db8::1"]
  loadBalancerSourceRanges: [198.51.100.0/24, "2001:db8:1::/64"]
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 77}}
  ports:
  - {name: http, port: 80, targetPort: web, appProtocol: kubernetes.io/h2c}
  - {name: dns, port: 53, protocol: UDP, nodePort: 30053}
---
apiVersion: v1
kind: Service
metadata: {name: little, namespace: shop}
spec: {ports: [{port: 1}]}
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere, namespace: shop}
spec: {type: ExternalName, externalName: example.com}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: everything
  namespace: shop
  labels: {kubernetes.io/service-name: everything}
  annotations: {endpoints.kubernetes.io/last-change-trigger-time: "2026-01-02T03:04:05Z"}
addressType: IPv4
ports:
- {name: http, port: 8080, appProtocol: http}
- {name: "", port: 53, protocol: UDP}
endpoints:
- addresses: [10.0.0.1]
  nodeName: node-1
  zone: a
  hostname: one
  conditions: {ready: true, serving: true, terminating: false}
  hints: {forZones: [{name: a}]}
  targetRef: {kind: Pod, name: one, namespace: shop}
- addresses: [10.0.0.2]
  conditions: {ready: false, serving: false, terminating: true}
- addresses: [10.0.0.3]
  conditions: {serving: true}
- addresses: [10.0.0.4]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: little, namespace: shop}
addressType: IPv6
endpoints: [{addresses: ["2001:db8::2"]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: names, namespace: shop}
addressType: FQDN
endpoints: [{addresses: [example.com]}]
ports: []
"#;

/// Another object of each kind.
const THE_LAST: &str = "
apiVersion: v1
kind: Service
metadata: {name: the-last, namespace: shop}
spec: {ports: [{port: 9}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: the-last, namespace: shop}
addressType: IPv4
endpoints: []
";

/// The parameters of requests to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way {
    format: Format,
    list: List,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    AsAgentsAsk,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    Whole,
    /// Lists in one answer seem to be cut.
    Streamed,
    /// And the API server seems not to stream lists.
    Paged,
}

/// The content types of the responses about Services and EndpointSlices.
type Types = Arc<Mutex<BTreeSet<String>>>;

/// The existing objects.
type Lists = (
    BTreeMap<ObjectKey, Service>,
    BTreeMap<ObjectKey, EndpointSlice>,
);

/// The events of Services, and those of EndpointSlices.
type Events = (Vec<Event<Service>>, Vec<Event<EndpointSlice>>);

/// Reads from the API server with given parameters.
struct Reader {
    way: Way,
    deliveries: mpsc::Receiver<Delivery>,
    types: Types,
}

const WAYS: [Way; 6] = [
    Way {
        format: Format::AsAgentsAsk,
        list: List::Whole,
    },
    Way {
        format: Format::AsAgentsAsk,
        list: List::Streamed,
    },
    Way {
        format: Format::AsAgentsAsk,
        list: List::Paged,
    },
    Way {
        format: Format::Json,
        list: List::Whole,
    },
    Way {
        format: Format::Json,
        list: List::Streamed,
    },
    Way {
        format: Format::Json,
        list: List::Paged,
    },
];

#[tokio::test]
async fn an_object_is_the_same_in_protobuf_and_in_json() -> Result<()> {
    let control_plane = ControlPlane::start(Options::default())?;
    control_plane.apply(OBJECTS)?;
    let status = json!({"status": {"loadBalancer": {"ingress": [
        {"ip": "192.0.2.2", "ipMode": "Proxy"},
        {"ip": "192.0.2.3", "ipMode": "VIP", "ports": [{"port": 80, "protocol": "TCP"}]},
        {"hostname": "balancer.example.com"},
    ]}}});
    control_plane.patch_status("service/everything", "shop", &status.to_string())?;
    let kubeconfig = control_plane.kubeconfig(ADMINISTRATOR)?;
    let mut readers = Vec::new();
    let mut lists = Vec::new();
    for way in WAYS {
        let mut reader = Reader::start(&kubeconfig, way).await?;
        lists.push(reader.list().await?);
        readers.push(reader);
    }

    let shop = "--namespace=shop";
    let relabel = ["label", "service", "little", shop, "more=yes"];
    control_plane.kubectl(&relabel)?;
    control_plane.kubectl(&["delete", "endpointslice", "little", shop])?;
    // Its finalizer keeps it, with a deletion timestamp.
    let delete = ["delete", "service", "everything", shop, "--wait=false"];
    control_plane.kubectl(&delete)?;
    control_plane.kubectl(&["delete", "service", "elsewhere", shop])?;
    control_plane.apply(THE_LAST)?;
    let mut events = Vec::new();
    for reader in &mut readers {
        events.push(reader.until_the_last().await?);
    }

    for (way, (list, events_of)) in WAYS.iter().zip(lists.iter().zip(&events)) {
        assert_eq!(list, &lists[0], "{way:?}");
        assert_eq!(events_of, &events[0], "{way:?}");
    }
    let list = format!("{:?}", lists[0]);
    for read in [
        "192.0.2.3",
        "signpost.dev/scheduler",
        "30053",
        "timeout_seconds: Given(77)",
    ] {
        assert!(list.contains(read), "no {read} in {list}");
    }
    let events = format!("{:?}", events[0]);
    assert!(events.contains("deletion_timestamp: Some("), "{events}");
    for (way, reader) in WAYS.iter().zip(&readers) {
        let types = lock(&reader.types);
        let expected: &[&str] = match way {
            Way {
                format: Format::Json,
                ..
            } => &["application/json"],
            Way {
                list: List::Streamed,
                ..
            } => &["application/vnd.kubernetes.protobuf;stream=watch"],
            Way {
                list: List::Whole | List::Paged,
                ..
            } => &[
                "application/vnd.kubernetes.protobuf",
                "application/vnd.kubernetes.protobuf;stream=watch",
            ],
        };
        assert!(types.iter().eq(expected), "{way:?}: {types:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_refusal_is_the_same_in_protobuf_and_in_json() -> Result<()> {
    let control_plane = ControlPlane::start(Options {
        users: vec![User::named("alice")],
        ..Options::default()
    })?;
    let kubeconfig = control_plane.kubeconfig("alice")?;
    for way in WAYS {
        let mut reader = Reader::start(&kubeconfig, way).await?;
        let refusal = "the API server answered 403 Forbidden: endpointslices.discovery.k8s.io is \
                       forbidden: User \"alice\" cannot";
        let reported = async {
            while let Some(delivery) = reader.deliveries.recv().await {
                if let Delivery::Condition(SourceCondition::Stale { message, .. }) = delivery
                    && message.contains(refusal)
                {
                    return Ok(());
                }
            }
            Err(anyhow!("the source has ended"))
        };
        timeout(DEADLINE, reported)
            .await
            .with_context(|| format!("{way:?}: not {refusal:?}"))??;
    }
    Ok(())
}

fn lock(types: &Types) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
    types.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Way ===

impl Way {
    /// Modifies `request`, or returns the response if it is not sent.
    fn change(self, mut request: Request<Body>) -> Result<Request<Body>, Box<Response<Body>>> {
        let query = request.uri().query().unwrap_or_default();
        let is_whole = !query.contains("watch=true") && !query.contains("limit=");
        if self.list != List::Whole && is_whole {
            return Err(Box::new(Response::new(Body::from(b"{".to_vec()))));
        }
        if self.list == List::Paged && query.contains("sendInitialEvents") {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422,
                "reason": "Invalid", "message": "sendInitialEvents is forbidden",
            });
            let mut refusal = Response::new(Body::from(status.to_string().into_bytes()));
            *refusal.status_mut() = http::StatusCode::UNPROCESSABLE_ENTITY;
            return Err(Box::new(refusal));
        }
        if self.format == Format::Json {
            let json = HeaderValue::from_static("application/json");
            request.headers_mut().insert(ACCEPT, json);
        }
        Ok(request)
    }

    /// Returns a client that makes requests with these parameters.
    fn client(self, inner: Client, types: Types) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let (inner, types) = (inner.clone(), types.clone());
            async move {
                let path = request.uri().path().to_owned();
                let request = match self.change(request) {
                    Ok(request) => request,
                    Err(answer) => return Ok(*answer),
                };
                let answer = inner.send(request).await?;
                if path.ends_with("/services") || path.ends_with("/endpointslices") {
                    let kind = answer.headers().get(CONTENT_TYPE);
                    let kind = kind.map_or(&b"none"[..], HeaderValue::as_bytes);
                    lock(&types).insert(String::from_utf8_lossy(kind).into_owned());
                }
                Ok::<_, kube::Error>(answer)
            }
        });
        Client::new(service, "default")
    }
}

// === impl Reader ===

impl Reader {
    async fn start(kubeconfig: &Path, way: Way) -> Result<Reader> {
        let inner = control_plane::client(kubeconfig).await?;
        let types = Types::default();
        let client = way.client(inner, types.clone());
        let (sender, deliveries) = mpsc::channel(64);
        let stop = CancellationToken::new();
        tokio::spawn(source::kubernetes::watch(
            client,
            "node-1".to_owned(),
            sender,
            watch::Sender::new(Value::Null),
            stop,
        ));
        Ok(Reader {
            way,
            deliveries,
            types,
        })
    }

    async fn next(&mut self) -> Result<Delivery> {
        let delivery = timeout(DEADLINE, self.deliveries.recv()).await;
        delivery
            .context("nothing is delivered in time")?
            .context("the source has ended")
    }

    /// Returns the existing Services and EndpointSlices.
    async fn list(&mut self) -> Result<Lists> {
        let (mut services, mut slices) = Lists::default();
        loop {
            match self.next().await? {
                Delivery::Condition(SourceCondition::Fresh) => return Ok((services, slices)),
                Delivery::Condition(SourceCondition::Stale { .. })
                    if self.way.list != List::Whole => {}
                Delivery::Condition(other) => return Err(anyhow!("{other:?}")),
                Delivery::Objects(Change::Service(event)) => {
                    if let Event::InitApply(service) = *event {
                        services.insert(service.key(), service);
                    }
                }
                Delivery::Objects(Change::EndpointSlice(event)) => {
                    if let Event::InitApply(slice) = *event {
                        slices.insert(slice.key(), slice);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the events of Services and those of EndpointSlices, until the last object of each
    /// kind appears.
    async fn until_the_last(&mut self) -> Result<Events> {
        let (mut services, mut slices) = Events::default();
        let (mut last_service, mut last_slice) = (false, false);
        while !(last_service && last_slice) {
            match self.next().await? {
                Delivery::Objects(Change::Service(event)) => {
                    last_service |= matches!(&*event, Event::Apply(o) if o.metadata.name == LAST);
                    services.push(*event);
                }
                Delivery::Objects(Change::EndpointSlice(event)) => {
                    last_slice |= matches!(&*event, Event::Apply(o) if o.metadata.name == LAST);
                    slices.push(*event);
                }
                _ => {}
            }
        }
        Ok((services, slices))
    }
}
