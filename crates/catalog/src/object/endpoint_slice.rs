//! discovery.k8s.io/v1 EndpointSlice.

use dataplane::ObjectKind;
use serde::Deserialize;

use super::shape::{object, object_or_null, objects_or_null, values_or_null};
use super::{Field, Metadata, Object};
use crate::ObjectKey;

/// An EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSlice {
    /// `metadata`.
    #[serde(deserialize_with = "object")]
    pub metadata: Metadata,
    /// `addressType`: `IPv4`, `IPv6` or `FQDN`.
    #[serde(default)]
    pub address_type: Field<String>,
    /// `endpoints`.
    #[serde(default, deserialize_with = "objects_or_null")]
    pub endpoints: Vec<SliceEndpoint>,
    /// `ports`.
    #[serde(default, deserialize_with = "objects_or_null")]
    pub ports: Vec<SlicePort>,
}

/// An entry of `endpoints`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceEndpoint {
    /// `addresses`, of which only the first is used.
    #[serde(deserialize_with = "values_or_null")]
    pub addresses: Vec<Field<String>>,
    /// `conditions`.
    #[serde(deserialize_with = "object_or_null")]
    pub conditions: Conditions,
    /// `nodeName`.
    pub node_name: Field<String>,
    /// `hints`.
    #[serde(deserialize_with = "object_or_null")]
    pub hints: SliceHints,
}

/// `endpoints[].conditions`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// `ready`; absent means true.
    pub ready: Field<bool>,
    /// `serving`; absent means true.
    pub serving: Field<bool>,
    /// `terminating`; absent means false.
    pub terminating: Field<bool>,
}

/// `endpoints[].hints`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceHints {
    /// `forZones`.
    #[serde(deserialize_with = "objects_or_null")]
    pub for_zones: Vec<HintTarget>,
    /// `forNodes`.
    #[serde(deserialize_with = "objects_or_null")]
    pub for_nodes: Vec<HintTarget>,
}

/// A zone or node that an endpoint is meant for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct HintTarget {
    /// `name`.
    pub name: Field<String>,
}

/// An entry of `ports`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct SlicePort {
    /// `name`.
    pub name: Field<String>,
    /// `protocol`.
    pub protocol: Field<String>,
    /// `port`; absent means every port.
    pub port: Field<i64>,
}

impl Object for EndpointSlice {
    const KIND: ObjectKind = ObjectKind::EndpointSlice;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn key(&self) -> ObjectKey {
        self.metadata.namespaced_key()
    }
}
