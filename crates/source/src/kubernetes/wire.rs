//! The API server's answers, decoded straight into the fields that are read.
//!
//! An object is cut out of the answer as text first and decoded alone, so that one that cannot be
//! decoded can still be named.

use std::borrow::Cow;
use std::collections::BTreeMap;

use catalog::ObjectKey;
use catalog::object::Object;
use kube::core::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::failure::WatchError;

/// The bookmark that ends a streamed list has this annotation.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// An object that can be watched.
pub(super) trait Watched: DeserializeOwned + Send {
    /// `metadata.resourceVersion`.
    fn resource_version(&self) -> Option<&str>;
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

#[derive(Deserialize)]
struct RawLine<'a> {
    #[serde(rename = "type")]
    kind: Kind,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Kind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

#[derive(Deserialize)]
struct RawPage<'a> {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PageMetadata {
    #[serde(rename = "continue")]
    continued: Option<String>,
    resource_version: Option<String>,
}

/// What names an object.
#[derive(Deserialize)]
struct Header {
    metadata: HeaderMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeaderMetadata {
    name: String,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    resource_version: Option<String>,
}

#[derive(Deserialize)]
struct BookmarkObject<'a> {
    #[serde(borrow)]
    metadata: BookmarkMetadata<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMetadata<'a> {
    resource_version: String,
    #[serde(borrow, default)]
    annotations: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
}

/// One line of a watch; `None` for an object that has no name to name it by.
///
/// # Errors
///
/// The status in it, or that it makes no sense.
pub(super) fn parse_line<T: Watched>(line: &str) -> Result<Option<Line<T>>, WatchError> {
    let raw: RawLine<'_> = serde_json::from_str(line).map_err(WatchError::Unreadable)?;
    let text = raw.object.get();
    match raw.kind {
        Kind::Added | Kind::Modified => Ok(parse_object(text).map(Line::Put)),
        Kind::Deleted => Ok(parse_header(text).map(|header| Line::Gone {
            version: header.metadata.resource_version.clone(),
            key: header.key(),
        })),
        Kind::Bookmark => {
            let bookmark: BookmarkObject<'_> =
                serde_json::from_str(text).map_err(WatchError::Unreadable)?;
            let ends_list = bookmark
                .metadata
                .annotations
                .get(INITIAL_EVENTS_END)
                .is_some_and(|value| value == "true");
            Ok(Some(Line::Bookmark {
                version: bookmark.metadata.resource_version,
                place: if ends_list {
                    Place::EndOfList
                } else {
                    Place::Within
                },
            }))
        }
        Kind::Error => {
            let status: Status = serde_json::from_str(text).map_err(WatchError::Unreadable)?;
            Err(status.into())
        }
    }
}

/// A page of a list.
///
/// # Errors
///
/// That it makes no sense.
pub(super) fn parse_page<T: Watched>(text: &str) -> Result<Page<T>, WatchError> {
    let raw: RawPage<'_> = serde_json::from_str(text).map_err(WatchError::Unreadable)?;
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    Ok(Page {
        objects: raw
            .items
            .unwrap_or_default()
            .into_iter()
            .filter_map(|item| parse_object(item.get()))
            .collect(),
        continued: given(raw.metadata.continued),
        version: given(raw.metadata.resource_version),
    })
}

/// An object; `None` when not even its name can be read.
fn parse_object<T: Watched>(text: &str) -> Option<Decoded<T>> {
    if let Ok(object) = serde_json::from_str(text) {
        return Some(Decoded::Good(object));
    }
    // Decoded a second time for the path of the field, which costs too much to keep at all times.
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let error = match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Ok(object) => return Some(Decoded::Good(object)),
        Err(error) => error,
    };
    let header = parse_header(text)?;
    Some(Decoded::Bad {
        version: header.metadata.resource_version.clone(),
        key: header.key(),
        field: error.path().to_string(),
        message: error.inner().to_string(),
    })
}

fn parse_header(text: &str) -> Option<Header> {
    serde_json::from_str(text).ok()
}

// === impl Watched ===

impl<T: Object + DeserializeOwned + Send> Watched for T {
    fn resource_version(&self) -> Option<&str> {
        self.metadata().resource_version.as_deref()
    }
}

// === impl Header ===

impl Header {
    fn key(self) -> ObjectKey {
        ObjectKey::namespaced(
            self.metadata.namespace.unwrap_or_default(),
            self.metadata.name,
        )
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
