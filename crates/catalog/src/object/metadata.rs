//! The part of an object's metadata that is used.

use std::collections::BTreeMap;
use std::fmt;

use dataplane::Service;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::Field;
use crate::ObjectKey;

/// The label by which a Service selects another proxy than the default one.
pub const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// The label of slices that belong to a headless Service.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
/// The label, and its value, of the cluster's DNS Service.
pub const CLUSTER_DNS: (&str, &str) = ("k8s-app", "kube-dns");
/// The label that names the Service a slice belongs to.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label with a Node's zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// The annotation with the time of the change that led to a slice's content.
pub const LAST_CHANGE_TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// `metadata` of any object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// `name`.
    pub name: String,
    /// `namespace`; absent for cluster-scoped kinds.
    #[serde(default)]
    pub namespace: Option<String>,
    /// `uid`; absent outside an API server.
    #[serde(default)]
    pub uid: Option<String>,
    /// `resourceVersion`, an opaque text; absent outside an API server.
    #[serde(default)]
    pub resource_version: Option<String>,
    /// `creationTimestamp` in RFC 3339; absent outside an API server.
    #[serde(default)]
    pub creation_timestamp: Option<String>,
    /// `deletionTimestamp` in RFC 3339; present from the deletion request on.
    #[serde(default)]
    pub deletion_timestamp: Option<String>,
    /// `labels`, all of them: node selectors may name any.
    #[serde(default, deserialize_with = "all_labels")]
    pub labels: BTreeMap<String, String>,
    /// `annotations`, of which only [`LAST_CHANGE_TRIGGER_TIME`] and [`Service::SCHEDULER`] are
    /// kept: others can be as large as the object itself
    /// (`kubectl.kubernetes.io/last-applied-configuration`).
    #[serde(default, deserialize_with = "read_annotations")]
    pub annotations: BTreeMap<String, String>,
}

// === impl Metadata ===

impl Metadata {
    pub(crate) fn namespaced_key(&self) -> ObjectKey {
        let namespace = match self.namespace.as_deref() {
            None | Some("") => "default",
            Some(namespace) => namespace,
        };
        ObjectKey::namespaced(namespace, self.name.as_str())
    }

    pub(crate) fn cluster_key(&self) -> ObjectKey {
        ObjectKey::cluster(self.name.as_str())
    }
}

fn all_labels<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let labels = Option::<BTreeMap<String, Field<String>>>::deserialize(deserializer)?;
    Ok(labels
        .unwrap_or_default()
        .into_iter()
        .map(|(name, value)| (name, value.into_text()))
        .collect())
}

fn read_annotations<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    Ok(Option::<ReadAnnotations>::deserialize(deserializer)?
        .unwrap_or_default()
        .0)
}

/// The annotations that are used; the others are skipped without a copy.
#[derive(Default)]
struct ReadAnnotations(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for ReadAnnotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ReadAnnotations, D::Error> {
        deserializer.deserialize_map(AnnotationVisitor)
    }
}

struct AnnotationVisitor;

impl<'de> Visitor<'de> for AnnotationVisitor {
    type Value = ReadAnnotations;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("annotations")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ReadAnnotations, A::Error> {
        let mut read = ReadAnnotations::default();
        while let Some(name) = map.next_key::<String>()? {
            if [LAST_CHANGE_TRIGGER_TIME, Service::SCHEDULER].contains(&name.as_str()) {
                let value: Field<String> = map.next_value()?;
                read.0.insert(name, value.into_text());
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(read)
    }
}
