//! Objects, catalogs and snapshots for histories.

use std::collections::{BTreeMap, BTreeSet};

use catalog::object::{
    EndpointSlice, LAST_CHANGE_TRIGGER_TIME, Node, Object, Service, ServiceCidr,
};
use catalog::{Catalog, Change, Event, OwnNode, View};
use dataplane::{Rejection, ServiceKey};
use ipnet::IpNet;
use serde_json::json;

/// The results of every query to a catalog.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Snapshot {
    pub(crate) views: BTreeMap<ServiceKey, View>,
    pub(crate) node: Option<OwnNode>,
    pub(crate) service_cidrs: BTreeSet<IpNet>,
    pub(crate) rejections: Vec<Rejection>,
}

pub(crate) fn snapshot(catalog: &Catalog) -> Snapshot {
    let view = |key: &ServiceKey| {
        let view = catalog
            .service(key)
            .expect("a Service that is listed has a view");
        (key.clone(), view)
    };
    Snapshot {
        views: catalog.services().map(view).collect(),
        node: catalog.node().cloned(),
        service_cidrs: catalog.service_cidrs(),
        rejections: catalog.rejections().cloned().collect(),
    }
}

impl Snapshot {
    /// The Services whose view differs in `later`.
    pub(crate) fn changed(&self, later: &Snapshot) -> BTreeSet<ServiceKey> {
        let keys: BTreeSet<&ServiceKey> = self.views.keys().chain(later.views.keys()).collect();
        keys.into_iter()
            .filter(|key| self.views.get(key) != later.views.get(key))
            .cloned()
            .collect()
    }
}

/// A catalog with these objects that has received a list of every kind.
pub(crate) fn synced(services: &[Service], slices: &[EndpointSlice]) -> Catalog {
    let mut catalog = Catalog::new("node-1");
    list(&mut catalog, services);
    list(&mut catalog, slices);
    list::<Node>(&mut catalog, &[]);
    list::<ServiceCidr>(&mut catalog, &[]);
    catalog.take_dirty();
    catalog
}

/// Sends a whole list.
pub(crate) fn list<T: Object + Clone>(catalog: &mut Catalog, objects: &[T])
where
    Change: From<Event<T>>,
{
    catalog.apply(Event::<T>::Init);
    for object in objects {
        catalog.apply(Event::InitApply(object.clone()));
    }
    catalog.apply(Event::<T>::InitDone);
}

/// The Service `shop/name`.
pub(crate) fn service(name: &str) -> Service {
    let object = json!({
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "http", "port": 80}]},
    });
    serde_json::from_value(object).expect("the shape is right")
}

/// The slice `shop/name` of the Service `shop/service` with these pods, named by their last octet.
pub(crate) fn slice(name: &str, service: &str, pods: &[u8]) -> EndpointSlice {
    let endpoints: Vec<_> = pods
        .iter()
        .map(|pod| json!({"addresses": [format!("10.0.1.{pod}")]}))
        .collect();
    let object = json!({
        "metadata": {
            "namespace": "shop",
            "name": name,
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": endpoints,
    });
    serde_json::from_value(object).expect("the shape is right")
}

/// The slice with a trigger time at this second of 1970.
pub(crate) fn triggered(mut slice: EndpointSlice, second: u64) -> EndpointSlice {
    let time = format!("1970-01-01T00:00:{second:02}Z");
    let annotations = &mut slice.metadata.annotations;
    annotations.insert(LAST_CHANGE_TRIGGER_TIME.to_owned(), time);
    slice
}

/// The last octets of all endpoints of the Service `shop/name`.
pub(crate) fn pods(catalog: &Catalog, name: &str) -> Vec<String> {
    let view = catalog.service(&ServiceKey::new("shop", name));
    view.into_iter()
        .flat_map(|view| view.endpoints.by_port.into_values().flatten())
        .map(|endpoint| endpoint.address.to_string().replace("10.0.1.", ""))
        .collect()
}

/// The names of the Services that a catalog has marked; unmarks them.
pub(crate) fn taken(catalog: &mut Catalog) -> Vec<String> {
    let dirty = catalog.take_dirty();
    dirty
        .services
        .keys()
        .map(|key| key.name.to_string())
        .collect()
}

/// The names of the Services that a catalog serves.
pub(crate) fn served(catalog: &Catalog) -> Vec<String> {
    catalog.services().map(|key| key.name.to_string()).collect()
}
