//! The state that the source has delivered so far, joined by Service.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use dataplane::{Endpoints, ObjectKind, Rejection, Service, ServiceKey};
use ipnet::IpNet;
use smallvec::SmallVec;

use crate::object::name::admit;
use crate::object::{self, Object};
use crate::object_store::{Faults, ObjectStore, Replaced, Step, repack};
use crate::parse::{
    Parsed, parse_endpoint_slice, parse_node, parse_service, parse_service_cidr, unserved,
};
use crate::shared_names::SharedNames;
use crate::slice::{
    Extent, MOST_LOOKUPS, MOST_SLICE_PORTS, MOST_SLICES, Slice, SliceNames, differ_at_a_port,
    differing, merge,
};
use crate::{Change, Dirty, Event, NodeLifecycle, ObjectKey, OwnNode, Trigger, Unserved};

/// The objects that one source has delivered, for the agent of one node.
#[derive(Debug)]
pub struct Catalog {
    node_name: Arc<str>,
    services: ObjectStore<Arc<Service>>,
    /// Services that are not programmed, for queries by name.
    unserved: BTreeMap<ObjectKey, Unserved>,
    /// Boxed: a B-tree may have room for twice as many values as it holds.
    slices: ObjectStore<Box<Slice>>,
    /// The names of the slices of each Service, sorted, including Services that do not exist yet.
    slices_of: BTreeMap<ServiceKey, SliceNames>,
    nodes: ObjectStore<OwnNode>,
    service_cidrs: ObjectStore<BTreeSet<IpNet>>,
    names: SharedNames,
    dirty: Dirty,
}

/// A Service and its endpoints, as input for the compiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The Service.
    pub service: Arc<Service>,
    /// Its endpoints, merged over all of its slices, including those of ports that the Service does
    /// not have.
    pub endpoints: Endpoints,
}

// === impl Catalog ===

impl Catalog {
    /// Creates an empty catalog for the node called `node_name`; it keeps no other Node.
    pub fn new(node_name: impl Into<Arc<str>>) -> Catalog {
        Catalog {
            node_name: node_name.into(),
            services: ObjectStore::new(ObjectKind::Service),
            unserved: BTreeMap::new(),
            slices: ObjectStore::new(ObjectKind::EndpointSlice),
            slices_of: BTreeMap::new(),
            nodes: ObjectStore::new(ObjectKind::Node),
            service_cidrs: ObjectStore::new(ObjectKind::ServiceCidr),
            names: SharedNames::default(),
            dirty: Dirty::default(),
        }
    }

    /// Restores what an earlier process knew of this node's own object. Until an event for the
    /// object arrives, it counts as deleted. A Node object that is created again starts without
    /// addresses and ranges.
    pub fn recall_node(&mut self, node: OwnNode) {
        let own = ObjectKey::cluster(Arc::clone(&self.node_name));
        let node = OwnNode {
            lifecycle: NodeLifecycle::Gone,
            ..node
        };
        self.nodes.put(own, Parsed::clean(node));
    }

    /// Applies an event. Never fails; a part of the object that cannot be honoured becomes a
    /// rejection. The cost is proportional to the object; for changed endpoints, times the slices
    /// of their Service.
    pub fn apply(&mut self, change: impl Into<Change>) {
        match change.into() {
            Change::Service(event) => self.apply_service(admit(*event)),
            Change::EndpointSlice(event) => self.apply_slice(admit(*event)),
            Change::Node(event) => self.apply_node(admit(*event)),
            Change::ServiceCidr(event) => self.apply_service_cidr(admit(*event)),
        }
    }

    /// Whether every kind has been listed once. Until then an object that is missing here may still
    /// exist, so nothing may be removed from the kernel because of it.
    pub fn synced(&self) -> bool {
        self.missing().next().is_none()
    }

    /// The kinds whose first list has not ended yet.
    pub fn missing(&self) -> impl Iterator<Item = ObjectKind> {
        [
            (ObjectKind::Service, self.services.synced()),
            (ObjectKind::EndpointSlice, self.slices.synced()),
            (ObjectKind::Node, self.nodes.synced()),
            (ObjectKind::ServiceCidr, self.service_cidrs.synced()),
        ]
        .into_iter()
        .filter_map(|(kind, synced)| (!synced).then_some(kind))
    }

    /// Returns what changed since the last call.
    pub fn take_dirty(&mut self) -> Dirty {
        mem::take(&mut self.dirty)
    }

    /// What [`Catalog::take_dirty`] would return.
    pub fn dirty(&self) -> &Dirty {
        &self.dirty
    }

    /// The Services to be programmed, in order.
    pub fn services(&self) -> impl Iterator<Item = &ServiceKey> {
        self.services.values().map(|service| &service.key)
    }

    /// Returns a Service that is to be programmed.
    pub fn definition(&self, key: &ServiceKey) -> Option<&Arc<Service>> {
        self.services.get(&object_key(key))
    }

    /// Returns the endpoints of a Service, merged on demand; `None` if it is not to be programmed. The
    /// cost is proportional to its own slices.
    pub fn endpoints(&self, key: &ServiceKey) -> Option<Endpoints> {
        let service = self.definition(key)?;
        let mut endpoints = merge(self.slices_of(key), Extent::Everything, &service.ports);
        endpoints.left_out.slices = self.slice_names(key).len() - self.slice_keys(key).count();
        Some(endpoints)
    }

    /// Returns a Service with its endpoints.
    pub fn service(&self, key: &ServiceKey) -> Option<View> {
        Some(View {
            service: Arc::clone(self.definition(key)?),
            endpoints: self.endpoints(key)?,
        })
    }

    /// Estimates the work of [`Catalog::service`] and of compiling what it returns: one for each
    /// endpoint with each port of its slice, and one for each use of an address. 0 for a Service
    /// that is not to be programmed.
    pub fn work(&self, key: &ServiceKey) -> usize {
        let Some(service) = self.services.get(&object_key(key)) else {
            return 0;
        };
        let pairs = |slice: &Slice| slice.ports.len() * slice.endpoints.len();
        let addresses = service.load_balancer_ips.len() + service.external_ips.len();
        let uses = service.ports.len() * (2 + addresses);
        self.slices_of(key).map(pairs).sum::<usize>() + uses + service.source_ranges.len()
    }

    /// Why Signpost does not serve a Service that the source delivered. `None` for Services that it
    /// serves and for unknown ones; a source may omit Services of other proxies.
    pub fn unserved(&self, key: &ServiceKey) -> Option<Unserved> {
        self.unserved.get(&object_key(key)).copied()
    }

    /// The names of the EndpointSlices of a Service, sorted.
    pub fn slice_names(&self, key: &ServiceKey) -> &[Arc<str>] {
        self.slices_of.get(key).map_or(&[], SmallVec::as_slice)
    }

    /// The Services that have an endpoint with this address, in any condition, in order, including
    /// Services that do not exist yet. The cost is proportional to the cluster.
    pub fn services_behind(&self, address: IpAddr) -> BTreeSet<ServiceKey> {
        let addresses = BTreeSet::from([address]);
        self.slices
            .values()
            .filter(|slice| slice.at(&addresses).next().is_some())
            .map(|slice| slice.service.clone())
            .collect()
    }

    /// This node's own Node object, if it has ever been seen.
    pub fn node(&self) -> Option<&OwnNode> {
        self.nodes.values().next()
    }

    /// The ranges of all ServiceCIDRs; empty if none is known.
    pub fn service_cidrs(&self) -> BTreeSet<IpNet> {
        self.service_cidrs.values().flatten().copied().collect()
    }

    /// Everything that is not honoured, by kind and then by object. The cost is proportional to the
    /// number of rejections, not of objects.
    pub fn rejections(&self) -> impl Iterator<Item = &Rejection> {
        self.faults().flat_map(|faults| faults.rejections())
    }

    /// The same, by object. A user can have ten thousand objects with a hundred messages each, which
    /// a caller that keeps them shares with the catalog. The cost is proportional to the number of such
    /// objects.
    pub fn faults(&self) -> impl Iterator<Item = &Arc<Faults>> {
        self.services
            .faults()
            .chain(self.slices.faults())
            .chain(self.nodes.faults())
            .chain(self.service_cidrs.faults())
    }

    fn apply_service(&mut self, event: Event<object::Service>) {
        if matches!(event, Event::Init) {
            // The source is about to deliver every existing object again.
            self.unserved.clear();
        }
        let (steps, rejections_changed) = self.services.receive(event);
        self.dirty.rejections |= rejections_changed;
        for step in steps {
            let (key, replaced) = match step {
                Step::Put(object) => {
                    // Its slices contain its name, too.
                    let mut key = self.shared(object.key());
                    key.name = self.names.share(&key.name);
                    match unserved(&object) {
                        Some(reason) => drop(self.unserved.insert(key.clone(), reason)),
                        None => drop(self.unserved.remove(&key)),
                    }
                    let parsed = parse_service(&object, &mut self.names);
                    (key.clone(), self.services.put(key, parsed))
                }
                Step::Remove(key) => {
                    self.unserved.remove(&key);
                    let replaced = self.services.remove(&key);
                    (key, replaced)
                }
            };
            self.dirty.rejections |= replaced.rejections_changed;
            if replaced.before.as_ref() != self.services.get(&key) {
                let trigger = self.trigger(None);
                self.dirty.mark(&service_key(&key), trigger);
            }
        }
    }

    fn apply_slice(&mut self, event: Event<object::EndpointSlice>) {
        let listed = matches!(event, Event::InitDone);
        let (steps, rejections_changed) = self.slices.receive(event);
        self.dirty.rejections |= rejections_changed;
        for step in steps {
            match step {
                Step::Put(object) => {
                    let key = self.shared(object.key());
                    let parsed = parse_endpoint_slice(&object, &mut self.names);
                    let replaced = self.slices.put(key.clone(), parsed);
                    self.slice_changed(&key, replaced);
                }
                Step::Remove(key) => {
                    let replaced = self.slices.remove(&key);
                    self.slice_changed(&key, replaced);
                }
            }
        }
        if listed {
            repack(&mut self.slices_of);
        }
    }

    /// Marks the Services whose endpoints changed because the slice `key` was replaced: the Service
    /// that it belonged to, and the one that it belongs to now.
    fn slice_changed(&mut self, key: &ObjectKey, replaced: Replaced<Box<Slice>>) {
        self.dirty.rejections |= replaced.rejections_changed;
        let before = replaced.before;
        let before = before.as_deref();
        let old_service = before.map(|slice| slice.service.clone());
        let new_service = self.slices.get(key).map(|slice| slice.service.clone());
        if old_service != new_service {
            if let Some(service) = &old_service {
                self.unlink(service, &key.name);
            }
            if let Some(service) = &new_service {
                self.link(service, &key.name);
            }
        }
        let affected: BTreeSet<ServiceKey> = old_service.into_iter().chain(new_service).collect();
        for service in affected {
            if self.endpoints_changed(&service, key, before) {
                let trigger = self.trigger(Some((before, self.slice(key))));
                self.dirty.mark(&service, trigger);
            }
        }
    }

    /// Whether the endpoints of `service` differ from those with the version `before` of the slice
    /// `key`. Checks only the addresses at which the two versions differ; a second copy of an
    /// endpoint in another slice can make a difference disappear. To check them in all slices may take
    /// longer than to compile the Service: then they count as changed.
    fn endpoints_changed(
        &self,
        service: &ServiceKey,
        key: &ObjectKey,
        before: Option<&Slice>,
    ) -> bool {
        let Some(served) = self.services.get(&object_key(service)) else {
            return false;
        };
        let belongs = |slice: &&Slice| slice.service == *service;
        let before = before.filter(belongs);
        let after = self.slice(key).filter(belongs);
        if before.is_none() && self.slice_names(service).len() == 1 {
            // The first one of its Service: all there is in a first list, and nothing to compare with.
            return after
                .is_some_and(|slice| !slice.ports.is_empty() && !slice.endpoints.is_empty());
        }
        // The set of merged slices may have changed, too.
        let ports_before = before.map_or(0, |slice| slice.ports.len());
        if self.slice_names(service).len() >= MOST_SLICES
            || self.slice_ports(service) + ports_before > MOST_SLICE_PORTS
        {
            return true;
        }
        let addresses = differing(before, after);
        if addresses.len() * self.slice_names(service).len() > MOST_LOOKUPS {
            return true;
        }
        let mut names = self.slice_names(service).iter();
        if let (Some(before), Some(after)) = (before, after)
            && before.ports == after.ports
            && !before.may_be_too_large()
            && !after.may_be_too_large()
            && names.all(|name| *name == key.name)
        {
            return differ_at_a_port(before, after, &addresses);
        }
        let with = |version: Option<&Slice>| {
            let others = self
                .slice_keys(service)
                .filter(|other| other != key)
                .filter_map(|other| self.slice(&other));
            let extent = Extent::Addresses(&addresses);
            merge(others.chain(version), extent, &served.ports)
        };
        let differ = || {
            let (before, after) = (with(before), with(after));
            // Ports that are left out of either may differ.
            !before.left_out.ports.is_empty() || before != after
        };
        !addresses.is_empty() && differ()
    }

    fn apply_node(&mut self, event: Event<object::Node>) {
        let own = ObjectKey::cluster(Arc::clone(&self.node_name));
        if let Event::Undecodable { key, .. } = &event
            && *key != own
        {
            return;
        }
        let (steps, rejections_changed) = self.nodes.receive(event);
        self.dirty.rejections |= rejections_changed;
        for step in steps {
            let replaced = match step {
                Step::Put(object) if object.key() == own => {
                    let parsed = parse_node(&object, self.nodes.get(&own), &mut self.names);
                    self.nodes.put(own.clone(), parsed)
                }
                Step::Remove(key) if key == own => {
                    let Some(mut node) = self.nodes.get(&own).cloned() else {
                        // It was never decoded, and has now been deleted.
                        self.dirty.rejections |= self.nodes.remove(&own).rejections_changed;
                        continue;
                    };
                    node.lifecycle = NodeLifecycle::Gone;
                    self.nodes.put(own.clone(), Parsed::clean(node))
                }
                Step::Put(_) | Step::Remove(_) => continue,
            };
            self.dirty.rejections |= replaced.rejections_changed;
            self.dirty.node |= replaced.before.as_ref() != self.nodes.get(&own);
        }
    }

    fn apply_service_cidr(&mut self, event: Event<object::ServiceCidr>) {
        let before = self.service_cidrs();
        let (steps, rejections_changed) = self.service_cidrs.receive(event);
        self.dirty.rejections |= rejections_changed;
        for step in steps {
            let replaced = match step {
                Step::Put(object) => {
                    let parsed = parse_service_cidr(&object);
                    self.service_cidrs.put(object.key(), parsed)
                }
                Step::Remove(key) => self.service_cidrs.remove(&key),
            };
            self.dirty.rejections |= replaced.rejections_changed;
        }
        self.dirty.service_cidrs |= before != self.service_cidrs();
    }

    /// The start of the latency of a change that is recorded now. `versions` are the old and the
    /// new version of the changed slice.
    fn trigger(&self, versions: Option<(Option<&Slice>, Option<&Slice>)>) -> Trigger {
        if !self.synced() {
            return Trigger::Bootstrap;
        }
        // A deleted slice still has the time of its last change, and so does one whose labels were
        // edited: only a new time belongs to this change.
        let time = versions.and_then(|(before, after)| {
            let time = after?.trigger?;
            (before.and_then(|slice| slice.trigger) != Some(time)).then_some(time)
        });
        time.map_or(Trigger::Untimed, Trigger::At)
    }

    fn slices_of(&self, service: &ServiceKey) -> impl Iterator<Item = &Slice> {
        self.slice_keys(service).filter_map(|key| self.slice(&key))
    }

    fn slice(&self, key: &ObjectKey) -> Option<&Slice> {
        self.slices.get(key).map(|slice| &**slice)
    }

    /// The slices that are merged: the first by name, up to [`MOST_SLICES`] with
    /// [`MOST_SLICE_PORTS`] ports.
    fn slice_keys(&self, service: &ServiceKey) -> impl Iterator<Item = ObjectKey> {
        let mut room = MOST_SLICE_PORTS;
        let keys = self.all_slice_keys(service).take(MOST_SLICES);
        keys.take_while(move |key| {
            let rest = room.checked_sub(self.ports_of(key));
            room = rest.unwrap_or_default();
            rest.is_some()
        })
    }

    fn all_slice_keys(&self, service: &ServiceKey) -> impl Iterator<Item = ObjectKey> {
        let namespace = Arc::clone(&service.namespace);
        let names = self.slice_names(service).iter();
        names.map(move |name| ObjectKey {
            namespace: Arc::clone(&namespace),
            name: Arc::clone(name),
        })
    }

    /// The number of ports of all slices of a Service, merged or not.
    fn slice_ports(&self, service: &ServiceKey) -> usize {
        let keys = self.all_slice_keys(service);
        keys.map(|key| self.ports_of(&key)).sum()
    }

    fn ports_of(&self, slice: &ObjectKey) -> usize {
        self.slice(slice).map_or(0, |slice| slice.ports.len())
    }

    fn link(&mut self, service: &ServiceKey, slice: &Arc<str>) {
        let names = self.slices_of.entry(service.clone()).or_default();
        if let Err(place) = names.binary_search(slice) {
            names.insert(place, Arc::clone(slice));
        }
    }

    fn unlink(&mut self, service: &ServiceKey, slice: &Arc<str>) {
        let Some(names) = self.slices_of.get_mut(service) else {
            return;
        };
        if let Ok(place) = names.binary_search(slice) {
            names.remove(place);
        }
        if names.is_empty() {
            self.slices_of.remove(service);
        }
    }

    fn shared(&mut self, key: ObjectKey) -> ObjectKey {
        ObjectKey {
            namespace: self.names.share(&key.namespace),
            name: key.name,
        }
    }
}

fn object_key(key: &ServiceKey) -> ObjectKey {
    ObjectKey {
        namespace: Arc::clone(&key.namespace),
        name: Arc::clone(&key.name),
    }
}

fn service_key(key: &ObjectKey) -> ServiceKey {
    ServiceKey {
        namespace: Arc::clone(&key.namespace),
        name: Arc::clone(&key.name),
    }
}
