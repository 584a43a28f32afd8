//! networking.k8s.io/v1 ServiceCIDR.

use dataplane::ObjectKind;
use serde::Deserialize;

use super::shape::{object, object_or_null, values_or_null};
use super::{Field, Metadata, Object};
use crate::ObjectKey;

/// A ServiceCIDR.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct ServiceCidr {
    /// `metadata`.
    #[serde(deserialize_with = "object")]
    pub metadata: Metadata,
    /// `spec`.
    #[serde(default, deserialize_with = "object_or_null")]
    pub spec: ServiceCidrSpec,
}

/// `spec` of a ServiceCIDR.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// `cidrs`.
    #[serde(deserialize_with = "values_or_null")]
    pub cidrs: Vec<Field<String>>,
}

impl Object for ServiceCidr {
    const KIND: ObjectKind = ObjectKind::ServiceCidr;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn key(&self) -> ObjectKey {
        self.metadata.cluster_key()
    }
}
