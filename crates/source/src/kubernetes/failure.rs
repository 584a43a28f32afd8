//! What can go wrong with a list or a watch, and what to do then.

use std::io;
use std::time::Duration;

use kube::core::Status;
use thiserror::Error;

use super::wire::Unreadable;

/// Why a list or a watch ended.
#[derive(Debug, Error)]
pub(super) enum WatchError {
    /// No answer.
    #[error("unable to reach the API server")]
    Request(#[source] kube::Error),
    /// An answer that is not what was asked for.
    #[error("the API server answered {code} {reason}: {message}")]
    Status {
        /// The HTTP status code.
        code: u16,
        /// Its reason, a word of the Kubernetes API.
        reason: String,
        /// Its message.
        message: String,
    },
    /// The connection broke.
    #[error("the connection to the API server ended early")]
    Cut(#[source] io::Error),
    /// The connection is there but nothing comes: not even the bookmarks that are due every minute
    /// (kubernetes#76338).
    #[error("the API server has been silent for {} s", .0.as_secs())]
    Silent(Duration),
    /// Something came that is not an event or a list.
    #[error("the API server's answer is invalid")]
    Unreadable(#[from] Unreadable),
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Go on from where it ended.
    Resume,
    /// List everything again.
    List,
    /// List everything again, and it is no fault: the API server only keeps a few minutes of
    /// history.
    ListQuietly,
    /// List everything again page by page: this API server does not stream lists.
    ListPaged,
    /// The kind does not exist.
    Absent,
}

// === impl WatchError ===

impl WatchError {
    /// By status code alone.
    pub(super) fn remedy(&self, asked: Asked) -> Remedy {
        match self {
            WatchError::Status { code: 410, .. } => Remedy::ListQuietly,
            WatchError::Status { code: 404, .. } => Remedy::Absent,
            // With WatchList off, sendInitialEvents is an invalid value (422).
            WatchError::Status {
                code: 400 | 422, ..
            } if asked == Asked::StreamedList => Remedy::ListPaged,
            // Not the request but its sender or its time.
            WatchError::Status {
                code: 401 | 403 | 408 | 429,
                ..
            } => Remedy::Resume,
            // What it says about the version to resume from will not change.
            WatchError::Status { code, .. } if (400..500).contains(code) => Remedy::List,
            _ => Remedy::Resume,
        }
    }
}

/// What had been asked for when it went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// A list, streamed.
    StreamedList,
    /// A list, page by page.
    PagedList,
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
