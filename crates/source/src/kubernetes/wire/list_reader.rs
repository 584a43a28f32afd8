//! Decodes a list in protobuf while it arrives. The whole answer of a large cluster would take tens
//! of megabytes, and as many milliseconds to wait for.
//!
//! ```text
//! "k8s\0" Unknown { kind, raw: List { metadata, item, item, ... }, ... }
//! ```

use futures::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use prost::Message;
use prost::bytes::Bytes;

use super::messages::ListMeta;
use super::protobuf::{LONGEST_FRAME, MAGIC, parse_object};
use super::{Decoded, ListHeader, Unreadable, Watched, given};
use crate::kubernetes::failure::WatchError;

/// The field of `Unknown` that contains the list.
const RAW: u64 = 2;
/// The fields of a list.
const METADATA: u64 = 1;
const ITEMS: u64 = 2;
/// The wire type of a string, bytes or a message.
const LENGTH_DELIMITED: u64 = 2;
/// The maximum length of a varint, in bytes.
const LONGEST_NUMBER: u32 = 10;

/// Decodes a list object by object.
#[derive(Debug)]
pub(in crate::kubernetes) struct ListReader<S> {
    stream: S,
    /// The number of bytes of the list that have not been read.
    left: u64,
    header: ListHeader,
}

/// The key of a field, and the length of its value.
#[derive(Debug, Clone, Copy)]
struct FieldStart {
    number: u64,
    /// The length of its value, in bytes.
    length: u64,
    /// The length of the key and of the length itself, in bytes.
    own: u64,
}

// === impl ListReader ===

impl<S: AsyncBufRead + Unpin> ListReader<S> {
    /// Reads up to the start of the list.
    ///
    /// # Errors
    ///
    /// The connection failed, or the answer is no list.
    pub(in crate::kubernetes) async fn open(mut stream: S) -> Result<ListReader<S>, WatchError> {
        let mut magic = [0; MAGIC.len()];
        let read = stream.read_exact(&mut magic).await;
        read.map_err(WatchError::Cut)?;
        if magic != *MAGIC {
            return Err(Unreadable::NoEnvelope.into());
        }
        loop {
            let start = read_start(&mut stream).await?;
            if start.number == RAW {
                return Ok(ListReader {
                    stream,
                    left: start.length,
                    header: ListHeader::default(),
                });
            }
            read_value(&mut stream, start.length).await?;
        }
    }

    /// Returns the next object, or `None` after the last one. Skips objects without a name.
    ///
    /// # Errors
    ///
    /// The connection failed, or the list is malformed.
    pub(in crate::kubernetes) async fn next<T: Watched>(
        &mut self,
    ) -> Result<Option<Decoded<T>>, WatchError> {
        let decode = T::FROM_PROTOBUF.ok_or(Unreadable::Unasked)?;
        while self.left > 0 {
            let start = read_start(&mut self.stream).await?;
            let rest = self.left.checked_sub(start.own);
            let rest = rest.and_then(|rest| rest.checked_sub(start.length));
            self.left = rest.ok_or(Unreadable::NoField)?;
            let value = read_value(&mut self.stream, start.length).await?;
            match start.number {
                METADATA => {
                    let metadata = ListMeta::decode(value).map_err(Unreadable::from)?;
                    self.header = ListHeader {
                        continued: given(metadata.continued),
                        version: given(metadata.resource_version),
                    };
                }
                ITEMS => {
                    if let Some(object) = parse_object(value, decode) {
                        return Ok(Some(object));
                    }
                }
                _ => {}
            }
        }
        // An HTTP/1.1 connection can be used again only after the answer has been read to its end.
        loop {
            let rest = self.stream.fill_buf().await.map_err(WatchError::Cut)?.len();
            if rest == 0 {
                return Ok(None);
            }
            self.stream.consume_unpin(rest);
        }
    }

    /// Returns the metadata of the list. Complete after the last object.
    pub(in crate::kubernetes) fn into_header(self) -> ListHeader {
        self.header
    }
}

async fn read_start(stream: &mut (impl AsyncBufRead + Unpin)) -> Result<FieldStart, WatchError> {
    let (key, of_key) = read_number(stream).await?;
    if key & 7 != LENGTH_DELIMITED {
        return Err(Unreadable::NoField.into());
    }
    let (length, of_length) = read_number(stream).await?;
    Ok(FieldStart {
        number: key >> 3,
        length,
        own: of_key + of_length,
    })
}

/// Reads a varint. Returns it and its length in bytes.
async fn read_number(stream: &mut (impl AsyncBufRead + Unpin)) -> Result<(u64, u64), WatchError> {
    let mut number = 0;
    for place in 0..LONGEST_NUMBER {
        let mut byte = [0];
        let read = stream.read_exact(&mut byte).await;
        read.map_err(WatchError::Cut)?;
        let [byte] = byte;
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Ok((number, u64::from(place) + 1));
        }
    }
    Err(Unreadable::NoField.into())
}

async fn read_value(
    stream: &mut (impl AsyncBufRead + Unpin),
    length: u64,
) -> Result<Bytes, WatchError> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > LONGEST_FRAME {
        return Err(Unreadable::LongFrame(length).into());
    }
    let mut value = vec![0; length];
    let read = stream.read_exact(&mut value).await;
    read.map_err(WatchError::Cut)?;
    Ok(value.into())
}
