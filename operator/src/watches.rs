//! The three watches, as one stream of fleet events.

use std::{fmt::Debug, pin::Pin};

use crds::{node_proxy::NodeProxy, profile::ProxyProfile};
use futures::{Stream, StreamExt, stream};
use kube::{
    Api, Client, Resource,
    core::{ApiResource, DynamicObject},
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};
use runtime::chain;
use serde::de::DeserializeOwned;
use tracing::warn;

use crate::{
    fleet::{Change, Event},
    records::{NodeProxyRecord, NodeRecord, ProfileRecord, SlimNode},
};

/// Fleet events until the process ends.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Event> + Send>>;

/// Watches profiles, nodes and what nodes were given. Never ends: a watch that fails begins again, later and later, with
/// a new list.
pub(crate) fn watch(client: &Client) -> Events {
    let profiles =
        Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<ProxyProfile>(&()));
    let proxies =
        Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<NodeProxy>(&()));
    let nodes = Api::<SlimNode>::all(client.clone());
    stream::select(
        changes("profiles", profiles, ProfileRecord::parse).map(Event::Profile),
        stream::select(
            changes("nodes", nodes, NodeRecord::parse).map(Event::Node),
            changes("node proxies", proxies, NodeProxyRecord::parse).map(Event::Proxy),
        ),
    )
    .boxed()
}

fn changes<K, R>(
    what: &'static str,
    api: Api<K>,
    parse: fn(K) -> R,
) -> impl Stream<Item = Change<R>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    R: Send + 'static,
{
    let mut listing: Vec<R> = Vec::new();
    let events = watcher(api, watcher::Config::default()).default_backoff();
    events.filter_map(move |event| {
        let change = match event {
            Ok(watcher::Event::Apply(object)) => Some(Change::Applied(Box::new(parse(object)))),
            Ok(watcher::Event::Delete(object)) => object.meta().name.clone().map(Change::Deleted),
            Ok(watcher::Event::Init) => {
                listing.clear();
                None
            }
            Ok(watcher::Event::InitApply(object)) => {
                listing.push(parse(object));
                None
            }
            Ok(watcher::Event::InitDone) => Some(Change::Listed(std::mem::take(&mut listing))),
            Err(error) => {
                warn!(what, error = %chain(&error), "unable to watch");
                None
            }
        };
        async move { change }
    })
}
