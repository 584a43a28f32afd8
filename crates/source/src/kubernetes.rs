//! The API server as a source: five watches, each followed on its own, so that one that fails
//! holds up no other.
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
use tokio::sync::mpsc;

use crate::{Delivery, EngineGone, deliver};
use assignment::Assignments;
use collection::Collection;
use follow::{Follower, Recipient};
use freshness::Freshness;

/// Delivers what the API server says about Services, EndpointSlices, ServiceCIDRs, the Node called
/// `node` and its NodeProxy, until `stop`.
///
/// Every kind starts with a list and is listed again when its watch cannot be resumed. While the
/// API server cannot be reached, refuses, or is silent for too long, the condition is stale and
/// the watches that are concerned try again and again, with a growing and jittered wait. An API
/// server without ServiceCIDRs has none; one without NodeProxies assigns nothing.
///
/// # Errors
///
/// Only that the engine has ended.
pub async fn watch(
    client: Client,
    node: String,
    deliveries: mpsc::Sender<Delivery>,
    stop: CancellationToken,
) -> Result<(), EngineGone> {
    let freshness = Freshness::default();
    let assignments = Assignments::new(deliveries.clone(), freshness.pulse("NodeProxy"));
    let objects = Objects(deliveries.clone());
    let follow = |collection: Collection| {
        let pulse = freshness.pulse(collection.kind);
        (client.clone(), collection, pulse)
    };
    let services = Follower::<Service, _>::new(follow(Collection::services()), objects.clone());
    let slices =
        Follower::<EndpointSlice, _>::new(follow(Collection::endpoint_slices()), objects.clone());
    let nodes = Follower::<Node, _>::new(follow(Collection::own_node(&node)), objects.clone());
    let cidrs = Follower::<ServiceCidr, _>::new(follow(Collection::service_cidrs()), objects);
    let proxies = Follower::new(follow(Collection::own_node_proxy(&node)), assignments);
    let all = async {
        tokio::try_join!(
            freshness.report(&deliveries),
            services.follow(),
            slices.follow(),
            nodes.follow(),
            cidrs.follow(),
            proxies.follow(),
        )
    };
    // What is dropped halfway is never used again.
    tokio::select! {
        biased;
        () = stop.cancelled() => Ok(()),
        ended = all => ended.map(|(never, ..): (Infallible, _, _, _, _, _)| match never {}),
    }
}

/// Delivers the events of the kinds that the catalog knows, as they are.
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
