//! The watches and the lists of Leases, merged into one stream of fleet events.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    pin::Pin,
    time::{Duration, Instant},
};

use crds::{
    node_proxy::{LEASE_PREFIX, NodeProxy},
    profile::ProxyProfile,
    starter,
};
use futures::{Stream, StreamExt, future::ready, stream};
use k8s_openapi::{
    api::{apps::v1::DaemonSet, coordination::v1::Lease},
    apimachinery::pkg::apis::meta::v1::ListMeta,
};

use kube::{
    Api, Client, Resource,
    api::ListParams,
    core::{ApiResource, DynamicObject, Request},
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};
use runtime::chain;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::warn;

use crate::{
    agent_daemon_set::{self, AgentDaemonSet},
    fleet::{Event, ObjectChange, WatchSignal},
    kube_proxy_daemon_set::{self, KubeProxyDaemonSetState},
    records::{NodeProxyRecord, NodeRecord, ProfileRecord, SharedSpecs, SlimNode},
};

/// A stream of fleet events that never ends.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Event> + Send>>;

/// The interval between two lists of Leases. They are not watched: 5,000 agents make 167 renewals a
/// second, and the renewals themselves need no reaction.
const LEASES: Duration = Duration::from_secs(15);
/// The timeout of a list of Leases, so that the result reflects the time of the request.
const LEASES_LIMIT: Duration = Duration::from_secs(10);
/// The number of Leases in one answer. One answer with those of 5,000 agents would be the largest
/// part of the operator's memory.
const LEASES_A_PAGE: u32 = 500;

/// How many requests for DaemonSets must be refused, one after another, before the operator
/// works without them: an API server that has just started refuses until it has read the roles.
const FORBIDDEN_LIMIT: u32 = 5;

/// A page of a list of Leases: of their metadata only what the operator uses.
#[derive(Debug, Deserialize)]
struct LeasePage {
    metadata: ListMeta,
    items: Vec<SlimLease>,
}

#[derive(Debug, Deserialize)]
struct SlimLease {
    metadata: SlimMetadata,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimMetadata {
    name: String,
    resource_version: String,
}

/// Why the Leases were not listed.
#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error("failed to list Leases")]
    Request(#[from] kube::Error),
    #[error("failed to render the request for Leases")]
    Render(#[from] kube::core::request::Error),
}

/// Watches profiles, nodes, NodeProxies, the DaemonSet of kube-proxy and, in `namespace`, the
/// DaemonSets of agents, whose Leases it lists. Never ends: a watch that fails restarts with a new list, with increasing delays.
pub(crate) fn watch(client: &Client, namespace: &str) -> Events {
    let profiles =
        Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<ProxyProfile>(&()));
    let proxies =
        Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<NodeProxy>(&()));
    let nodes = Api::<SlimNode>::all(client.clone());
    let daemon_sets = Api::<DynamicObject>::namespaced_with(
        client.clone(),
        namespace,
        &ApiResource::erase::<DaemonSet>(&()),
    );
    let of_kube_proxy = Api::<DynamicObject>::namespaced_with(
        client.clone(),
        starter::NAMESPACE,
        &ApiResource::erase::<DaemonSet>(&()),
    );
    let mut shared = SharedSpecs::default();
    let parse_proxy = move |object| NodeProxyRecord::parse(object, &mut shared);
    let of_fleet = stream::select(
        changes(
            "ProxyProfile",
            profiles,
            ProfileRecord::parse,
            Event::Profile,
        ),
        stream::select(
            changes("Node", nodes, NodeRecord::parse, Event::Node),
            changes("NodeProxy", proxies, parse_proxy, Event::Proxy),
        ),
    );
    let of_agents = stream::select(
        agent_daemon_set_events(daemon_sets),
        lease_events(client.clone(), namespace.to_owned()),
    );
    let of_kube_proxy = kube_proxy_daemon_set_events(of_kube_proxy);
    stream::select(of_fleet, stream::select(of_agents, of_kube_proxy)).boxed()
}

/// An operator that may not read DaemonSets, such as one whose role is of an older version, works
/// as if there were none: an agent may run on every node.
fn agent_daemon_set_events(api: Api<DynamicObject>) -> impl Stream<Item = Event> + Send {
    let config = watcher::Config::default().labels(agent_daemon_set::AGENTS);
    let attempts = attempts(
        "the DaemonSets of agents",
        api,
        config,
        AgentDaemonSet::parse,
    );
    let mut refusals = 0;
    let mut is_known = false;
    attempts.filter_map(move |attempt| {
        let change = match attempt {
            Ok(change) => Some(change),
            Err(error) if is_forbidden(&error) => {
                refusals += 1;
                (!is_known && refusals >= FORBIDDEN_LIMIT).then(|| ObjectChange::Listed(Vec::new()))
            }
            Err(error) => return ready(Some(failure("DaemonSet", &error))),
        };
        is_known |=
            matches!(&change, Some(change) if !matches!(change, ObjectChange::ListRequested));
        ready(change.map(Event::AgentDaemonSet))
    })
}

/// An operator that may not read this DaemonSet knows that, whatever it read before.
fn kube_proxy_daemon_set_events(api: Api<DynamicObject>) -> impl Stream<Item = Event> + Send {
    // Its role names the object, and the API server reads the name from this selector.
    let name = format!("metadata.name={}", starter::KUBE_PROXY);
    let config = watcher::Config::default().fields(&name);
    let attempts = attempts(
        "the DaemonSet of kube-proxy",
        api,
        config,
        kube_proxy_daemon_set::parse,
    );
    let mut refusals = 0;
    attempts.filter_map(move |attempt| {
        let known = match attempt {
            Ok(change) => KubeProxyDaemonSetState::after(change),
            Err(error) if is_forbidden(&error) => {
                refusals += 1;
                (refusals >= FORBIDDEN_LIMIT).then_some(KubeProxyDaemonSetState::Forbidden)
            }
            Err(error) => return ready(Some(failure("DaemonSet", &error))),
        };
        if known
            .as_ref()
            .is_some_and(|known| *known != KubeProxyDaemonSetState::Forbidden)
        {
            refusals = 0;
        }
        ready(known.map(Event::KubeProxyDaemonSet))
    })
}

fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.is_forbidden(),
        _ => false,
    }
}

fn lease_events(client: Client, namespace: String) -> impl Stream<Item = Event> + Send {
    let mut ticks = interval(LEASES);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let start = (client, namespace, ticks);
    stream::unfold(start, |(client, namespace, mut ticks)| async move {
        ticks.tick().await;
        let at = Instant::now();
        let error = match timeout(LEASES_LIMIT, observe_leases(&client, &namespace)).await {
            Ok(Ok(versions)) => {
                return Some((Event::Leases { versions, at }, (client, namespace, ticks)));
            }
            Ok(Err(error)) => chain(&error).to_string(),
            Err(_) => format!("no answer within {LEASES_LIMIT:?}"),
        };
        warn!(error, "unable to list the Leases of agents");
        Some((
            signal("Lease", WatchSignal::Failed),
            (client, namespace, ticks),
        ))
    })
}

/// Returns the resource versions of the agents' Leases by node name. All pages show the state at the
/// first request; the API server's watch cache alone could be stale.
async fn observe_leases(
    client: &Client,
    namespace: &str,
) -> Result<BTreeMap<String, String>, ListError> {
    let leases = Request::new(Lease::url_path(&(), Some(namespace)));
    let mut parameters = ListParams::default().limit(LEASES_A_PAGE);
    let mut versions = BTreeMap::new();
    loop {
        let request = leases.list_metadata(&parameters)?;
        let page: LeasePage = client.request(request).await?;
        versions.extend(page.items.into_iter().filter_map(|lease| {
            let SlimMetadata {
                name,
                resource_version,
            } = lease.metadata;
            let node = name.strip_prefix(LEASE_PREFIX)?;
            Some((node.to_owned(), resource_version))
        }));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => return Ok(versions),
        }
    }
}

/// Says what has just happened to the watch of `kind`.
fn signal(kind: &'static str, signal: WatchSignal) -> Event {
    let at = Instant::now();
    Event::Watch { kind, signal, at }
}

fn failure(kind: &'static str, error: &watcher::Error) -> Event {
    let what = match error {
        // The watch had started, so that everything until then was heard.
        watcher::Error::WatchFailed(_) | watcher::Error::WatchError(_) => WatchSignal::Interrupted,
        watcher::Error::InitialListFailed(_) => WatchSignal::ListFailed,
        _ => WatchSignal::Failed,
    };
    signal(kind, what)
}

fn changes<K, R>(
    kind: &'static str,
    api: Api<K>,
    parse: impl FnMut(K) -> R + Send,
    event: fn(ObjectChange<R>) -> Event,
) -> impl Stream<Item = Event> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    R: Send + 'static,
{
    let mut is_failing = false;
    attempts(kind, api, watcher::Config::default(), parse).flat_map(move |attempt| {
        let (change, signal) = match attempt {
            Ok(ObjectChange::ListRequested) => (Some(ObjectChange::ListRequested), None),
            Ok(change) => {
                let recovered = || signal(kind, WatchSignal::Recovered);
                (
                    Some(change),
                    std::mem::take(&mut is_failing).then(recovered),
                )
            }
            Err(error) => {
                is_failing = true;
                (None, Some(failure(kind, &error)))
            }
        };
        // First what arrived: nothing is judged by what was known before.
        stream::iter(change.map(event).into_iter().chain(signal))
    })
}

/// Yields the changes of a watch, and the errors after which it restarts, once they are logged.
fn attempts<K, R>(
    what: &'static str,
    api: Api<K>,
    config: watcher::Config,
    mut parse: impl FnMut(K) -> R + Send,
) -> impl Stream<Item = Result<ObjectChange<R>, watcher::Error>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    R: Send + 'static,
{
    let mut listing: Vec<R> = Vec::new();
    let events = watcher(api, config).default_backoff();
    events.filter_map(move |event| {
        let change = match event {
            Ok(watcher::Event::Apply(object)) => {
                Some(Ok(ObjectChange::Applied(Box::new(parse(object)))))
            }
            Ok(watcher::Event::Delete(object)) => {
                let name = object.meta().name.clone();
                name.map(|name| Ok(ObjectChange::Deleted(name)))
            }
            Ok(watcher::Event::Init) => {
                listing.clear();
                Some(Ok(ObjectChange::ListRequested))
            }
            Ok(watcher::Event::InitApply(object)) => {
                listing.push(parse(object));
                None
            }
            Ok(watcher::Event::InitDone) => {
                Some(Ok(ObjectChange::Listed(std::mem::take(&mut listing))))
            }
            Err(error) => {
                warn!(what, error = %chain(&error), "unable to watch");
                Some(Err(error))
            }
        };
        async move { change }
    })
}
