//! The cluster of a scenario: its objects and the compiled dataplane.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use catalog::object::{EndpointSlice, Node, Object, Service, ServiceCidr};
use catalog::{Catalog, Change, Event};
use dataplane::{Config, Dataplane, Family, compile};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use testkit::{address_plan, mk_config, mk_node};

use super::Setting;

/// The state of the API server and of one node's agent.
#[derive(Debug)]
pub struct Cluster {
    /// All objects by kind and name.
    objects: BTreeMap<(Kind, String), Value>,
    settings: Vec<Setting>,
    catalog: Catalog,
    dataplane: Dataplane,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
enum Kind {
    Service,
    EndpointSlice,
    Node,
    #[serde(rename = "ServiceCIDR")]
    ServiceCidr,
}

/// A change of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallOutcome {
    Applied,
    Deleted,
    Listed,
}

// === impl Cluster ===

impl Cluster {
    /// Creates a cluster without objects, already listed by the agent of node 1.
    pub fn new() -> Result<Cluster> {
        let mut cluster = Cluster {
            objects: BTreeMap::new(),
            settings: Vec::new(),
            catalog: Catalog::new(address_plan::NODE),
            dataplane: Dataplane::default(),
        };
        cluster.restart()?;
        Ok(cluster)
    }

    /// Returns the desired state of node 1.
    pub fn dataplane(&self) -> &Dataplane {
        &self.dataplane
    }

    /// Returns one line for each unsupported or rejected setting: first those of the catalog, then
    /// of the compiler, then the disputed claims in the dataplane.
    pub fn rejections(&self) -> String {
        let services = self.dataplane.services().sorted().into_iter();
        let compiled = services.flat_map(|(_, rules)| &rules.rejections);
        let disputed = self.dataplane.disputes().rejections();
        let all = self.catalog.rejections().chain(compiled).chain(&disputed);
        all.map(|rejection| format!("{rejection}\n")).collect()
    }

    /// Creates or replaces every object of a YAML text.
    pub fn apply(&mut self, yaml: &str) -> Result<()> {
        for (kind, name, object) in parse_objects(yaml)? {
            self.catalog
                .apply(parse_change(kind, &object, CallOutcome::Applied)?);
            self.objects.insert((kind, name), object);
        }
        Ok(())
    }

    /// Deletes every object of a YAML text.
    pub fn delete(&mut self, yaml: &str) -> Result<()> {
        for (kind, name, object) in parse_objects(yaml)? {
            if self.objects.remove(&(kind, name.clone())).is_none() {
                bail!("{kind:?} {name} does not exist");
            }
            self.catalog
                .apply(parse_change(kind, &object, CallOutcome::Deleted)?);
        }
        Ok(())
    }

    /// Replaces the configuration.
    pub fn configure(&mut self, settings: &[Setting]) {
        self.settings = settings.to_vec();
        self.compile_all();
    }

    /// Discards all state but the objects, then lists them.
    pub fn restart(&mut self) -> Result<()> {
        self.catalog = Catalog::new(address_plan::NODE);
        self.catalog.apply(Event::<Service>::Init);
        self.catalog.apply(Event::<EndpointSlice>::Init);
        self.catalog.apply(Event::<Node>::Init);
        self.catalog.apply(Event::<ServiceCidr>::Init);
        for ((kind, _), object) in &self.objects {
            self.catalog
                .apply(parse_change(*kind, object, CallOutcome::Listed)?);
        }
        self.catalog.apply(Event::<Service>::InitDone);
        self.catalog.apply(Event::<EndpointSlice>::InitDone);
        self.catalog.apply(Event::<Node>::InitDone);
        self.catalog.apply(Event::<ServiceCidr>::InitDone);
        self.dataplane = Dataplane::default();
        self.compile_all();
        Ok(())
    }

    /// Compiles the changes since the last call.
    pub fn compile(&mut self) {
        let dirty = self.catalog.take_dirty();
        if dirty.node || dirty.service_cidrs {
            self.compile_all();
            return;
        }
        for service in dirty.services.keys() {
            self.compile_one(service);
        }
    }

    fn compile_all(&mut self) {
        self.catalog.take_dirty();
        let mut node = mk_node(1).local_address(&address_plan::link_local_address().to_string());
        for family in Family::ALL {
            node = node.local_address(&address_plan::shared_cluster_ip(family).to_string());
        }
        if let Some(zone) = self.catalog.node().and_then(|node| node.zone.as_deref()) {
            node = node.zone(zone);
        }
        let config = self.config();
        self.dataplane.set_node(node.build(), config);
        let before = self.dataplane.services().sorted().into_iter();
        let before: Vec<_> = before.map(|(service, _)| service.clone()).collect();
        let now: Vec<_> = self.catalog.services().cloned().collect();
        for service in before.iter().chain(&now) {
            self.compile_one(service);
        }
    }

    fn compile_one(&mut self, service: &dataplane::ServiceKey) {
        let Some(view) = self.catalog.service(service) else {
            self.dataplane.remove(service);
            return;
        };
        let (node, config) = (self.dataplane.node(), self.dataplane.config());
        let rules = compile(&view.service, &view.endpoints, node, config);
        self.dataplane.set(Arc::new(rules));
    }

    fn config(&self) -> Arc<Config> {
        let changed = self.settings.iter();
        let config = changed.fold(mk_config(), |config, setting| setting.change(config));
        let mut config = Arc::unwrap_or_clone(config.build());
        let listed = self.catalog.service_cidrs();
        if !listed.is_empty() {
            config.service_cidrs = listed;
        }
        Arc::new(config)
    }
}

fn parse_objects(yaml: &str) -> Result<Vec<(Kind, String, Value)>> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(yaml).context("this is not the YAML of objects")?;
    let mut objects = Vec::new();
    for document in documents {
        if document.is_null() {
            continue;
        }
        let kind = Kind::deserialize(&document["kind"])
            .with_context(|| format!("no scenario has objects of kind {}", document["kind"]))?;
        let metadata = &document["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        let name = metadata["name"]
            .as_str()
            .context("metadata.name is missing")?;
        objects.push((kind, format!("{namespace}/{name}"), document));
    }
    Ok(objects)
}

fn parse_change(kind: Kind, object: &Value, fate: CallOutcome) -> Result<Change> {
    match kind {
        Kind::Service => Ok(parse_event::<Service>(object, fate)?.into()),
        Kind::EndpointSlice => Ok(parse_event::<EndpointSlice>(object, fate)?.into()),
        Kind::Node => Ok(parse_event::<Node>(object, fate)?.into()),
        Kind::ServiceCidr => Ok(parse_event::<ServiceCidr>(object, fate)?.into()),
    }
}

fn parse_event<T: Object + DeserializeOwned>(
    object: &Value,
    fate: CallOutcome,
) -> Result<Event<T>> {
    let object: T = serde_json::from_value(object.clone())
        .with_context(|| format!("this is not a {:?}: {object}", T::KIND))?;
    Ok(match fate {
        CallOutcome::Applied => Event::Apply(object),
        CallOutcome::Deleted => Event::Delete(object.key()),
        CallOutcome::Listed => Event::InitApply(object),
    })
}
