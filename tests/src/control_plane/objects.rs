//! Writes and reads objects without kubectl, for tests on other kernels: on a kernel that runs as a
//! program, each kubectl takes five to ten seconds, most of them page faults.

use anyhow::{Context, Result};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, TypeMeta,
};
use kube::core::GroupVersionKind;
use kube::{Client, Error};
use serde_json::Value;

use super::{ADMINISTRATOR, ControlPlane, client};

/// The field manager of objects that a test writes.
const FIELD_MANAGER: &str = "tests";

/// Several objects of one kind: those in `namespace`, or all of a kind without namespaces.
#[derive(Debug, Clone, Copy)]
pub struct Objects<'a> {
    /// Such as `discovery.k8s.io/v1`.
    pub api_version: &'a str,
    /// Such as `EndpointSlice`.
    pub kind: &'a str,
    /// Their namespace; none for a kind without namespaces.
    pub namespace: Option<&'a str>,
}

impl ControlPlane {
    /// Applies these objects as their only field manager, so that omitted fields are removed. An
    /// object of a kind with namespaces names its own.
    pub fn apply_as_manager(&self, objects: &[Value]) -> Result<()> {
        self.patch_each(objects, async |api, name, object| {
            let parameters = PatchParams::apply(FIELD_MANAGER).force();
            api.patch(name, &parameters, &Patch::Apply(object)).await
        })
    }

    /// Writes the status of these objects, in place of what writes it in a cluster. It is merged: a
    /// Node with two internal addresses cannot be applied, because their type is their key.
    pub fn merge_status(&self, objects: &[Value]) -> Result<()> {
        self.patch_each(objects, async |api, name, object| {
            let parameters = PatchParams::default();
            api.patch_status(name, &parameters, &Patch::Merge(object))
                .await
        })
    }

    fn patch_each(
        &self,
        objects: &[Value],
        patch: impl AsyncFn(&Api<DynamicObject>, &str, &Value) -> kube::Result<DynamicObject> + Sync,
    ) -> Result<()> {
        self.with_client(async |client| {
            for object in objects {
                let text = |pointer| object.pointer(pointer).and_then(Value::as_str);
                let named = Objects {
                    api_version: text("/apiVersion").context("an object has an apiVersion")?,
                    kind: text("/kind").context("an object has a kind")?,
                    namespace: text("/metadata/namespace"),
                };
                let name = text("/metadata/name").context("an object has a name")?;
                let patched = patch(&named.api(&client)?, name, object).await;
                patched.with_context(|| format!("failed to write {} {name}", named.kind))?;
            }
            Ok(())
        })
    }

    /// Deletes these objects, of those there are.
    pub fn delete(&self, objects: Objects<'_>, names: &[String]) -> Result<()> {
        self.with_client(async |client| {
            let api = objects.api(&client)?;
            for name in names {
                match api.delete(name, &DeleteParams::default()).await {
                    Ok(_) => (),
                    Err(Error::Api(status)) if status.is_not_found() => (),
                    Err(error) => return Err(error).context(format!("failed to delete {name}")),
                }
            }
            Ok(())
        })
    }

    /// Deletes all of these objects that `selector` selects by their labels; an empty one selects
    /// all.
    pub fn delete_selected(&self, objects: Objects<'_>, selector: &str) -> Result<()> {
        let selected = ListParams::default().labels(selector);
        self.with_client(async |client| {
            let api = objects.api(&client)?;
            api.delete_collection(&DeleteParams::default(), &selected)
                .await
                .with_context(|| format!("failed to delete {}", objects.kind))?;
            Ok(())
        })
    }

    /// Returns the object of this name.
    pub fn read(&self, objects: Objects<'_>, name: &str) -> Result<Value> {
        self.with_client(async |client| {
            let object = objects.api(&client)?.get(name).await;
            let object = object.with_context(|| format!("failed to get {name}"))?;
            Ok(serde_json::to_value(object)?)
        })
    }

    /// Whether the API server serves this kind.
    pub fn serves(&self, objects: Objects<'_>) -> Result<bool> {
        self.with_client(async |client| {
            let first = ListParams::default().limit(1);
            Ok(objects.api(&client)?.list_metadata(&first).await.is_ok())
        })
    }

    /// Runs `request` in the network of the control plane, as the administrator.
    fn with_client<T: Send>(
        &self,
        request: impl AsyncFnOnce(Client) -> Result<T> + Send,
    ) -> Result<T> {
        let kubeconfig = self.kubeconfig(ADMINISTRATOR)?;
        self.setting
            .block_on(async || request(client(&kubeconfig).await?).await)
    }
}

impl Objects<'_> {
    fn api(&self, client: &Client) -> Result<Api<DynamicObject>> {
        let kind = TypeMeta {
            api_version: self.api_version.to_owned(),
            kind: self.kind.to_owned(),
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(kind)?);
        Ok(match self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        })
    }
}
