//! What an API server stores, and its return to an earlier state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams};
use kube::discovery::{Discovery, verbs};
use kube::{Client, ResourceExt as _};
use tokio::runtime::{Builder, Runtime};

use super::{ADMINISTRATOR, ControlPlane, client};
use crate::deadline::wait_for;
use crate::pool::Restored;

/// Deletions take a second or two; the rest is a reserve for busy machines.
const DEADLINE: Duration = Duration::from_secs(60);

/// The number of concurrent requests.
const AT_A_TIME: usize = 8;

/// The objects that an API server stores, apart from their statuses.
#[derive(Debug)]
pub struct Contents {
    /// By UID.
    objects: BTreeMap<String, Object>,
}

#[derive(Debug)]
struct Object {
    resource: ApiResource,
    content: DynamicObject,
}

/// A client for the objects of every kind.
struct Objects {
    runtime: Runtime,
    client: Client,
}

// === impl ControlPlane ===

impl ControlPlane {
    /// Returns what the API server stores as soon as it has what the control plane itself creates
    /// after its start. Only for a control plane in the network namespace of the test, as
    /// [`ControlPlane::return_to`].
    pub fn observe_contents(&self) -> Result<Contents> {
        let objects = self.objects()?;
        let mut missing = Vec::new();
        let settled = wait_for("the control plane to settle", DEADLINE, || {
            let Some(contents) = objects.observe()? else {
                return Ok(None);
            };
            missing = contents.missing();
            Ok(missing.is_empty().then_some(contents))
        });
        settled.with_context(|| format!("missing: {missing:?}"))
    }

    /// Deletes everything that was created since `before`, and returns when it is gone; fails if it
    /// remains. What existed before is not restored: if it has been edited or deleted, or API servers
    /// have been stopped or added, that is the result.
    pub fn return_to(&mut self, before: &Contents) -> Result<Restored> {
        self.ensure_runs()?;
        if let Some(change) = self.servers.as_ref().and_then(|servers| servers.change) {
            return Ok(Restored::NotAfter(change.to_owned()));
        }
        let objects = self.objects()?;
        let mut newer = Vec::new();
        let returned = wait_for("all objects of the test to be gone", DEADLINE, || {
            let Some(now) = objects.observe()? else {
                return Ok(None);
            };
            if let Some(change) = now.change_since(before) {
                return Ok(Some(Restored::NotAfter(change)));
            }
            let found: Vec<&Object> = now.newer_than(before).collect();
            newer = found.iter().map(|object| object.describe()).collect();
            objects.delete(&found)?;
            Ok(found.is_empty().then_some(Restored::Completely))
        });
        returned.with_context(|| format!("remaining: {newer:?}"))
    }

    fn objects(&self) -> Result<Objects> {
        ensure!(self.setting.options.network.is_none(), "it has a namespace");
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(client(&self.kubeconfig(ADMINISTRATOR)?))?;
        Ok(Objects { runtime, client })
    }
}

// === impl Contents ===

impl Contents {
    /// Describes an object of `before` that is not as it was.
    fn change_since(&self, before: &Contents) -> Option<String> {
        before.objects.iter().find_map(|(uid, object)| {
            let change = match self.objects.get(uid) {
                None => "the deletion",
                Some(now) if now.content != object.content => "an edit",
                Some(_) => return None,
            };
            Some(format!("{change} of {}", object.describe()))
        })
    }

    fn newer_than(&self, before: &Contents) -> impl Iterator<Item = &Object> {
        let objects = self.objects.iter();
        let newer = objects.filter(|(uid, _)| !before.objects.contains_key(*uid));
        newer.map(|(_, object)| object)
    }

    /// Describes what is still to be created by API server and controllers, which do that
    /// concurrently after the API server is ready.
    fn missing(&self) -> Vec<String> {
        let all = self.objects.values().map(Object::describe);
        let all: BTreeSet<String> = all.collect();
        let namespaces = ["default", "kube-node-lease", "kube-public", "kube-system"];
        let own = namespaces.map(|name| format!("Namespace {name}"));
        let own = own.into_iter().chain([
            "ConfigMap kube-system/kube-apiserver-legacy-service-account-token-tracking".to_owned(),
            "IPAddress 10.96.0.1".to_owned(),
            "Service default/kubernetes".to_owned(),
            "ServiceCIDR kubernetes".to_owned(),
        ]);
        let in_namespaces = all.iter().filter_map(|name| {
            let namespace = name.strip_prefix("Namespace ")?;
            let account = format!("ServiceAccount {namespace}/default");
            Some([account, format!("ConfigMap {namespace}/kube-root-ca.crt")])
        });
        let groups = self.objects.values().filter_map(Object::defines);
        let missing = own.chain(in_namespaces.flatten()).chain(groups);
        missing.filter(|name| !all.contains(name)).collect()
    }
}

// === impl Object ===

impl Object {
    /// Takes an object without what API server and controllers change by themselves.
    fn new(resource: &ApiResource, mut content: DynamicObject) -> Object {
        content.metadata.resource_version = None;
        content.metadata.managed_fields = None;
        content.metadata.generation = None;
        if let Some(fields) = content.data.as_object_mut() {
            fields.remove("status");
            if resource.kind == "Lease" {
                fields.remove("spec");
            }
        }
        Object {
            resource: resource.clone(),
            content,
        }
    }

    /// Returns its kind, namespace and name.
    fn describe(&self) -> String {
        let (kind, name) = (&self.resource.kind, self.content.name_any());
        match self.content.namespace() {
            Some(namespace) => format!("{kind} {namespace}/{name}"),
            None => format!("{kind} {name}"),
        }
    }

    /// Describes the APIService that the API server creates for a definition.
    fn defines(&self) -> Option<String> {
        if self.resource.kind != "CustomResourceDefinition" {
            return None;
        }
        let spec = &self.content.data["spec"];
        let version = spec["versions"][0]["name"].as_str()?;
        Some(format!("APIService {version}.{}", spec["group"].as_str()?))
    }
}

// === impl Objects ===

impl Objects {
    /// Reads all objects; `None` while the API server adds or removes a kind.
    fn observe(&self) -> Result<Option<Contents>> {
        match self.runtime.block_on(list_all(&self.client)) {
            Ok(contents) => Ok(Some(contents)),
            // Not known any more, or not yet; or etcd did not answer in time.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 429 | 500..) => Ok(None),
            Err(error) => Err(error).context("failed to read all objects"),
        }
    }

    fn delete(&self, objects: &[&Object]) -> Result<()> {
        let deletions = objects.iter().map(|object| delete(&self.client, object));
        let deletions = stream::iter(deletions).buffer_unordered(AT_A_TIME);
        self.runtime.block_on(deletions.try_collect())
    }
}

async fn list_all(client: &Client) -> kube::Result<Contents> {
    let discovery = Discovery::new(client.clone())
        // The Events of this group are those of the core group.
        .exclude(&["events.k8s.io"])
        .run_aggregated()
        .await?;
    let resources = discovery.groups().flat_map(|group| {
        let resources = group.resources_by_stability().into_iter();
        resources.filter(|(_, allowed)| {
            allowed.supports_operation(verbs::LIST) && allowed.supports_operation(verbs::DELETE)
        })
    });
    let lists = resources.map(|(resource, _)| list(client, resource));
    let lists: Vec<Vec<Object>> = stream::iter(lists)
        .buffer_unordered(AT_A_TIME)
        .try_collect()
        .await?;
    let objects = lists.into_iter().flatten();
    let objects = objects.map(|object| (object.content.uid().unwrap_or_default(), object));
    Ok(Contents {
        objects: objects.collect(),
    })
}

async fn list(client: &Client, resource: ApiResource) -> kube::Result<Vec<Object>> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let listed = api.list(&ListParams::default()).await?.into_iter();
    Ok(listed
        .map(|content| Object::new(&resource, content))
        .collect())
}

async fn delete(client: &Client, object: &Object) -> Result<()> {
    let Object { resource, content } = object;
    let api: Api<DynamicObject> = match content.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, resource),
        None => Api::all_with(client.clone(), resource),
    };
    // Nothing runs a Pod that would have to end first.
    let parameters = DeleteParams::background().grace_period(0);
    match api.delete(&content.name_any(), &parameters).await {
        Ok(_) => Ok(()),
        // It is gone, or goes with its namespace.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 429 | 500..) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("failed to delete {}", object.describe())),
    }
}
