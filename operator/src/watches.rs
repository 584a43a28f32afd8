//! The watches and the lists of Leases, merged into one stream of fleet events.

use std::{
    fmt::Debug,
    pin::Pin,
    time::{Duration, Instant},
};

use crds::{
    node_proxy::{LEASE_PREFIX, NodeProxy},
    profile::ProxyProfile,
};
use futures::{Stream, StreamExt, stream};
use k8s_openapi::{
    api::{apps::v1::DaemonSet, coordination::v1::Lease},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource,
    api::ListParams,
    core::{ApiResource, DynamicObject},
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};
use runtime::chain;
use serde::de::DeserializeOwned;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::warn;

use crate::{
    fleet::{Change, Event},
    placement::{self, Placement},
    records::{NodeProxyRecord, NodeRecord, ProfileRecord, SharedSpecs, SlimNode},
};

/// A stream of fleet events that never ends.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Event> + Send>>;

/// The interval between two lists of Leases. They are not watched: 5,000 agents make 167 renewals a
/// second, and the renewals themselves need no reaction.
const LEASES: Duration = Duration::from_secs(15);
/// The timeout of a list of Leases, so that the result reflects the time of the request.
const LEASES_LIMIT: Duration = Duration::from_secs(10);

/// How many requests for the DaemonSets must be refused, one after another, before the operator
/// works without them: an API server that has just started refuses until it has read the roles.
const REFUSALS: u32 = 5;

/// Watches profiles, nodes, NodeProxies and, in `namespace`, the DaemonSets of agents, whose Leases
/// it lists. Never ends: a watch that fails restarts with a new list, with increasing delays.
pub(crate) fn watch(client: &Client, namespace: &str) -> Events {
    let profiles =
        Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<ProxyProfile>(&()));
    let proxies =
        Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<NodeProxy>(&()));
    let nodes = Api::<SlimNode>::all(client.clone());
    let leases = Api::<Lease>::namespaced(client.clone(), namespace);
    let daemon_sets = Api::<DynamicObject>::namespaced_with(
        client.clone(),
        namespace,
        &ApiResource::erase::<DaemonSet>(&()),
    );
    let mut shared = SharedSpecs::default();
    let parse_proxy = move |object| NodeProxyRecord::parse(object, &mut shared);
    let of_fleet = stream::select(
        changes("profiles", profiles, ProfileRecord::parse).map(Event::Profile),
        stream::select(
            changes("nodes", nodes, NodeRecord::parse).map(Event::Node),
            changes("node proxies", proxies, parse_proxy).map(Event::Proxy),
        ),
    );
    let of_agents = stream::select(placements(daemon_sets).map(Event::Placement), list(leases));
    stream::select(of_fleet, of_agents).boxed()
}

/// An operator that may not read DaemonSets, such as one whose role is of an older version, works
/// as if there were none: an agent may run on every node.
fn placements(api: Api<DynamicObject>) -> impl Stream<Item = Change<Placement>> + Send {
    let config = watcher::Config::default().labels(placement::AGENTS);
    let attempts = attempts("the DaemonSets of agents", api, config, Placement::parse);
    let mut refusals = 0;
    let mut is_known = false;
    attempts.filter_map(move |attempt| {
        let change = match attempt {
            Ok(change) => Some(change),
            Err(error) => {
                refusals += u32::from(is_forbidden(&error));
                (!is_known && refusals >= REFUSALS).then(|| Change::Listed(Vec::new()))
            }
        };
        is_known |= matches!(&change, Some(change) if !matches!(change, Change::Relisting));
        async move { change }
    })
}

fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => status.is_forbidden(),
        _ => false,
    }
}

fn list(leases: Api<Lease>) -> impl Stream<Item = Event> + Send {
    let mut turns = interval(LEASES);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    stream::unfold((leases, turns), |(leases, mut turns)| async move {
        loop {
            turns.tick().await;
            let at = Instant::now();
            // A list from the API server's watch cache could be stale. Only the names and versions
            // are needed.
            let parameters = ListParams::default();
            let error = match timeout(LEASES_LIMIT, leases.list_metadata(&parameters)).await {
                Ok(Ok(list)) => {
                    let versions = list.into_iter().filter_map(|lease| version(lease.metadata));
                    let versions = versions.collect();
                    return Some((Event::Leases { versions, at }, (leases, turns)));
                }
                Ok(Err(error)) => chain(&error).to_string(),
                Err(_) => format!("no answer within {LEASES_LIMIT:?}"),
            };
            warn!(error, "unable to list the Leases of agents");
        }
    })
}

/// Returns the node of an agent's Lease and the Lease's resource version; `None` for other Leases.
fn version(metadata: ObjectMeta) -> Option<(String, String)> {
    let node = metadata.name?.strip_prefix(LEASE_PREFIX)?.to_owned();
    Some((node, metadata.resource_version?))
}

fn changes<K, R>(
    what: &'static str,
    api: Api<K>,
    parse: impl FnMut(K) -> R + Send,
) -> impl Stream<Item = Change<R>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    R: Send + 'static,
{
    attempts(what, api, watcher::Config::default(), parse)
        .filter_map(|attempt| async move { attempt.ok() })
}

/// Yields the changes of a watch, and the errors after which it restarts, once they are logged.
fn attempts<K, R>(
    what: &'static str,
    api: Api<K>,
    config: watcher::Config,
    mut parse: impl FnMut(K) -> R + Send,
) -> impl Stream<Item = Result<Change<R>, watcher::Error>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    R: Send + 'static,
{
    let mut listing: Vec<R> = Vec::new();
    let events = watcher(api, config).default_backoff();
    events.filter_map(move |event| {
        let change = match event {
            Ok(watcher::Event::Apply(object)) => Some(Ok(Change::Applied(Box::new(parse(object))))),
            Ok(watcher::Event::Delete(object)) => {
                let name = object.meta().name.clone();
                name.map(|name| Ok(Change::Deleted(name)))
            }
            Ok(watcher::Event::Init) => {
                listing.clear();
                Some(Ok(Change::Relisting))
            }
            Ok(watcher::Event::InitApply(object)) => {
                listing.push(parse(object));
                None
            }
            Ok(watcher::Event::InitDone) => Some(Ok(Change::Listed(std::mem::take(&mut listing)))),
            Err(error) => {
                warn!(what, error = %chain(&error), "unable to watch");
                Some(Err(error))
            }
        };
        async move { change }
    })
}
