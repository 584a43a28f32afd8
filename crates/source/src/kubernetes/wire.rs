//! The API server's answers, decoded directly into the fields that are used.

pub(super) mod json;
pub(super) mod list_reader;
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
    /// Decodes the kind from protobuf, if it is requested in protobuf. Every kind can be decoded
    /// from JSON.
    const FROM_PROTOBUF: Option<FromProtobuf<Self>> = None;

    /// `metadata.resourceVersion`.
    fn resource_version(&self) -> Option<&str>;
}

/// Decodes an object.
pub(super) type FromProtobuf<T> = fn(Bytes) -> Result<T, DecodeError>;

/// An answer that is not an event, a list or a status.
#[derive(Debug, Error)]
pub(super) enum Unreadable {
    /// The JSON is invalid.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The protobuf message is invalid.
    #[error(transparent)]
    Protobuf(#[from] DecodeError),
    /// The bytes lack the prefix of every Kubernetes protobuf answer.
    #[error("the bytes are not in Kubernetes' envelope for protobuf")]
    NoEnvelope,
    /// A frame longer than any event.
    #[error("the API server announced a frame of {0} bytes; the limit is {most}", most = protobuf::LONGEST_FRAME)]
    LongFrame(usize),
    /// Bytes where the next object of a list should be.
    #[error("a list has something other than objects in it")]
    NoField,
    /// An event of a type that does not exist.
    #[error("unknown watch event type {0:?}")]
    EventType(String),
    /// A bookmark without a resource version.
    #[error("a bookmark has no resource version")]
    NoVersion,
    /// A protobuf answer for a kind that was requested in JSON.
    #[error("the answer is in protobuf and JSON was asked for")]
    Unasked,
}

/// One line of a watch.
#[derive(Debug)]
pub(super) enum Line<T> {
    /// An object was created or changed, or is in the list.
    Put(Decoded<T>),
    /// An object was deleted.
    Gone {
        /// The object.
        key: ObjectKey,
        /// The resource version of the deletion.
        version: Option<String>,
    },
    /// Nothing else happened up to this resource version.
    Bookmark {
        /// The resource version.
        version: String,
        /// Whether it is at the end of a list or later.
        place: BookmarkPosition,
    },
    /// An object without a name.
    Nameless,
}

/// The position of a bookmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BookmarkPosition {
    /// At the end of a streamed list.
    EndOfList,
    /// Anywhere else.
    Within,
}

/// An object, or why it could not be decoded.
#[derive(Debug)]
pub(super) enum Decoded<T> {
    /// The object was decoded.
    Good(T),
    /// The object could not be decoded.
    Bad {
        /// The object.
        key: ObjectKey,
        /// Its resource version.
        version: Option<String>,
        /// The path of the field at which decoding failed.
        field: String,
        /// The error.
        message: String,
    },
}

/// A page of a list.
#[derive(Debug)]
pub(super) struct Page<T> {
    /// Its objects, except those without a name.
    pub(super) objects: Vec<Decoded<T>>,
    /// What else it says.
    pub(super) header: ListHeader,
}

/// What a list says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ListHeader {
    /// What to ask the next page with, if there is one.
    pub(super) continued: Option<String>,
    /// The resource version of the whole list.
    pub(super) version: Option<String>,
}

/// Returns `text` unless it is empty.
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

// === impl BookmarkPosition ===

impl BookmarkPosition {
    fn of(ends_list: bool) -> BookmarkPosition {
        if ends_list {
            BookmarkPosition::EndOfList
        } else {
            BookmarkPosition::Within
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
