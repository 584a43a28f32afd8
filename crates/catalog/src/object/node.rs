//! v1 Node.

use dataplane::ObjectKind;
use serde::Deserialize;

use super::shape::{object, object_or_null, objects_or_null, values_or_null};
use super::{Field, Metadata, Object};
use crate::ObjectKey;

/// The taint of a Node that the cluster autoscaler is about to remove.
pub const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// A Node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Node {
    /// `metadata`.
    #[serde(deserialize_with = "object")]
    pub metadata: Metadata,
    /// `spec`.
    #[serde(default, deserialize_with = "object_or_null")]
    pub spec: NodeSpec,
    /// `status`.
    #[serde(default, deserialize_with = "object_or_null")]
    pub status: NodeStatus,
}

/// `spec` of a Node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// `podCIDRs`.
    #[serde(rename = "podCIDRs", deserialize_with = "values_or_null")]
    pub pod_cidrs: Vec<Field<String>>,
    /// `taints`.
    #[serde(deserialize_with = "objects_or_null")]
    pub taints: Vec<Taint>,
}

/// An entry of `spec.taints`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// `key`.
    pub key: Field<String>,
}

/// `status` of a Node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// `addresses`.
    #[serde(deserialize_with = "objects_or_null")]
    pub addresses: Vec<NodeAddress>,
}

/// An entry of `status.addresses`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `type`: `InternalIP`, `ExternalIP`, and types of names.
    #[serde(rename = "type")]
    pub kind: Field<String>,
    /// `address`.
    pub address: Field<String>,
}

impl Object for Node {
    const KIND: ObjectKind = ObjectKind::Node;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn key(&self) -> ObjectKey {
        self.metadata.cluster_key()
    }
}
