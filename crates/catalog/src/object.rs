//! The fields of Kubernetes objects that are used, decoded directly from JSON or YAML.
//!
//! Unknown fields are skipped without being stored. A wrong value in a field ([`Field::Odd`]) does
//! not fail the object, so that the rest of it can be served and the field reported. Only a wrong
//! structure (not a list where a list is required, a missing name) fails it.

mod endpoint_slice;
pub(crate) mod field;
mod metadata;
pub(crate) mod name;
mod node;
mod service;
mod service_cidr;
mod shape;

use dataplane::ObjectKind;

pub use endpoint_slice::{
    Conditions, EndpointSlice, HintTarget, SliceEndpoint, SliceHints, SlicePort,
};
pub use field::{Field, Scalar};
pub use metadata::{
    CLUSTER_DNS, HEADLESS, LAST_CHANGE_TRIGGER_TIME, Metadata, SERVICE_NAME, SERVICE_PROXY_NAME,
    ZONE,
};
pub use name::{BadName, check_key};
pub use node::{Node, NodeAddress, NodeSpec, NodeStatus, TO_BE_DELETED, Taint};
pub use service::{
    ClientIpConfig, Ingress, LoadBalancerStatus, Service, ServicePort, ServiceSpec, ServiceStatus,
    SessionAffinityConfig,
};
pub use service_cidr::{ServiceCidr, ServiceCidrSpec};

use crate::ObjectKey;

/// An object of one of the four kinds in a catalog.
pub trait Object {
    /// Its kind.
    const KIND: ObjectKind;

    /// Its metadata.
    fn metadata(&self) -> &Metadata;

    /// The key under which it is kept. A namespaced object without a namespace is in `default`,
    /// where `kubectl apply` would put it.
    fn key(&self) -> ObjectKey;
}
