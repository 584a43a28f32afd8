//! JSON: one line for each event of a watch, one text for each page of a list.
//!
//! An object is first extracted from the answer as text and then decoded separately, so that an
//! object that cannot be decoded can still be named.

use std::borrow::Cow;
use std::collections::BTreeMap;

use catalog::ObjectKey;
use kube::core::Status;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    BookmarkPosition, Decoded, INITIAL_EVENTS_END, Line, ListHeader, Page, Unreadable, Watched,
    given,
};
use crate::kubernetes::failure::WatchError;

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

/// The part of an object that identifies it.
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

/// Parses one line of a watch.
///
/// # Errors
///
/// Returns the status in it, or fails if the line is invalid.
pub(in crate::kubernetes) fn parse_line<T: Watched>(line: &[u8]) -> Result<Line<T>, WatchError> {
    let raw: RawLine<'_> = serde_json::from_slice(line).map_err(Unreadable::from)?;
    let text = raw.object.get();
    match raw.kind {
        Kind::Added | Kind::Modified => Ok(parse_object(text).map_or(Line::Nameless, Line::Put)),
        Kind::Deleted => Ok(
            parse_header(text).map_or(Line::Nameless, |header| Line::Gone {
                version: header.metadata.resource_version.clone(),
                key: header.key(),
            }),
        ),
        Kind::Bookmark => {
            let bookmark: BookmarkObject<'_> =
                serde_json::from_str(text).map_err(Unreadable::from)?;
            let ends_list = bookmark
                .metadata
                .annotations
                .get(INITIAL_EVENTS_END)
                .is_some_and(|value| value == "true");
            Ok(Line::Bookmark {
                version: bookmark.metadata.resource_version,
                place: BookmarkPosition::of(ends_list),
            })
        }
        Kind::Error => {
            let status: Status = serde_json::from_str(text).map_err(Unreadable::from)?;
            Err(status.into())
        }
    }
}

/// Parses a page of a list.
///
/// # Errors
///
/// Fails if the text is invalid.
pub(in crate::kubernetes) fn parse_page<T: Watched>(text: &[u8]) -> Result<Page<T>, WatchError> {
    let raw: RawPage<'_> = serde_json::from_slice(text).map_err(Unreadable::from)?;
    Ok(Page {
        objects: raw
            .items
            .unwrap_or_default()
            .into_iter()
            .filter_map(|item| parse_object(item.get()))
            .collect(),
        header: ListHeader {
            continued: raw.metadata.continued.and_then(given),
            version: raw.metadata.resource_version.and_then(given),
        },
    })
}

/// Parses the status that a refused request gets.
///
/// # Errors
///
/// Fails if the body is not a status.
pub(in crate::kubernetes) fn parse_status(body: &[u8]) -> Result<Status, Unreadable> {
    Ok(serde_json::from_slice(body)?)
}

/// Parses an object; returns `None` if not even its name can be read.
fn parse_object<T: Watched>(text: &str) -> Option<Decoded<T>> {
    if let Ok(object) = serde_json::from_str(text) {
        return Some(Decoded::Good(object));
    }
    // Decode again for the path of the field; tracking it every time would cost too much.
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

// === impl Header ===

impl Header {
    fn key(self) -> ObjectKey {
        ObjectKey::namespaced(
            self.metadata.namespace.unwrap_or_default(),
            self.metadata.name,
        )
    }
}
