//! Writes the objects of the benchmark to the API server.

use std::convert::Infallible;
use std::fmt;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::IPAddress;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio::{select, try_join};

use super::large::LargeObjects;
use super::population::{self, NAMESPACE, Population, Replacement};
use super::store::{Pattern, Store};
use crate::control_plane::client;
use crate::network::Namespace;

/// The number of concurrent requests. More are no faster on two processors, and an API server that
/// must queue them answers 429.
const AT_A_TIME: usize = 24;
/// The number of sorts of Services. They alternate by protocol.
const SORTS: u32 = 2;
/// How long endpoints are replaced before large objects are written.
const BEFORE_LARGE: Duration = Duration::from_millis(500);

/// Writes over its own connections, from the network namespace of the API server.
pub(crate) struct Writer {
    inside: Namespace,
    runtime: Runtime,
    client: Client,
    /// The socket of etcd.
    store: PathBuf,
}

/// A change that the API server has answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    /// The address that identifies the change in the kernel.
    pub(crate) address: Ipv4Addr,
    /// When the answer arrived.
    pub(crate) answered: Instant,
}

// === impl Writer ===

impl Writer {
    /// Opens a writer as the user of this kubeconfig, and for the etcd at `store`. Does not connect
    /// yet.
    pub(super) fn open(inside: &Namespace, kubeconfig: &Path, store: PathBuf) -> Result<Writer> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(client(kubeconfig))?;
        Ok(Writer {
            inside: inside.clone(),
            runtime,
            client,
            store,
        })
    }

    /// Creates the slices and Services that do not exist yet.
    pub(super) fn create(&self, population: &Population, from: u32) -> Result<()> {
        let slices: Vec<EndpointSlice> = population.slices().collect::<Result<_>>()?;
        self.create_all(slices)?;
        let to = population.services();
        let others = to.min(from + SORTS);
        let services = (from..others).map(population::service);
        self.create_all(services.collect::<Result<Vec<Service>>>()?)?;
        self.run(self.copy(from..others, others..to))
            .context("failed to fill etcd")
    }

    /// Copies the Services `like` to these numbers.
    async fn copy(&self, like: Range<u32>, numbers: Range<u32>) -> Result<()> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), NAMESPACE);
        let addresses: Api<IPAddress> = Api::all(self.client.clone());
        let mut patterns = Vec::new();
        for number in like {
            patterns.push(Pattern {
                service: services.get(&population::service_name(number)).await?,
                address: addresses
                    .get(&population::cluster_ip(number).to_string())
                    .await?,
            });
        }
        Store::connect(&self.store)
            .await?
            .copy(&patterns, numbers)
            .await
    }

    /// Creates one Service.
    pub(super) fn add_service(&self, number: u32) -> Result<Written> {
        let service = population::service(number)?;
        let api: Api<Service> = Api::namespaced(self.client.clone(), NAMESPACE);
        self.run(async {
            api.create(&PostParams::default(), &service).await?;
            Ok(Written {
                address: population::cluster_ip(number),
                answered: Instant::now(),
            })
        })
        .with_context(|| format!("failed to add Service {number}"))
    }

    /// Deletes the existing Services among these numbers.
    pub(super) fn remove_services(&self, numbers: Range<u32>) -> Result<()> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), NAMESPACE);
        self.run(async {
            for number in numbers {
                delete(&api, &population::service_name(number)).await?;
            }
            Ok(())
        })
        .context("failed to remove Services")
    }

    /// Replaces one endpoint.
    pub(super) fn replace_endpoint(&self, replacement: Replacement) -> Result<Written> {
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), NAMESPACE);
        self.run(patch(api, replacement))
    }

    /// Replaces endpoints at a steady rate, without waiting for earlier answers. Returns the writes
    /// in no particular order.
    pub(crate) fn replace_steadily(
        &self,
        replacements: Vec<Replacement>,
        every: Duration,
    ) -> Result<Vec<Written>> {
        self.run(replace_steadily(self.api(), replacements, every))
    }

    /// Replaces endpoints at a steady rate and writes large objects meanwhile: their slices first,
    /// so that each Service appears with all of its endpoints. Returns the replacements in no
    /// particular order, and when the first large object was written.
    pub(super) fn replace_beside(
        &self,
        replacements: Vec<Replacement>,
        every: Duration,
        large: &LargeObjects,
    ) -> Result<(Vec<Written>, Instant)> {
        self.run(async {
            let objects = async {
                sleep(BEFORE_LARGE).await;
                let began = Instant::now();
                create_all(self.api(), large.slices.clone()).await?;
                create_all(self.api(), large.services.clone()).await?;
                set_statuses(&self.api(), &large.services).await?;
                Ok(began)
            };
            try_join!(replace_steadily(self.api(), replacements, every), objects)
        })
    }

    /// Replaces endpoints at a steady rate while one endpoint of these slices becomes unready and
    /// ready again, all the time. Returns the replacements in no particular order.
    pub(super) fn replace_beside_flips(
        &self,
        replacements: Vec<Replacement>,
        every: Duration,
        slices: &[EndpointSlice],
    ) -> Result<Vec<Written>> {
        self.run(async {
            // Neither is needed after the other has ended: the endpoints change until the last replacement.
            select! {
                written = replace_steadily(self.api(), replacements, every) => written,
                failed = flip(self.api(), slices) => match failed {
                    Ok(never) => match never {},
                    Err(error) => Err(error),
                },
            }
        })
    }

    /// Deletes large objects.
    pub(super) fn remove_large(&self, large: &LargeObjects) -> Result<()> {
        self.run(async {
            let services: Api<Service> = self.api();
            for service in &large.services {
                delete(&services, &service.name_any()).await?;
            }
            let slices: Api<EndpointSlice> = self.api();
            for slice in &large.slices {
                delete(&slices, &slice.name_any()).await?;
            }
            Ok(())
        })
        .context("failed to remove large objects")
    }

    fn create_all<T>(&self, objects: Vec<T>) -> Result<()>
    where
        T: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        T: Clone + std::fmt::Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        self.run(create_all(self.api(), objects))
            .context("failed to fill the API server")
    }

    fn api<T>(&self) -> Api<T>
    where
        T: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Runs `work` in the namespace, so that its connections are opened there.
    fn run<T: Send>(&self, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.inside.enter(|| self.runtime.block_on(work))?
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A client has no Debug output.
        f.debug_struct("Writer")
            .field("inside", &self.inside)
            .finish_non_exhaustive()
    }
}

async fn replace_steadily(
    api: Api<EndpointSlice>,
    replacements: Vec<Replacement>,
    every: Duration,
) -> Result<Vec<Written>> {
    let mut ticks = interval(every);
    // After a delay, the missed ticks follow at once.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut under_way = JoinSet::new();
    for replacement in replacements {
        ticks.tick().await;
        under_way.spawn(patch(api.clone(), replacement));
    }
    let mut written = Vec::new();
    while let Some(joined) = under_way.join_next().await {
        written.push(joined??);
    }
    Ok(written)
}

/// Lets the first endpoint of each slice become unready and ready again until it fails.
async fn flip(api: Api<EndpointSlice>, slices: &[EndpointSlice]) -> Result<Infallible> {
    let mut ready = true;
    loop {
        ready = !ready;
        for slice in slices {
            let mut endpoints = slice.endpoints.clone();
            if let Some(first) = endpoints.first_mut() {
                first.conditions.get_or_insert_default().ready = Some(ready);
            }
            let patch = Patch::Merge(json!({"endpoints": endpoints}));
            api.patch(&slice.name_any(), &PatchParams::default(), &patch)
                .await
                .context("failed to change a large slice")?;
        }
    }
}

async fn create_all<T>(api: Api<T>, objects: Vec<T>) -> Result<()>
where
    T: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let mut under_way = JoinSet::new();
    for object in objects {
        if under_way.len() == AT_A_TIME
            && let Some(joined) = under_way.join_next().await
        {
            joined??;
        }
        under_way.spawn(create_unless_there(api.clone(), object));
    }
    while let Some(joined) = under_way.join_next().await {
        joined??;
    }
    Ok(())
}

/// Writes the statuses that these Services have: the API server ignores those of new ones.
async fn set_statuses(api: &Api<Service>, services: &[Service]) -> Result<()> {
    for service in services.iter().filter(|service| service.status.is_some()) {
        let status = Patch::Merge(json!({"status": service.status}));
        api.patch_status(&service.name_any(), &PatchParams::default(), &status)
            .await?;
    }
    Ok(())
}

/// Deletes an object. An object that does not exist counts as deleted.
async fn delete<T>(api: &Api<T>, name: &str) -> Result<()>
where
    T: Clone + DeserializeOwned + std::fmt::Debug,
{
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

async fn create_unless_there<T>(api: Api<T>, object: T) -> Result<()>
where
    T: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    match api.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

async fn patch(api: Api<EndpointSlice>, replacement: Replacement) -> Result<Written> {
    let Replacement {
        slice,
        patch,
        fresh,
    } = replacement;
    api.patch(&slice, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .with_context(|| format!("failed to change slice {slice}"))?;
    Ok(Written {
        address: fresh,
        answered: Instant::now(),
    })
}
