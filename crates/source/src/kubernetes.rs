//! The API server as a source: five watches, each followed separately, so that a failing one does
//! not delay the others.
//!
//! ```text
//! Services, EndpointSlices, own Node, ServiceCIDRs --follow--> Delivery::Objects
//! own NodeProxy                                    --follow--> Delivery::Configuration
//!                                    all of them --Freshness--> Delivery::Condition
//! ```

mod answer;
mod assignment;
mod backoff;
mod collection;
mod failure;
mod follow;
mod freshness;
mod wire;

#[cfg(test)]
mod tests;

use std::convert::Infallible;

use catalog::object::{EndpointSlice, Node, Service, ServiceCidr};
use catalog::{Change, Event};
use kube::Client;
use runtime::CancellationToken;
use serde_json::Value;
use tokio::sync::{mpsc, watch as posted};
use tokio::task::JoinSet;

use crate::{Delivery, EngineGone, deliver};
use assignment::Assignments;
use collection::Collection;
use follow::{Follower, Recipient};
use freshness::Freshness;

/// Delivers the Services, EndpointSlices, ServiceCIDRs, the Node called `node` and its NodeProxy
/// from the API server, until `stop`.
///
/// Every kind starts with a list, and is listed again when its watch cannot be resumed. While the
/// API server cannot be reached, refuses requests or is silent for too long, the condition is stale
/// and the affected watches retry with a growing, jittered wait. If the API server does not have
/// the kind ServiceCIDR, there are no ServiceCIDRs; if it does not have NodeProxies, there is no
/// configuration.
///
/// The status of the NodeProxy goes to `own_status`, whichever client wrote it; null if there is none.
///
/// # Errors
///
/// Fails only if the engine has ended.
pub async fn watch(
    client: Client,
    node: String,
    deliveries: mpsc::Sender<Delivery>,
    own_status: posted::Sender<Value>,
    stop: CancellationToken,
) -> Result<(), EngineGone> {
    let freshness = Freshness::default();
    let assignments = Assignments::new(
        deliveries.clone(),
        own_status,
        freshness.watch_health("NodeProxy"),
    );
    let objects = Objects(deliveries.clone());
    let follow = |collection: Collection| {
        let watch_health = freshness.watch_health(collection.kind);
        (client.clone(), collection, watch_health)
    };
    let services = Follower::<Service, _>::new(follow(Collection::services()), objects.clone());
    let slices =
        Follower::<EndpointSlice, _>::new(follow(Collection::endpoint_slices()), objects.clone());
    let nodes = Follower::<Node, _>::new(follow(Collection::own_node(&node)), objects.clone());
    let cidrs = Follower::<ServiceCidr, _>::new(follow(Collection::service_cidrs()), objects);
    let proxies = Follower::new(follow(Collection::own_node_proxy(&node)), assignments);
    // A task for each watch, so that at a start two large lists are decoded at the same time.
    let mut all: JoinSet<Result<Infallible, EngineGone>> = JoinSet::new();
    all.spawn(async move { freshness.report(&deliveries).await });
    all.spawn(services.follow());
    all.spawn(slices.follow());
    all.spawn(nodes.follow());
    all.spawn(cidrs.follow());
    all.spawn(proxies.follow());
    // The tasks are aborted halfway and never polled again.
    tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        ended = all.join_next() => match ended {
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Some(Ok(Err(gone))) => Err(gone),
            // No task is cancelled, and the set is not empty.
            Some(Err(_)) | None => Err(EngineGone),
        },
    }
}

/// Delivers the events of the kinds in the catalog unchanged.
#[derive(Debug, Clone)]
struct Objects(mpsc::Sender<Delivery>);

impl<T> Recipient<T> for Objects
where
    T: Send,
    Change: From<Event<T>>,
{
    async fn deliver(&mut self, event: Event<T>) -> Result<(), EngineGone> {
        deliver(&self.0, Delivery::Objects(event.into())).await
    }
}
