//! The API server's answers, decoded straight into the fields that are read.

pub(super) mod json;
mod messages;
mod objects;
pub(super) mod protobuf;

use catalog::ObjectKey;
use catalog::object::{EndpointSlice, Node, Object, Service, ServiceCidr};
use prost::DecodeError;
use prost::bytes::Bytes;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// The bookmark that ends a streamed list has this annotation.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// An object that can be watched.
pub(super) trait Watched: DeserializeOwned + Send {
    /// Decodes a kind that is asked for in protobuf. JSON is read of every kind.
    const FROM_PROTOBUF: Option<FromProtobuf<Self>> = None;

    /// `metadata.resourceVersion`.
    fn resource_version(&self) -> Option<&str>;
}

/// Decodes an object.
pub(super) type FromProtobuf<T> = fn(Bytes) -> Result<T, DecodeError>;

/// Something that is not an event, a list or a status.
#[derive(Debug, Error)]
pub(super) enum Unreadable {
    /// Not such JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// Not such a message.
    #[error(transparent)]
    Protobuf(#[from] DecodeError),
    /// Bytes that do not begin as every answer in protobuf does.
    #[error("the bytes are not in Kubernetes' envelope for protobuf")]
    NoEnvelope,
    /// A frame that no event fills.
    #[error("a frame of {0} bytes is announced, and {most} is the most", most = protobuf::LONGEST_FRAME)]
    LongFrame(usize),
    /// An event of a type that does not exist.
    #[error("an event has type {0:?}")]
    EventType(String),
    /// A bookmark that marks nothing.
    #[error("a bookmark has no resource version")]
    NoVersion,
    /// A protobuf answer for a kind that was asked for in JSON.
    #[error("the answer is in protobuf and JSON was asked for")]
    Unasked,
}

/// One line of a watch.
#[derive(Debug)]
pub(super) enum Line<T> {
    /// An object was made or changed, or is in the list.
    Put(Decoded<T>),
    /// An object is gone.
    Gone {
        /// Which.
        key: ObjectKey,
        /// At which resource version.
        version: Option<String>,
    },
    /// Nothing happened up to this resource version.
    Bookmark {
        /// The resource version.
        version: String,
        /// Whether it is the end of a list or somewhere after it.
        place: Place,
    },
    /// An object that has no name to name it by.
    Nameless,
}

/// Where a bookmark stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// At the end of a streamed list.
    EndOfList,
    /// Anywhere.
    Within,
}

/// An object, or what is wrong with it.
#[derive(Debug)]
pub(super) enum Decoded<T> {
    /// It could be decoded.
    Good(T),
    /// It could not.
    Bad {
        /// Which object.
        key: ObjectKey,
        /// Its resource version.
        version: Option<String>,
        /// The path of the field at which decoding ended.
        field: String,
        /// What is wrong there.
        message: String,
    },
}

/// A page of a list.
#[derive(Debug)]
pub(super) struct Page<T> {
    /// Its objects; those that have no name to name them by are left out.
    pub(super) objects: Vec<Decoded<T>>,
    /// What to ask the next page with, if there is one.
    pub(super) continued: Option<String>,
    /// The resource version of the whole list.
    pub(super) version: Option<String>,
}

/// What is written and not empty.
fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

// === impl Watched ===

impl Watched for Service {
    const FROM_PROTOBUF: Option<FromProtobuf<Service>> = Some(objects::service);

    fn resource_version(&self) -> Option<&str> {
        version_of(self)
    }
}

impl Watched for EndpointSlice {
    const FROM_PROTOBUF: Option<FromProtobuf<EndpointSlice>> = Some(objects::endpoint_slice);

    fn resource_version(&self) -> Option<&str> {
        version_of(self)
    }
}

impl Watched for Node {
    fn resource_version(&self) -> Option<&str> {
        version_of(self)
    }
}

impl Watched for ServiceCidr {
    fn resource_version(&self) -> Option<&str> {
        version_of(self)
    }
}

fn version_of(object: &impl Object) -> Option<&str> {
    object.metadata().resource_version.as_deref()
}

// === impl Place ===

impl Place {
    fn of(ends_list: bool) -> Place {
        if ends_list {
            Place::EndOfList
        } else {
            Place::Within
        }
    }
}

// === impl Decoded ===

impl<T: Watched> Decoded<T> {
    /// The object's resource version.
    pub(super) fn resource_version(&self) -> Option<&str> {
        match self {
            Decoded::Good(object) => object.resource_version(),
            Decoded::Bad { version, .. } => version.as_deref(),
        }
    }
}
