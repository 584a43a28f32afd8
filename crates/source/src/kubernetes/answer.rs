//! A request, and its answer in the format that the API server chose.

use std::pin::Pin;

use futures::{AsyncBufRead, AsyncBufReadExt, TryStreamExt};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use kube::core::Status;

use super::failure::WatchError;
use super::wire::list_reader::ListReader;
use super::wire::{Decoded, Line, ListHeader, Watched, json, protobuf};

/// Requested for kinds that have a protobuf form. An API server that does not support protobuf, or
/// an aggregated one, sends JSON.
const PROTOBUF_OR_JSON: HeaderValue =
    HeaderValue::from_static("application/vnd.kubernetes.protobuf, application/json");

/// The prefix of the content type of every protobuf answer; a watch adds `;stream=watch`.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// An answer whose headers have arrived and whose status is not an error.
pub(super) struct Answer {
    format: Format,
    body: Body,
}

/// The lines of a watch, which arrive for as long as it is open.
pub(super) struct Lines {
    format: Format,
    stream: Stream,
}

/// The objects of a list, or of a page of one.
pub(super) enum Items<T> {
    /// Decoded while the answer arrives.
    Protobuf(ListReader<Stream>),
    /// Decoded after the whole answer has arrived.
    Json(std::vec::IntoIter<Decoded<T>>, ListHeader),
}

type Stream = Pin<Box<dyn AsyncBufRead + Send>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Protobuf,
}

/// Requests objects of one kind.
///
/// # Errors
///
/// Fails if there is no answer, or if it is an error status.
pub(super) async fn ask<T: Watched>(
    client: &Client,
    mut request: Request<Vec<u8>>,
) -> Result<Answer, WatchError> {
    if T::FROM_PROTOBUF.is_some() {
        request.headers_mut().insert(ACCEPT, PROTOBUF_OR_JSON);
    }
    let response = client.send(request.map(Body::from)).await?;
    let status = response.status();
    let answer = Answer {
        format: Format::of(&response),
        body: response.into_body(),
    };
    if status.is_client_error() || status.is_server_error() {
        return Err(answer.refusal(status).await);
    }
    Ok(answer)
}

// === impl Answer ===

impl Answer {
    /// Returns the objects of a list.
    pub(super) async fn items<T: Watched>(self) -> Result<Items<T>, WatchError> {
        match self.format {
            Format::Json => {
                let body = self.body.collect_bytes().await?;
                let page = json::parse_page(&body)?;
                Ok(Items::Json(page.objects.into_iter(), page.header))
            }
            Format::Protobuf => {
                let reader = ListReader::open(self.into_stream()).await?;
                Ok(Items::Protobuf(reader))
            }
        }
    }

    /// Returns the events of a watch.
    pub(super) fn lines(self) -> Lines {
        Lines {
            format: self.format,
            stream: self.into_stream(),
        }
    }

    fn into_stream(self) -> Stream {
        let stream = self.body.into_data_stream();
        Box::pin(stream.map_err(std::io::Error::other).into_async_read())
    }

    /// The reason of a refusal. A body that is not a Kubernetes Status comes from a proxy in
    /// between.
    async fn refusal(self, code: StatusCode) -> WatchError {
        let body = match self.body.collect_bytes().await {
            Ok(body) => body,
            Err(error) => return error.into(),
        };
        let status = match self.format {
            Format::Json => json::parse_status(&body),
            Format::Protobuf => protobuf::parse_status(body.clone()),
        };
        let status = status.unwrap_or_else(|_| {
            let text = String::from_utf8_lossy(&body);
            Status::failure(text.trim(), "Failed to parse error data").with_code(code.as_u16())
        });
        status.into()
    }
}

// === impl Items ===

impl<T: Watched> Items<T> {
    /// Returns the next object, or `None` after the last one.
    ///
    /// # Errors
    ///
    /// The connection failed, or the answer is malformed.
    pub(super) async fn next(&mut self) -> Result<Option<Decoded<T>>, WatchError> {
        match self {
            Items::Protobuf(reader) => reader.next().await,
            Items::Json(objects, _) => Ok(objects.next()),
        }
    }

    /// Returns the metadata of the list. Complete after the last object.
    pub(super) fn into_header(self) -> ListHeader {
        match self {
            Items::Protobuf(reader) => reader.into_header(),
            Items::Json(_, header) => header,
        }
    }
}

// === impl Lines ===

impl Lines {
    /// Returns the next line; `None` if the API server has ended the watch.
    ///
    /// # Errors
    ///
    /// Fails if the connection broke or the line is invalid.
    pub(super) async fn next<T: Watched>(&mut self) -> Result<Option<Line<T>>, WatchError> {
        match self.format {
            Format::Json => {
                let mut line = Vec::new();
                let read = self.stream.read_until(b'\n', &mut line).await;
                if read.map_err(WatchError::Cut)? == 0 {
                    return Ok(None);
                }
                json::parse_line(&line).map(Some)
            }
            Format::Protobuf => match protobuf::read_frame(&mut self.stream).await? {
                None => Ok(None),
                Some(frame) => protobuf::parse_event(frame).map(Some),
            },
        }
    }
}

// === impl Format ===

impl Format {
    fn of<B>(response: &Response<B>) -> Format {
        let kind = response.headers().get(CONTENT_TYPE);
        match kind {
            Some(kind) if kind.as_bytes().starts_with(PROTOBUF.as_bytes()) => Format::Protobuf,
            Some(_) | None => Format::Json,
        }
    }
}
