//! How the API server comes to hold what is measured.

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
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::population::{self, NAMESPACE, Population, Replacement};
use super::store::{Pattern, Store};
use crate::network::Namespace;

/// Requests under way at a time. More make two processors no faster, and an API server that has to
/// queue them answers 429.
const AT_A_TIME: usize = 24;
/// How many sorts of Services there are: they differ by protocol, in turn.
const SORTS: u32 = 2;

/// Writes over connections of its own, from the network namespace of the API server.
pub(super) struct Writer {
    inside: Namespace,
    runtime: Runtime,
    client: Client,
    /// Where etcd listens.
    store: PathBuf,
}

/// A change that the API server has answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    /// The address by which the change is recognised in the kernel.
    pub(super) address: Ipv4Addr,
    /// When the API server had answered.
    pub(super) answered: Instant,
}

// === impl Writer ===

impl Writer {
    /// A writer as the user of this kubeconfig, and to the etcd behind `store`. Does not connect yet.
    pub(super) fn open(inside: &Namespace, kubeconfig: &Path, store: PathBuf) -> Result<Writer> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(async {
            let file = Kubeconfig::read_from(kubeconfig)?;
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(file, &options).await?;
            anyhow::Ok(Client::try_from(config)?)
        });
        Ok(Writer {
            inside: inside.clone(),
            runtime,
            client: client.context("failed to set up a client for the API server")?,
            store,
        })
    }

    /// Writes slices and Services that are not there yet.
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

    /// Writes Services like these.
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

    /// Writes one Service.
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

    /// Removes Services with these numbers, those that are there.
    pub(super) fn remove_services(&self, numbers: Range<u32>) -> Result<()> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), NAMESPACE);
        self.run(async {
            for number in numbers {
                let name = population::service_name(number);
                match api.delete(&name, &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    other => drop(other?),
                }
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

    /// Replaces endpoints at a steady pace, whether those before have been answered or not. Returns
    /// what was written, in no order.
    pub(super) fn replace_steadily(
        &self,
        replacements: Vec<Replacement>,
        every: Duration,
    ) -> Result<Vec<Written>> {
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), NAMESPACE);
        self.run(async {
            let mut ticks = interval(every);
            // A machine that was busy for a moment makes up for it.
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
        })
    }

    fn create_all<T>(&self, objects: Vec<T>) -> Result<()>
    where
        T: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        T: Clone + std::fmt::Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let api: Api<T> = Api::namespaced(self.client.clone(), NAMESPACE);
        self.run(async {
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
        })
        .context("failed to fill the API server")
    }

    /// Connections that this opens are opened inside.
    fn run<T: Send>(&self, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.inside.enter(|| self.runtime.block_on(work))?
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A client cannot be printed.
        f.debug_struct("Writer")
            .field("inside", &self.inside)
            .finish_non_exhaustive()
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
