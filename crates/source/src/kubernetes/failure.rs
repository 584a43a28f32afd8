//! The errors of a list or a watch, and how to recover from them.

use std::io;
use std::time::Duration;

use kube::core::Status;
use thiserror::Error;

use super::wire::Unreadable;

/// Why a list or a watch ended.
#[derive(Debug, Error)]
pub(super) enum WatchError {
    /// The request got no answer.
    #[error("unable to reach the API server")]
    Request(#[source] kube::Error),
    /// The answer is an error status.
    #[error("the API server answered {code} {reason}: {message}")]
    Status {
        /// The HTTP status code.
        code: u16,
        /// Its reason, a code of the Kubernetes API.
        reason: String,
        /// Its message.
        message: String,
    },
    /// The connection broke.
    #[error("the connection to the API server ended early")]
    Cut(#[source] io::Error),
    /// The connection is open but nothing arrives, not even the bookmarks that are due every minute
    /// (kubernetes#76338).
    #[error("the API server has been silent for {} s", .0.as_secs())]
    Silent(Duration),
    /// The answer is neither an event nor a list.
    #[error("the API server's answer is invalid")]
    Unreadable(#[from] Unreadable),
}

/// What to do after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorAction {
    /// Resume after the last version received.
    Resume,
    /// List everything again.
    List,
    /// List everything again without reporting an error: the API server keeps only a few minutes of
    /// history.
    ListQuietly,
    /// List everything again page by page: this API server does not stream lists.
    ListPaged,
    /// Treat the kind as absent.
    Absent,
}

// === impl WatchError ===

impl WatchError {
    /// Returns the action, chosen by the status code alone.
    pub(super) fn action(&self, asked: RequestKind) -> ErrorAction {
        match self {
            WatchError::Status { code: 410, .. } => ErrorAction::ListQuietly,
            WatchError::Status { code: 404, .. } => ErrorAction::Absent,
            // Without the WatchList feature, the API server rejects sendInitialEvents as invalid
            // (422).
            WatchError::Status {
                code: 400 | 422, ..
            } if asked == RequestKind::StreamedList => ErrorAction::ListPaged,
            // The cause is the client's identity or the moment, not the request.
            WatchError::Status {
                code: 401 | 403 | 408 | 429,
                ..
            } => ErrorAction::Resume,
            // The API server rejects the resource version itself, and would do so again.
            WatchError::Status { code, .. } if (400..500).contains(code) => ErrorAction::List,
            _ => ErrorAction::Resume,
        }
    }
}

/// The kind of request that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// A list, streamed.
    StreamedList,
    /// A list, in one answer or page by page.
    List,
    /// The events after some version.
    Events,
}

impl From<kube::Error> for WatchError {
    fn from(error: kube::Error) -> WatchError {
        match error {
            kube::Error::Api(status) => (*status).into(),
            other => WatchError::Request(other),
        }
    }
}

impl From<Status> for WatchError {
    fn from(status: Status) -> WatchError {
        WatchError::Status {
            code: status.code,
            reason: status.reason,
            message: status.message,
        }
    }
}

impl From<kube::core::request::Error> for WatchError {
    fn from(error: kube::core::request::Error) -> WatchError {
        WatchError::Request(kube::Error::BuildRequest(error))
    }
}
