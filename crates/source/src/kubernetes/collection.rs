//! The collections that the agent reads, as requests to the API server.

use std::time::Duration;

use http::Request;
use kube::Resource;
use kube::api::{ListParams, WatchParams};
use kube::core::request::{self, Request as Requests};

use crds::NodeProxy;

/// The page size of a paged list, the same as client-go's.
const PAGE: u32 = 500;

/// The watch timeout in seconds that is requested from the API server. Random, so that watches
/// opened together are not renewed together.
const WATCH_SECONDS: std::ops::RangeInclusive<u32> = 240..=290;

/// The objects of one kind that this node needs.
#[derive(Debug, Clone)]
pub(super) struct Collection {
    /// What messages call them.
    pub(super) kind: &'static str,
    /// What it means if the API server does not know the kind.
    pub(super) absence: UnknownKindPolicy,
    path: String,
    labels: Option<&'static str>,
    fields: Option<String>,
}

/// What it means if the API server does not know a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnknownKindPolicy {
    /// It is an error.
    Fault,
    /// There are no objects of the kind.
    Empty {
        /// How long to wait before checking again.
        look_again: Duration,
    },
}

/// How a watch starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start<'a> {
    /// With a list of everything.
    List,
    /// After this resource version.
    After(&'a str),
}

/// How much of a list one answer contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListSize {
    /// All objects.
    Everything,
    /// As many objects as cost the API server little memory.
    Page,
}

// === impl Collection ===

impl Collection {
    /// Services, except headless ones and those with a service-proxy-name label.
    pub(super) fn services() -> Collection {
        Collection {
            kind: "Services",
            absence: UnknownKindPolicy::Fault,
            path: "/api/v1/services".to_owned(),
            labels: Some("!service.kubernetes.io/service-proxy-name"),
            fields: Some("spec.clusterIP!=None".to_owned()),
        }
    }

    /// EndpointSlices, except those of headless Services.
    pub(super) fn endpoint_slices() -> Collection {
        Collection {
            kind: "EndpointSlices",
            absence: UnknownKindPolicy::Fault,
            path: "/apis/discovery.k8s.io/v1/endpointslices".to_owned(),
            labels: Some("!service.kubernetes.io/headless"),
            fields: None,
        }
    }

    /// The Node called `node`.
    pub(super) fn own_node(node: &str) -> Collection {
        Collection {
            kind: "Nodes",
            absence: UnknownKindPolicy::Fault,
            path: "/api/v1/nodes".to_owned(),
            labels: None,
            fields: Some(format!("metadata.name={node}")),
        }
    }

    /// ServiceCIDRs, which exist since Kubernetes 1.33.
    pub(super) fn service_cidrs() -> Collection {
        Collection {
            kind: "ServiceCIDRs",
            // The kind appears with an upgrade of the control plane, and thousands of nodes ask for
            // it.
            absence: UnknownKindPolicy::Empty {
                look_again: Duration::from_secs(300),
            },
            path: "/apis/networking.k8s.io/v1/servicecidrs".to_owned(),
            labels: None,
            fields: None,
        }
    }

    /// The NodeProxy of the Node called `node`.
    pub(super) fn own_node_proxy(node: &str) -> Collection {
        Collection {
            kind: "NodeProxies",
            // Signpost may be being installed right now.
            absence: UnknownKindPolicy::Empty {
                look_again: Duration::from_secs(20),
            },
            path: NodeProxy::url_path(&(), None),
            labels: None,
            fields: Some(format!("metadata.name={node}")),
        }
    }

    /// Returns a watch request. A watch that starts with a list requests the most recent state, so
    /// that an API server that lags behind the previous one cannot deliver an older state.
    pub(super) fn watch(&self, start: Start<'_>) -> Result<Request<Vec<u8>>, request::Error> {
        let params = WatchParams {
            label_selector: self.labels.map(str::to_owned),
            field_selector: self.fields.clone(),
            timeout: Some(fastrand::u32(WATCH_SECONDS)),
            bookmarks: true,
            send_initial_events: start == Start::List,
        };
        let version = match start {
            Start::List => "",
            Start::After(version) => version,
        };
        Requests::new(&self.path).watch(&params, version)
    }

    /// Returns the request for a list, or for the page of one after token `continued`. The answer is
    /// the most recent state.
    pub(super) fn list(
        &self,
        size: ListSize,
        continued: Option<&str>,
    ) -> Result<Request<Vec<u8>>, request::Error> {
        let params = ListParams {
            label_selector: self.labels.map(str::to_owned),
            field_selector: self.fields.clone(),
            limit: match size {
                ListSize::Everything => None,
                ListSize::Page => Some(PAGE),
            },
            continue_token: continued.map(str::to_owned),
            ..ListParams::default()
        };
        Requests::new(&self.path).list(&params)
    }
}
