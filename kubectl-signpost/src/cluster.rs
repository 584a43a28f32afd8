//! The connection to the API server: credentials and reads.

mod error;
mod proxy;
mod watch;

use std::fmt::Debug;
use std::time::Duration;

use crds::readable::readable;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::api::{
    ApiResource, DynamicObject, ListParams, LogParams, Patch, PatchParams, PostParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::arguments::Access;
use proxy::read_proxy;

pub(crate) use error::ClusterError;
pub(crate) use proxy::exec_without_empty_entries;
pub(crate) use watch::{Depth, ObjectEvent};

/// The cluster that a command works on.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    server: String,
    default_namespace: String,
}

/// The objects read of one kind.
#[derive(Debug, Clone)]
pub(crate) struct Read<T> {
    /// The objects, by name.
    pub(crate) objects: Vec<T>,
    /// The objects that this version cannot parse, each with the reason.
    pub(crate) unreadable: Vec<Unreadable>,
}

/// An object that this version cannot parse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Unreadable {
    pub(crate) object: String,
    pub(crate) reason: String,
}

/// The connect timeout: how soon an unreachable API server is reported.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long nothing may arrive on a connection. A command in a Pod may be silent for longer: kube
/// then sends a ping every [`PING_EVERY`], which is answered.
const READ_TIMEOUT: Duration = Duration::from_secs(90);
/// The interval of kube's pings on the stream of a command (`api/remote_command.rs`).
const PING_EVERY: Duration = Duration::from_secs(60);
const _: () = assert!(
    READ_TIMEOUT.as_secs() > PING_EVERY.as_secs(),
    "a silent command would be cut off"
);
/// The page size of lists, the same as in kubectl.
const CHUNK: u32 = 500;

// === impl Cluster ===

impl Cluster {
    /// Creates a client. Reads files but does not connect.
    pub(crate) async fn open(access: &Access) -> Result<Cluster, ClusterError> {
        // Fails only if a provider is already installed, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = read_config(access).await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        let proxy = read_proxy(access, &config.cluster_url);
        config.proxy_url = proxy.map_err(ClusterError::Kubeconfig)?;
        let server = config.cluster_url.to_string();
        let given = access.namespace.clone();
        let default_namespace = given.unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config);
        let client = client.map_err(|source| ClusterError::Client {
            server: server.clone(),
            source,
        })?;
        Ok(Cluster {
            client,
            server,
            default_namespace,
        })
    }

    /// Creates a cluster whose API server is `client`.
    #[cfg(test)]
    pub(crate) fn of(client: Client) -> Cluster {
        Cluster {
            client,
            server: String::new(),
            default_namespace: "default".to_owned(),
        }
    }

    /// The address of the API server.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Returns the namespace of the command line or of the kubeconfig context, or `default` if neither
    /// names one.
    pub(crate) fn default_namespace(&self) -> &str {
        &self.default_namespace
    }

    /// Returns the API of the Pods in a namespace.
    pub(crate) fn pods_of(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Lists the Pods of all namespaces with these labels.
    pub(crate) async fn read_pods(&self, labels: &str) -> Result<Vec<Pod>, ClusterError> {
        let parameters = ListParams::default().labels(labels);
        let pods = Api::all(self.client.clone());
        self.list(&pods, parameters, "list pods").await
    }

    /// Lists the Pods of one namespace.
    pub(crate) async fn read_pods_in(&self, namespace: &str) -> Result<Vec<Pod>, ClusterError> {
        let pods = self.pods_of(namespace);
        self.list(&pods, ListParams::default(), "list pods").await
    }

    /// Lists all objects of a Signpost kind, by name. An object that this version cannot parse does
    /// not hide the others.
    pub(crate) async fn read_all<K>(&self) -> Result<Read<K>, ClusterError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let resource = ApiResource::erase::<K>(&());
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &resource);
        let mut read = Read::default();
        let doing = format!("list {}", resource.plural);
        for object in self.list(&api, ListParams::default(), &doing).await? {
            let (object, unreadable) = parse_in_part(object);
            read.objects.extend(object);
            read.unreadable.extend(unreadable);
        }
        Ok(read)
    }

    /// Lists the raw objects of a kind, in one namespace or in all.
    pub(crate) async fn read_raw<K: Resource<DynamicType = ()>>(
        &self,
        namespace: Option<&str>,
        parameters: ListParams,
    ) -> Result<Vec<Value>, ClusterError> {
        let resource = ApiResource::erase::<K>(&());
        let client = self.client.clone();
        let api = match namespace {
            Some(namespace) => Api::<DynamicObject>::namespaced_with(client, namespace, &resource),
            None => Api::<DynamicObject>::all_with(client, &resource),
        };
        let doing = format!("list {}", resource.plural);
        let objects = self.list(&api, parameters, &doing).await?;
        Ok(objects
            .into_iter()
            .map(|object| serde_json::to_value(object).unwrap_or_default())
            .collect())
    }

    /// Reads the newest lines of a container's log, or with `previous` those of the container's
    /// previous instance.
    pub(crate) async fn read_log(
        &self,
        (namespace, pod): (&str, &str),
        container: &str,
        lines: u32,
        previous: bool,
    ) -> Result<String, ClusterError> {
        let parameters = LogParams {
            container: Some(container.to_owned()),
            tail_lines: Some(i64::from(lines)),
            previous,
            timestamps: true,
            ..LogParams::default()
        };
        let log = self.pods_of(namespace).logs(pod, &parameters).await;
        log.map_err(self.failed(format!("read the log of Pod {namespace}/{pod}")))
    }

    /// Reads all objects of a kind, in all namespaces, and returns what `keep` makes of each. The
    /// objects are not held together: all Pods of a large cluster take gigabytes.
    pub(crate) async fn read_of_each<K, T>(
        &self,
        keep: impl Fn(&K) -> Option<T>,
    ) -> Result<Vec<T>, ClusterError>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let api = Api::<K>::all(self.client.clone());
        let doing = format!("list {}", K::plural(&()));
        let keep = |object: K| keep(&object);
        self.list_some(&api, ListParams::default(), &doing, keep)
            .await
    }

    /// Lists all Nodes.
    pub(crate) async fn read_nodes(&self) -> Result<Vec<Node>, ClusterError> {
        let parameters = ListParams::default();
        let nodes = Api::all(self.client.clone());
        self.list(&nodes, parameters, "list nodes").await
    }

    /// Lists the Leases that operators hold, in all namespaces.
    pub(crate) async fn read_operator_leases(&self) -> Result<Vec<Lease>, ClusterError> {
        let parameters = ListParams::default().fields("metadata.name=signpost-operator");
        let leases = Api::all(self.client.clone());
        self.list(&leases, parameters, "list leases").await
    }

    /// Reads one cluster-scoped object.
    pub(crate) async fn read_one<K>(&self, name: &str) -> Result<K, ClusterError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    {
        let api = Api::<K>::all(self.client.clone());
        api.get(name)
            .await
            .map_err(self.failed(format!("read {} {name}", K::kind(&()))))
    }

    /// Reads one namespaced object.
    pub(crate) async fn read_in<K>(&self, namespace: &str, name: &str) -> Result<K, ClusterError>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + DeserializeOwned
            + Clone
            + Debug,
    {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        api.get(name)
            .await
            .map_err(self.failed(format!("read {} {namespace}/{name}", K::kind(&()))))
    }

    /// Reads the version of the API server.
    pub(crate) async fn read_version(&self) -> Result<Info, ClusterError> {
        let version = self.client.apiserver_version().await;
        version.map_err(self.failed("read the version of the API server".to_owned()))
    }

    /// Creates a cluster-scoped object; returns it as stored by the API server.
    pub(crate) async fn create<K>(&self, object: &K) -> Result<K, ClusterError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Serialize + Clone + Debug,
    {
        let api = Api::<K>::all(self.client.clone());
        let created = api.create(&PostParams::default(), object).await;
        created.map_err(self.failed(format!("create a {}", K::kind(&()))))
    }

    /// Applies a merge patch to a cluster-scoped object.
    pub(crate) async fn merge<K>(&self, name: &str, change: &Value) -> Result<K, ClusterError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    {
        let api = Api::<K>::all(self.client.clone());
        let parameters = PatchParams {
            field_manager: Some("kubectl-signpost".to_owned()),
            ..PatchParams::default()
        };
        let changed = api.patch(name, &parameters, &Patch::Merge(change)).await;
        changed.map_err(self.failed(format!("change {} {name}", K::kind(&()))))
    }

    /// Lists all objects, in pages that do not strain the API server.
    async fn list<K>(
        &self,
        api: &Api<K>,
        parameters: ListParams,
        doing: &str,
    ) -> Result<Vec<K>, ClusterError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        self.list_some(api, parameters, doing, Some).await
    }

    /// Lists all objects as [`Cluster::list`] does, and returns what `keep` makes of each.
    async fn list_some<K, T>(
        &self,
        api: &Api<K>,
        parameters: ListParams,
        doing: &str,
        keep: impl Fn(K) -> Option<T>,
    ) -> Result<Vec<T>, ClusterError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let mut parameters = parameters.limit(CHUNK);
        let mut objects = Vec::new();
        loop {
            let part = api.list(&parameters).await;
            let part = part.map_err(self.failed(doing.to_owned()))?;
            objects.extend(part.items.into_iter().filter_map(&keep));
            match part.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(objects),
            }
        }
    }

    /// Returns what makes an error of a failed request.
    fn failed(&self, doing: String) -> impl FnOnce(kube::Error) -> ClusterError {
        let server = self.server.clone();
        move |source| ClusterError::Request {
            doing,
            server,
            source,
        }
    }
}

/// Parses an object as the kind that this version defines.
pub(crate) fn parse<K: DeserializeOwned>(object: DynamicObject) -> Result<K, Unreadable> {
    let types = object.types.as_ref();
    let kind = types
        .map_or("object", |types| types.kind.as_str())
        .to_owned();
    let name = object.metadata.name.clone().unwrap_or_default();
    let value = serde_json::to_value(object).unwrap_or_default();
    serde_json::from_value(value).map_err(|error| Unreadable {
        object: format!("{kind} {name}"),
        reason: error.to_string(),
    })
}

/// Parses as much of an object as this version knows, and says what it does not know.
pub(crate) fn parse_in_part<K: DeserializeOwned>(
    object: DynamicObject,
) -> (Option<K>, Option<Unreadable>) {
    let value = serde_json::to_value(&object).unwrap_or_default();
    let unreadable = match parse(object) {
        Ok(object) => return (Some(object), None),
        Err(unreadable) => unreadable,
    };
    match readable(&value) {
        Some((read, fields)) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|unknown| format!("{}: {}", unknown.field(), unknown.message))
                .collect();
            let reason = fields.join("; ");
            (
                Some(read),
                Some(Unreadable {
                    reason,
                    ..unreadable
                }),
            )
        }
        None => (None, Some(unreadable)),
    }
}

async fn read_config(access: &Access) -> Result<Config, ClusterError> {
    let options = KubeConfigOptions {
        context: access.context.clone(),
        ..KubeConfigOptions::default()
    };
    if let Some(path) = &access.kubeconfig {
        let file = Kubeconfig::read_from(path).map_err(ClusterError::Kubeconfig)?;
        let config = Config::from_custom_kubeconfig(file, &options).await;
        return config.map_err(ClusterError::Kubeconfig);
    }
    if access.context.is_some() {
        let config = Config::from_kubeconfig(&options).await;
        return config.map_err(ClusterError::Kubeconfig);
    }
    Config::infer().await.map_err(ClusterError::Nowhere)
}

// === impl Read ===

impl<T> Default for Read<T> {
    fn default() -> Read<T> {
        Read {
            objects: Vec::new(),
            unreadable: Vec::new(),
        }
    }
}
