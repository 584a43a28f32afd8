//! Objects as last received from the API server. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::{NodeProxy, ProxyProfile};
use jiff::Timestamp;
use kube::api::DynamicObject;

use super::connection::{Connection, WatchState};
use super::view::nodes::NodeRow;
use crate::cluster::{ObjectEvent, Unreadable, parse};

/// The kind of object that a watch reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Profiles,
    NodeProxies,
    Nodes,
}

/// The last received state of the cluster.
#[derive(Debug)]
pub(super) struct ClusterState {
    server: String,
    namespace: String,
    /// The flags that select this cluster on a command line.
    pub(super) flags: String,
    pub(super) profiles: ObjectCache<ProxyProfile>,
    pub(super) proxies: ObjectCache<Observed>,
    pub(super) nodes: ObjectCache<()>,
}

/// The objects of one kind, by name.
#[derive(Debug)]
pub(super) struct ObjectCache<T> {
    pub(super) objects: BTreeMap<String, T>,
    pub(super) unreadable: BTreeMap<String, Unreadable>,
    watch: WatchState,
    /// Whether a list has succeeded: until then, an object that is not here may exist.
    is_complete: bool,
}

/// A NodeProxy and the values derived from it alone.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) proxy: NodeProxy,
    pub(super) row: Arc<NodeRow>,
}

// === impl ClusterState ===

impl ClusterState {
    /// Creates an empty state.
    pub(super) fn new(server: &str, namespace: &str, flags: String) -> ClusterState {
        ClusterState {
            server: server.to_owned(),
            namespace: namespace.to_owned(),
            flags,
            profiles: ObjectCache::new(),
            proxies: ObjectCache::new(),
            nodes: ObjectCache::new(),
        }
    }

    pub(super) fn apply(&mut self, source: Source, event: ObjectEvent, now: Timestamp) {
        match source {
            Source::Profiles => self.profiles.apply(event, now, parse),
            Source::NodeProxies => self.proxies.apply(event, now, Observed::parse),
            Source::Nodes => self.nodes.apply(event, now, |_| Ok(())),
        }
    }

    pub(super) fn connection(&self) -> Connection {
        let place = (self.server.as_str(), self.namespace.as_str());
        let required = [&self.profiles.watch, &self.proxies.watch];
        Connection::of(place, required, &self.nodes.watch)
    }

    /// Returns the nodes of the cluster that no profile configures.
    pub(super) fn unconfigured(&self) -> Vec<String> {
        if !self.proxies.is_complete {
            return Vec::new();
        }
        let proxies = &self.proxies;
        let configured = |name: &&String| {
            proxies.objects.contains_key(*name) || proxies.unreadable.contains_key(*name)
        };
        let nodes = self.nodes.objects.keys();
        nodes.filter(|name| !configured(name)).cloned().collect()
    }
}

// === impl ObjectCache ===

impl<T> ObjectCache<T> {
    fn new() -> ObjectCache<T> {
        ObjectCache {
            objects: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            watch: WatchState::Pending,
            is_complete: false,
        }
    }

    /// Whether the first list has ended, successfully or not.
    pub(super) fn is_read(&self) -> bool {
        self.watch != WatchState::Pending
    }

    fn apply(
        &mut self,
        event: ObjectEvent,
        now: Timestamp,
        read: impl Fn(DynamicObject) -> Result<T, Unreadable>,
    ) {
        match event {
            ObjectEvent::Listed(objects) => {
                let names = objects
                    .iter()
                    .filter_map(|object| object.metadata.name.clone());
                let names: BTreeSet<String> = names.collect();
                self.objects.retain(|name, _| names.contains(name));
                self.unreadable.retain(|name, _| names.contains(name));
                for object in objects {
                    self.put(object, &read);
                }
                self.watch = WatchState::Follows;
                self.is_complete = true;
            }
            ObjectEvent::Changed(object) => self.put(*object, &read),
            ObjectEvent::Deleted(name) => {
                self.objects.remove(&name);
                self.unreadable.remove(&name);
            }
            ObjectEvent::Follows => self.watch = WatchState::Follows,
            ObjectEvent::Fails(error) => self.watch.fail(&error, now),
        }
    }

    fn put(
        &mut self,
        object: DynamicObject,
        read: impl Fn(DynamicObject) -> Result<T, Unreadable>,
    ) {
        let name = object.metadata.name.clone().unwrap_or_default();
        match read(object) {
            Ok(object) => {
                self.unreadable.remove(&name);
                self.objects.insert(name, object);
            }
            Err(unreadable) => {
                self.objects.remove(&name);
                self.unreadable.insert(name, unreadable);
            }
        }
    }
}

// === impl Observed ===

impl Observed {
    fn parse(object: DynamicObject) -> Result<Observed, Unreadable> {
        let proxy: NodeProxy = parse(object)?;
        let row = Arc::new(NodeRow::of(&proxy));
        Ok(Observed { proxy, row })
    }
}
