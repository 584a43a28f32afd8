//! The events of a source: lists and single changes, for each kind of object.

use std::fmt;
use std::sync::Arc;

use dataplane::{ObjectKind, ObjectName};

use crate::object::{EndpointSlice, Node, Object, Service, ServiceCidr};

/// An event for one kind of object.
///
/// A source starts every kind with a list: `Init`, an `InitApply` for each object, `InitDone`. It
/// may start another list at any time (a watch was cut, a directory was read again), also before
/// the previous one ended, which is then discarded. At `InitDone`, every object that the list did
/// not contain counts as deleted. `Apply` and `Delete` are valid at any time, also within a list.
///
/// A source that does not have a kind sends an empty list of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<T> {
    /// A list begins. The known objects stay until its end.
    Init,
    /// An object of the list.
    InitApply(T),
    /// The list is complete.
    InitDone,
    /// An object was created or changed.
    Apply(T),
    /// An object was deleted.
    Delete(ObjectKey),
    /// An object exists but cannot be decoded. Its last valid version stays in force, also within a
    /// list.
    Undecodable {
        /// The object.
        key: ObjectKey,
        /// The path of the field at which decoding failed; `metadata` or similar if unknown.
        field: String,
        /// The error.
        message: String,
    },
}

/// An event of any of the four kinds, boxed because the kinds differ much in size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// An event for Services.
    Service(Box<Event<Service>>),
    /// An event for EndpointSlices.
    EndpointSlice(Box<Event<EndpointSlice>>),
    /// An event for Nodes.
    Node(Box<Event<Node>>),
    /// An event for ServiceCIDRs.
    ServiceCidr(Box<Event<ServiceCidr>>),
}

/// The name of an object within its kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Its namespace; empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

// === impl Event ===

impl<T: Object> Event<T> {
    /// The kind of the object.
    pub fn kind(&self) -> ObjectKind {
        T::KIND
    }
}

// === impl Change ===

impl From<Event<Service>> for Change {
    fn from(event: Event<Service>) -> Change {
        Change::Service(Box::new(event))
    }
}

impl From<Event<EndpointSlice>> for Change {
    fn from(event: Event<EndpointSlice>) -> Change {
        Change::EndpointSlice(Box::new(event))
    }
}

impl From<Event<Node>> for Change {
    fn from(event: Event<Node>) -> Change {
        Change::Node(Box::new(event))
    }
}

impl From<Event<ServiceCidr>> for Change {
    fn from(event: Event<ServiceCidr>) -> Change {
        Change::ServiceCidr(Box::new(event))
    }
}

// === impl ObjectKey ===

impl ObjectKey {
    /// The key of the object `namespace/name`.
    pub fn namespaced(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> ObjectKey {
        ObjectKey {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The key of a cluster-scoped object.
    pub fn cluster(name: impl Into<Arc<str>>) -> ObjectKey {
        ObjectKey::namespaced("", name)
    }

    /// The name together with the kind.
    pub fn of_kind(&self, kind: ObjectKind) -> ObjectName {
        ObjectName {
            kind,
            namespace: Arc::clone(&self.namespace),
            name: Arc::clone(&self.name),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}
