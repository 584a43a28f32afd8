//! Makes the writes of a plan.

use std::time::Duration;

use crds::{
    node_proxy::{NodeProxy, NodeProxySpec},
    profile::{ProxyProfile, status::ProxyProfileStatus},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    core::{ApiResource, DynamicObject},
};
use runtime::apply_status;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    baseline::Baseline,
    fleet::{self, Action, Event, ObjectChange},
    leader_elector::Leadership,
    profile_events::ProfileEventRecorder,
    records::{
        BASELINE_ANNOTATION, NodeProxyRecord, PREVIOUS_ANNOTATION, ProfileRecord,
        SPEC_FIELD_MANAGER, STATUS_FIELD_MANAGER, SharedSpecs,
    },
};

/// Writes the operator's objects.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    profiles: Api<DynamicObject>,
    proxies: Api<DynamicObject>,
    events: ProfileEventRecorder,
    leadership: Leadership,
}

/// The result of a write that the API server answered.
#[derive(Clone, Debug)]
pub(crate) enum Written {
    /// The object is as written.
    Applied(Event),
    /// Nothing was written: the object is gone, or has changed since the plan. Its watch will report
    /// it.
    Conflict,
}

/// A write that failed, or whose result is unknown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The API server rejected the write or could not be reached.
    #[error("failed to write {kind} {name}")]
    Request {
        kind: &'static str,
        name: String,
        source: kube::Error,
    },
    /// The API server did not answer in time.
    #[error("no answer within {limit:?} to the write of {kind} {name}")]
    NoAnswer {
        kind: &'static str,
        name: String,
        limit: Duration,
    },
    /// The operator has not renewed its lease in time, because its process was stopped.
    /// Another operator may be the leader.
    #[error("did not write {kind} {name}: the lease has not been renewed in time")]
    LeadershipExpired { kind: &'static str, name: String },
}

/// The API server's own limit for requests other than watches is too long to block the other
/// writes.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The resource version to create an object with, which no object has: it is the revision of an
/// empty etcd. To apply an object with this version creates it, or is a conflict if it exists. A
/// POST would do the same, but as another kind of manager, whose fields no later apply removes.
const NO_OBJECT: &str = "1";

// === impl Writer ===

impl Writer {
    /// Writes with `client` as the operator instance `identity` during its `leadership`.
    pub(crate) fn new(client: &Client, identity: &str, leadership: Leadership) -> Self {
        Self {
            profiles: Api::all_with(client.clone(), &ApiResource::erase::<ProxyProfile>(&())),
            proxies: Api::all_with(client.clone(), &ApiResource::erase::<NodeProxy>(&())),
            events: ProfileEventRecorder::new(client.clone(), identity),
            leadership,
        }
    }

    /// Makes the write `action`.
    pub(crate) async fn commit(&self, action: &Action) -> Result<Written, WriteError> {
        let (kind, name) = action.object();
        if self.leadership.has_expired() {
            let name = name.to_owned();
            return Err(WriteError::LeadershipExpired { kind, name });
        }
        match timeout(WRITE_TIMEOUT, self.request(action)).await {
            Ok(Ok(event)) => {
                // The status is written, also if its Events cannot be.
                timeout(WRITE_TIMEOUT, self.record_events(action, &event))
                    .await
                    .ok();
                Ok(Written::Applied(event))
            }
            Ok(Err(kube::Error::Api(status))) if is_conflict(action, status.code) => {
                Ok(match (action, status.code) {
                    // Its watch may fail for long.
                    (Action::Delete { node, .. } | Action::Assign { node, .. }, 404) => {
                        Written::Applied(Event::Proxy(ObjectChange::Deleted(node.clone())))
                    }
                    _ => Written::Conflict,
                })
            }
            Ok(Err(source)) => Err(WriteError::Request {
                kind,
                name: name.to_owned(),
                source,
            }),
            Err(_) => Err(WriteError::NoAnswer {
                kind,
                name: name.to_owned(),
                limit: WRITE_TIMEOUT,
            }),
        }
    }

    async fn record_events(&self, action: &Action, written: &Event) {
        if let (Action::UpdateStatus { before, status, .. }, Event::Reported { record, .. }) =
            (action, written)
        {
            let before = before.as_deref();
            self.events.record(&record.profile, before, status).await;
        }
    }

    async fn request(&self, action: &Action) -> Result<Event, kube::Error> {
        match action {
            Action::UpdateStatus {
                profile,
                status,
                version,
                ..
            } => {
                let resource = ApiResource::erase::<ProxyProfile>(&());
                let body = render_status(profile, status, version.as_deref());
                let client = &self.profiles.clone().into_client();
                let written =
                    apply_status(client, &resource, profile, STATUS_FIELD_MANAGER, body).await?;
                Ok(Event::Reported {
                    record: Box::new(ProfileRecord::parse(written.object)),
                    unknown_fields: written.left_out,
                })
            }
            Action::Assign {
                node,
                owner,
                spec,
                previous,
                baseline,
                version,
            } => {
                let parameters = PatchParams::apply(SPEC_FIELD_MANAGER).force();
                let annotations = render_annotations(previous.as_deref(), baseline.as_ref());
                let mut assignment = render_assignment(node, owner, spec, annotations);
                let version = version.as_deref().unwrap_or(NO_OBJECT);
                assignment["metadata"]["resourceVersion"] = version.into();
                let written = self
                    .proxies
                    .patch(node, &parameters, &Patch::Apply(assignment))
                    .await?;
                Ok(Event::Proxy(ObjectChange::Applied(Box::new(
                    NodeProxyRecord::parse(written, &mut SharedSpecs::default()),
                ))))
            }
            Action::MarkUnknown {
                node,
                ready,
                version,
            } => {
                let unknown = json!({
                    "apiVersion": "signpost.dev/v1alpha1",
                    "kind": "NodeProxy",
                    "metadata": {"name": node, "resourceVersion": version},
                    "status": {"conditions": [ready]},
                });
                let parameters = PatchParams::apply(STATUS_FIELD_MANAGER).force();
                let written = self
                    .proxies
                    .patch_status(node, &parameters, &Patch::Apply(unknown))
                    .await?;
                Ok(Event::Proxy(ObjectChange::Applied(Box::new(
                    NodeProxyRecord::parse(written, &mut SharedSpecs::default()),
                ))))
            }
            Action::Delete { node, uid, version } => {
                let preconditions = Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: version.clone(),
                };
                let parameters = DeleteParams {
                    preconditions: Some(preconditions),
                    ..DeleteParams::default()
                };
                let answer = self.proxies.delete(node, &parameters).await?;
                let rest = answer
                    .left()
                    .map(|object| NodeProxyRecord::parse(object, &mut SharedSpecs::default()))
                    .filter(|record| !record.pending_finalizers.is_empty());
                Ok(Event::Proxy(match rest {
                    Some(record) => ObjectChange::Applied(Box::new(record)),
                    None => ObjectChange::Deleted(node.clone()),
                }))
            }
        }
    }
}

/// Whether the answer means that the object of the plan no longer exists, was created meanwhile or
/// was replaced: not found, or a conflict with the version or UID in the plan. Its watch reports
/// the present object.
fn is_conflict(action: &Action, code: u16) -> bool {
    match action {
        // Without its definition, the kind itself is not found.
        Action::Assign { version: None, .. } => code == 409,
        Action::UpdateStatus { .. }
        | Action::Delete { .. }
        | Action::Assign { .. }
        | Action::MarkUnknown { .. } => matches!(code, 404 | 409),
    }
}

fn render_status(profile: &str, status: &ProxyProfileStatus, version: Option<&str>) -> Value {
    json!({
        "apiVersion": "signpost.dev/v1alpha1",
        "kind": "ProxyProfile",
        "metadata": {"name": profile, "resourceVersion": version},
        "status": status,
    })
}

fn render_assignment(node: &str, owner: &str, spec: &NodeProxySpec, annotations: Value) -> Value {
    let labels: serde_json::Map<String, Value> = fleet::labels(node, spec)
        .map(|(label, value)| (label.to_owned(), value.into()))
        .collect();
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: owner.to_owned(),
        ..OwnerReference::default()
    };
    json!({
        "apiVersion": "signpost.dev/v1alpha1",
        "kind": "NodeProxy",
        "metadata": {
            "name": node, "labels": labels, "ownerReferences": [owner], "annotations": annotations,
        },
        "spec": spec,
    })
}

/// The API server removes the annotations that are left out.
fn render_annotations(previous: Option<&NodeProxySpec>, baseline: Option<&Baseline>) -> Value {
    let previous = previous.and_then(|previous| serde_json::to_string(previous).ok());
    let baseline = baseline.and_then(|baseline| serde_json::to_string(baseline).ok());
    let annotations = [
        (PREVIOUS_ANNOTATION, previous),
        (BASELINE_ANNOTATION, baseline),
    ];
    annotations
        .into_iter()
        .filter_map(|(key, text)| Some((key.to_owned(), Value::from(text?))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use tower::service_fn;

    use super::*;

    /// An API server that answers a write of a NodeProxy as kube-apiserver 1.36 does: with a conflict
    /// if the object exists in another version than the write says.
    fn api_server(existing: Option<&'static str>) -> Client {
        let service = service_fn(move |request: Request<Body>| async move {
            let body = request.into_body().collect_bytes().await?;
            let mut sent: Value = serde_json::from_slice(&body)?;
            let version = sent["metadata"]["resourceVersion"].as_str();
            let is_taken = existing.is_some_and(|known| version.is_some_and(|v| v != known));
            sent["metadata"]["resourceVersion"] = "8".into();
            let (code, answer) = if is_taken {
                let status =
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 409});
                (409, status)
            } else {
                (200, sent)
            };
            let response = Response::builder().status(code);
            Ok::<_, tower::BoxError>(response.body(Body::from(answer.to_string().into_bytes()))?)
        });
        Client::new(service, "default")
    }

    fn assignment(version: Option<&str>) -> Action {
        Action::Assign {
            node: "n1".to_owned(),
            owner: "uid".to_owned(),
            spec: std::sync::Arc::default(),
            previous: None,
            baseline: None,
            version: version.map(str::to_owned),
        }
    }

    /// Failure story T213. Another operator has created the object since, and changed it.
    #[tokio::test]
    async fn t213_a_late_creation_does_not_replace_what_was_created_meanwhile() {
        let write = async |existing, version| {
            let writer = Writer::new(&api_server(existing), "a", Leadership::endless());
            writer
                .commit(&assignment(version))
                .await
                .map(|written| matches!(written, Written::Applied(_)))
        };
        assert!(matches!(write(None, None).await, Ok(true)));
        assert!(matches!(write(Some("7"), None).await, Ok(false)));
        assert!(matches!(write(Some("7"), Some("6")).await, Ok(false)));
        assert!(matches!(write(Some("7"), Some("7")).await, Ok(true)));
    }

    /// Failure story T401. Another program has put a finalizer on the object.
    #[tokio::test]
    async fn t401_an_object_whose_deletion_waits_is_still_there() {
        let answers = [
            json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
            json!({
                "kind": "NodeProxy", "apiVersion": "signpost.dev/v1alpha1",
                "metadata": {
                    "name": "n1", "uid": "u", "resourceVersion": "9", "finalizers": ["example.com/wait"],
                    "deletionTimestamp": "2026-01-01T00:00:00Z",
                },
            }),
        ];
        for (answer, finalizers) in answers.into_iter().zip([None, Some("example.com/wait")]) {
            let service = service_fn(move |_: Request<Body>| {
                let body = Body::from(answer.to_string().into_bytes());
                async move { Ok::<_, tower::BoxError>(Response::new(body)) }
            });
            let writer = Writer::new(&Client::new(service, "default"), "a", Leadership::endless());
            let delete = Action::Delete {
                node: "n1".to_owned(),
                uid: "u".to_owned(),
                version: Some("8".to_owned()),
            };
            let written = writer.commit(&delete).await;
            let Ok(Written::Applied(Event::Proxy(change))) = written else {
                panic!("{written:?}");
            };
            match (change, finalizers) {
                (ObjectChange::Deleted(node), None) => assert_eq!(node, "n1"),
                (ObjectChange::Applied(record), Some(finalizer)) => {
                    assert_eq!(record.pending_finalizers, [finalizer]);
                }
                (change, _) => panic!("{change:?} with {finalizers:?}"),
            }
        }
    }
}
