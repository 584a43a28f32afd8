//! Why requests to the cluster fail, and what to do.

use kube::config::{InferConfigError, KubeconfigError};
use thiserror::Error;

/// Why a request to the cluster failed.
#[derive(Debug, Error)]
pub(crate) enum ClusterError {
    /// A kubeconfig named on the command line cannot be used.
    #[error("failed to use the kubeconfig")]
    Kubeconfig(#[source] KubeconfigError),
    /// No kubeconfig was named and none was found.
    #[error("failed to find a cluster")]
    Nowhere(#[source] InferConfigError),
    /// The client could not be created.
    #[error("failed to set up a client for {server}")]
    Client {
        server: String,
        #[source]
        source: kube::Error,
    },
    /// A request failed.
    #[error("failed to {doing}")]
    Request {
        doing: String,
        #[source]
        source: kube::Error,
    },
}

// === impl ClusterError ===

impl ClusterError {
    /// The next step for the user.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            ClusterError::Kubeconfig(_) => {
                "`kubectl config get-contexts` lists contexts; give --kubeconfig or --context"
            }
            ClusterError::Nowhere(_) => {
                "give --kubeconfig FILE, or set KUBECONFIG; `kubectl config view` shows what kubectl uses"
            }
            ClusterError::Client { .. } => {
                "`kubectl version` shows whether these credentials can be used"
            }
            ClusterError::Request { .. } => match self.code() {
                Some(401) => "log in to the cluster again; `kubectl auth whoami` shows who you are",
                Some(403) => {
                    "ask an administrator for the permission that the message names; `kubectl auth can-i --list` shows \
                     those you have"
                }
                Some(404) => {
                    "`kubectl get proxyprofiles,nodeproxies` shows what there is of Signpost; where kubectl does not know \
                     these types, install it first. Of other objects, check the name and the namespace (-n)"
                }
                Some(409) => "another program changed the object at the same time; run this again",
                Some(422) => "correct the field that the message names",
                _ => "`kubectl version` shows whether the API server answers",
            },
        }
    }

    /// Whether the API server denied the request for lack of permission.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// Whether the API server answered that the object or its type does not exist.
    pub(crate) fn is_absent(&self) -> bool {
        self.code() == Some(404)
    }

    /// Whether the same request may succeed a moment later: there was no answer, or the server is
    /// busy or starting.
    pub(crate) fn is_passing(&self) -> bool {
        match (self, self.code()) {
            (_, Some(code)) => code == 429 || code >= 500,
            (ClusterError::Request { .. }, None) => true,
            _ => false,
        }
    }

    fn code(&self) -> Option<u16> {
        match self {
            ClusterError::Request {
                source: kube::Error::Api(status),
                ..
            } => Some(status.code),
            _ => None,
        }
    }
}
