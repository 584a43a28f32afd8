//! A changing set of objects, and a watch of it, for generated histories.
//!
//! The set is small, so that objects collide: four Services, six slices, four addresses. Services
//! are created and deleted, and become headless, another proxy's or an ExternalName and back.
//! Slices change their Service, are split, merged and emptied, and contain the same endpoint twice.
//! Lists begin at any moment, are cut off, and miss deleted objects.

use std::collections::BTreeMap;

use catalog::object::{EndpointSlice, Object, Service, ServiceCidr};
use catalog::{Catalog, Change, Event, ObjectKey};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::world::list;

/// The objects that exist.
#[derive(Debug, Clone, Default)]
pub(crate) struct World {
    services: BTreeMap<ObjectKey, Service>,
    slices: BTreeMap<ObjectKey, EndpointSlice>,
    cidrs: BTreeMap<ObjectKey, ServiceCidr>,
}

/// A change of one object.
#[derive(Debug, Clone)]
pub(crate) enum Deed<T> {
    Put(Box<T>),
    Delete(ObjectKey),
}

/// A change of an object, or an interruption of the watch.
#[derive(Debug, Clone)]
pub(crate) enum Happening {
    Service(Deed<Service>),
    Slice(Deed<EndpointSlice>),
    Cidr(Deed<ServiceCidr>),
    /// The watch is cut; `unseen` happens; a list begins, is cut after this many objects, and
    /// begins again; `meanwhile` happens in the middle of it.
    ServicesListed(Relist<Service>),
    SlicesListed(Relist<EndpointSlice>),
}

#[derive(Debug, Clone)]
pub(crate) struct Relist<T> {
    unseen: Vec<Deed<T>>,
    cut_after: Option<usize>,
    meanwhile: Vec<Deed<T>>,
}

fn enact<T: Object + Clone>(objects: &mut BTreeMap<ObjectKey, T>, deed: &Deed<T>) -> Event<T> {
    match deed {
        Deed::Put(object) => {
            objects.insert(object.key(), T::clone(object));
            Event::Apply(T::clone(object))
        }
        Deed::Delete(key) => {
            objects.remove(key);
            Event::Delete(key.clone())
        }
    }
}

/// The events of a relist. Sends the objects in descending order, unlike all other lists here.
fn relist<T: Object + Clone>(
    objects: &mut BTreeMap<ObjectKey, T>,
    relist: &Relist<T>,
) -> Vec<Event<T>> {
    for deed in &relist.unseen {
        enact(objects, deed);
    }
    let listed: Vec<T> = objects.values().rev().cloned().collect();
    let mut events = Vec::new();
    if let Some(length) = relist.cut_after {
        events.push(Event::Init);
        events.extend(listed.iter().take(length).cloned().map(Event::InitApply));
    }
    events.push(Event::Init);
    events.extend(listed.into_iter().map(Event::InitApply));
    for deed in &relist.meanwhile {
        events.push(enact(objects, deed));
    }
    events.push(Event::InitDone);
    events
}

fn changes<T>(events: Vec<Event<T>>) -> Vec<Change>
where
    Change: From<Event<T>>,
{
    events.into_iter().map(Change::from).collect()
}

impl World {
    pub(crate) fn live(&mut self, happening: &Happening) -> Vec<Change> {
        match happening {
            Happening::Service(deed) => vec![enact(&mut self.services, deed).into()],
            Happening::Slice(deed) => vec![enact(&mut self.slices, deed).into()],
            Happening::Cidr(deed) => vec![enact(&mut self.cidrs, deed).into()],
            Happening::ServicesListed(lists) => changes(relist(&mut self.services, lists)),
            Happening::SlicesListed(lists) => changes(relist(&mut self.slices, lists)),
        }
    }

    /// A catalog that receives every object once, in order.
    pub(crate) fn replay(&self) -> Catalog {
        let mut catalog = Catalog::new("node-1");
        let services: Vec<_> = self.services.values().cloned().collect();
        let slices: Vec<_> = self.slices.values().cloned().collect();
        let cidrs: Vec<_> = self.cidrs.values().cloned().collect();
        list(&mut catalog, &services);
        list(&mut catalog, &slices);
        list(&mut catalog, &cidrs);
        catalog
    }

    /// A catalog that receives every object once, in an order made from `ranks`.
    pub(crate) fn shuffled_replay(&self, ranks: &[u32]) -> Catalog {
        let services = self
            .services
            .values()
            .cloned()
            .map(|object| Event::Apply(object).into());
        let slices = self
            .slices
            .values()
            .cloned()
            .map(|object| Event::Apply(object).into());
        let cidrs = self
            .cidrs
            .values()
            .cloned()
            .map(|object| Event::Apply(object).into());
        let changes: Vec<Change> = services.chain(slices).chain(cidrs).collect();
        let mut ranked: Vec<_> = ranks.iter().cycle().zip(changes).collect();
        ranked.sort_by_key(|(rank, _)| **rank);
        let mut catalog = Catalog::new("node-1");
        for (_, change) in ranked {
            catalog.apply(change);
        }
        catalog
    }
}

pub(crate) fn decoded<T: for<'de> serde::Deserialize<'de>>(object: Value) -> T {
    serde_json::from_value(object).expect("the shape is right")
}

/// Services 0 and 2 are in one namespace, 1 and 3 in the other.
fn namespace(n: usize) -> &'static str {
    ["even", "odd"][n % 2]
}

fn service() -> impl Strategy<Value = Service> {
    let spec = prop_oneof![
        4 => Just(json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ipFamilies": ["IPv4"]})),
        2 => Just(json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"]})),
        1 => Just(json!({"clusterIP": "None", "clusterIPs": ["None"]})),
        1 => Just(json!({"type": "ExternalName", "clusterIP": "10.96.0.1"})),
        1 => Just(json!({"clusterIP": "10.96.0.1", "externalIPs": ["198.51.100.1", "nonsense"]})),
    ];
    let ports = prop_oneof![
        Just(json!([{"name": "http", "port": 80}])),
        Just(json!([{"name": "http", "port": 80}, {"name": "dns", "protocol": "UDP", "port": 53}])),
        Just(json!([{"name": "http", "port": 80}, {"name": "bad", "port": 0}])),
    ];
    let labels = prop_oneof![
        4 => Just(json!({})),
        1 => Just(json!({"service.kubernetes.io/service-proxy-name": "another"})),
    ];
    (0..4_usize, spec, ports, labels).prop_map(|(n, mut spec, ports, labels)| {
        spec["ports"] = ports;
        decoded(json!({
            "metadata": {"namespace": namespace(n), "name": format!("service-{n}"), "labels": labels},
            "spec": spec,
        }))
    })
}

pub(crate) fn endpoint() -> impl Strategy<Value = Value> {
    let conditions = (any::<bool>(), any::<bool>(), any::<bool>());
    let zones = prop_oneof![Just(json!(null)), Just(json!([{"name": "zone-a"}]))];
    (1..5_u8, conditions, 1..3_u8, zones).prop_map(
        |(host, (ready, serving, terminating), node, zones)| {
            json!({
                "addresses": [format!("10.0.1.{host}")],
                "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
                "nodeName": format!("node-{node}"),
                "hints": {"forZones": zones},
            })
        },
    )
}

fn slice() -> impl Strategy<Value = EndpointSlice> {
    let ports = prop_oneof![
        3 => Just(json!([{"name": "http", "port": 8080}])),
        1 => Just(json!([{"name": "http", "port": 8080}, {"name": "dns", "protocol": "UDP", "port": 5353}])),
        1 => Just(json!([{"name": "http", "port": 9090}])),
        1 => Just(json!([{"name": "http"}])),
    ];
    let address_type = prop_oneof![6 => Just("IPv4"), 1 => Just("IPv6"), 1 => Just("FQDN")];
    // Mostly a Service of the same namespace; 4 means none.
    let owner = prop_oneof![4 => 0..2_usize, 1 => 2..5_usize];
    let headless = prop::bool::weighted(0.1);
    // Often the same endpoints, so that slices also differ only in their labels or ports.
    let usual = Just(vec![
        json!({"addresses": ["10.0.1.1"], "nodeName": "node-1"}),
    ]);
    let endpoints = prop_oneof![1 => usual, 2 => vec(endpoint(), 0..4)];
    (0..6_usize, owner, headless, address_type, ports, endpoints).prop_map(
        |(n, owner, headless, address_type, ports, endpoints)| {
            let mut labels = json!({});
            if owner < 4 {
                let service = format!("service-{}", (2 * owner + n % 2) % 4);
                labels["kubernetes.io/service-name"] = json!(service);
            }
            if headless {
                labels["service.kubernetes.io/headless"] = json!("");
            }
            decoded(json!({
                "metadata": {"namespace": namespace(n), "name": format!("slice-{n}"), "labels": labels},
                "addressType": address_type,
                "ports": ports,
                "endpoints": endpoints,
            }))
        },
    )
}

fn cidr() -> impl Strategy<Value = ServiceCidr> {
    let cidrs = vec(
        prop::sample::select(vec!["10.96.0.0/16", "fd00::/112", "x"]),
        0..3,
    );
    (0..2_u8, cidrs).prop_map(|(n, cidrs)| {
        decoded(json!({"metadata": {"name": format!("cidr-{n}")}, "spec": {"cidrs": cidrs}}))
    })
}

/// Three puts for one delete, so that the world does not stay empty.
fn deed<T: Object + Clone + std::fmt::Debug>(
    object: impl Strategy<Value = T>,
) -> impl Strategy<Value = Deed<T>> {
    (object, 0..4_u8).prop_map(|(object, dice)| match dice {
        0 => Deed::Delete(object.key()),
        _ => Deed::Put(Box::new(object)),
    })
}

fn lists<T: Object + Clone + std::fmt::Debug, S: Strategy<Value = T>>(
    object: fn() -> S,
) -> impl Strategy<Value = Relist<T>> {
    let unseen = vec(deed(object()), 0..4);
    let meanwhile = vec(deed(object()), 0..3);
    (unseen, prop::option::of(0..4_usize), meanwhile).prop_map(|(unseen, cut_after, meanwhile)| {
        Relist {
            unseen,
            cut_after,
            meanwhile,
        }
    })
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => deed(service()).prop_map(Happening::Service),
        8 => deed(slice()).prop_map(Happening::Slice),
        1 => deed(cidr()).prop_map(Happening::Cidr),
        1 => lists(service).prop_map(Happening::ServicesListed),
        2 => lists(slice).prop_map(Happening::SlicesListed),
    ]
}

pub(crate) fn history() -> impl Strategy<Value = Vec<Happening>> {
    vec(happening(), 1..40)
}
