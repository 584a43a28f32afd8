//! How a source tells what it sees: lists and single changes, per kind of object.

use std::fmt;
use std::sync::Arc;

use dataplane::{ObjectKind, ObjectName};

use crate::object::{EndpointSlice, Node, Object, Service, ServiceCidr};

/// Something a source saw of one kind of object.
///
/// A source starts every kind with a list: `Init`, an `InitApply` for each object, `InitDone`. It
/// may start another list at any time (a watch that was cut, a directory that was read again),
/// also before the last one ended, which is then forgotten. At `InitDone` every object that the
/// list did not mention is gone. `Apply` and `Delete` are taken at any time, also within a list.
///
/// A source that does not have a kind at all sends an empty list of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<T> {
    /// A list begins. What was known before stays until its end.
    Init,
    /// An object of the list.
    InitApply(T),
    /// The list is complete.
    InitDone,
    /// An object was made or changed.
    Apply(T),
    /// An object is gone.
    Delete(ObjectKey),
    /// An object exists, but cannot be decoded. Its last good version stays in force, within a
    /// list too.
    Undecodable {
        /// Which object.
        key: ObjectKey,
        /// The field at which decoding ended, as a path; `metadata` or the like where unknown.
        field: String,
        /// What is wrong there.
        message: String,
    },
}

/// An event of any of the four kinds, boxed because the kinds differ much in size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// About Services.
    Service(Box<Event<Service>>),
    /// About EndpointSlices.
    EndpointSlice(Box<Event<EndpointSlice>>),
    /// About Nodes.
    Node(Box<Event<Node>>),
    /// About ServiceCIDRs.
    ServiceCidr(Box<Event<ServiceCidr>>),
}

/// The name of an object among those of its kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Its namespace; empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

// === impl Event ===

impl<T: Object> Event<T> {
    /// The kind it is about.
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

    /// The key of an object that is in no namespace.
    pub fn cluster(name: impl Into<Arc<str>>) -> ObjectKey {
        ObjectKey::namespaced("", name)
    }

    /// With its kind.
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
