//! Protobuf: a frame for each event of a watch.
//!
//! ```text
//! frame: length (4 bytes, big-endian)  WatchEvent { object: "k8s\0" Unknown { raw: an object } }
//! ```
//!
//! As in JSON, each object is decoded separately, so that an object that cannot be decoded can
//! still be named.

use catalog::ObjectKey;
use futures::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use kube::core::Status;
use prost::Message;
use prost::bytes::{Buf, Bytes};

use super::messages::{self, Header, HeaderMeta, Unknown, WatchEvent};
use super::{
    BookmarkPosition, Decoded, FromProtobuf, INITIAL_EVENTS_END, Line, Unreadable, Watched, given,
};
use crate::kubernetes::failure::WatchError;

/// What an answer begins with.
pub(super) const MAGIC: &[u8; 4] = b"k8s\0";

/// The longest frame that is read, in bytes. No object is larger than an etcd request, by default
/// 1.5 MiB.
pub(super) const LONGEST_FRAME: usize = 16 << 20;

/// Reads the next frame of a watch; returns `None` if the API server has ended it.
///
/// # Errors
///
/// Fails if the connection broke, also within a frame, or if a frame is too long.
pub(in crate::kubernetes) async fn read_frame(
    stream: &mut (impl AsyncBufRead + Unpin),
) -> Result<Option<Bytes>, WatchError> {
    if stream.fill_buf().await.map_err(WatchError::Cut)?.is_empty() {
        return Ok(None);
    }
    let mut length = [0; 4];
    let read = stream.read_exact(&mut length).await;
    read.map_err(WatchError::Cut)?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > LONGEST_FRAME {
        return Err(Unreadable::LongFrame(length).into());
    }
    let mut frame = vec![0; length];
    let read = stream.read_exact(&mut frame).await;
    read.map_err(WatchError::Cut)?;
    Ok(Some(frame.into()))
}

/// Parses one event of a watch.
///
/// # Errors
///
/// Returns the status in it, or fails if the event is invalid.
pub(in crate::kubernetes) fn parse_event<T: Watched>(frame: Bytes) -> Result<Line<T>, WatchError> {
    let decode = T::FROM_PROTOBUF.ok_or(Unreadable::Unasked)?;
    let event = WatchEvent::decode(frame).map_err(Unreadable::from)?;
    let object = open_envelope(event.object.unwrap_or_default().raw)?;
    match event.kind.as_str() {
        "ADDED" | "MODIFIED" => Ok(parse_object(object, decode).map_or(Line::Nameless, Line::Put)),
        "DELETED" => Ok(
            parse_header(object).map_or(Line::Nameless, |meta| Line::Gone {
                version: given(meta.resource_version.clone()),
                key: meta.key(),
            }),
        ),
        "BOOKMARK" => {
            let bookmark = Header::decode(object).map_err(Unreadable::from)?;
            let metadata = bookmark.metadata.unwrap_or_default();
            let ends_list = metadata.annotations.iter().any(|annotation| {
                annotation.key == INITIAL_EVENTS_END.as_bytes() && annotation.value == b"true"[..]
            });
            Ok(Line::Bookmark {
                version: given(metadata.resource_version).ok_or(Unreadable::NoVersion)?,
                place: BookmarkPosition::of(ends_list),
            })
        }
        "ERROR" => {
            let status = messages::Status::decode(object).map_err(Unreadable::from)?;
            Err(Status::from(status).into())
        }
        _ => Err(Unreadable::EventType(event.kind).into()),
    }
}

/// What a refused request is answered with.
///
/// # Errors
///
/// Fails if the body is not a status.
pub(in crate::kubernetes) fn parse_status(body: Bytes) -> Result<Status, Unreadable> {
    Ok(messages::Status::decode(open_envelope(body)?)?.into())
}

fn open_envelope(mut bytes: Bytes) -> Result<Bytes, Unreadable> {
    if !bytes.starts_with(MAGIC) {
        return Err(Unreadable::NoEnvelope);
    }
    bytes.advance(MAGIC.len());
    Ok(Unknown::decode(bytes)?.raw)
}

/// An object; `None` when not even its name can be read.
pub(super) fn parse_object<T>(bytes: Bytes, decode: FromProtobuf<T>) -> Option<Decoded<T>> {
    match decode(bytes.clone()) {
        Ok(object) => Some(Decoded::Good(object)),
        Err(error) => {
            let meta = parse_header(bytes)?;
            Some(Decoded::Bad {
                version: given(meta.resource_version.clone()),
                key: meta.key(),
                // The message contains the path.
                field: ".".to_owned(),
                message: error.to_string(),
            })
        }
    }
}

fn parse_header(bytes: Bytes) -> Option<HeaderMeta> {
    let meta = Header::decode(bytes).ok()?.metadata?;
    (!meta.name.is_empty()).then_some(meta)
}

// === impl HeaderMeta ===

impl HeaderMeta {
    fn key(self) -> ObjectKey {
        ObjectKey::namespaced(self.namespace, self.name)
    }
}

// === impl Status ===

impl From<messages::Status> for Status {
    fn from(status: messages::Status) -> Status {
        let code = u16::try_from(status.code).unwrap_or_default();
        Status::failure(&status.message, &status.reason).with_code(code)
    }
}
