//! What the source delivered about the Services in question.

use std::collections::BTreeMap;
use std::sync::Arc;

use catalog::{Unserved, View};
use dataplane::ServiceKey;

/// What the source delivered about the Services that a question is about.
#[derive(Debug, Clone, Default)]
pub struct QueryResult {
    /// All Services that the question is about, including those that the source does not have.
    pub services: BTreeMap<ServiceKey, ServiceState>,
}

/// The state of one Service in the catalog.
#[derive(Debug, Clone)]
pub enum ServiceState {
    /// Signpost programs it.
    Served {
        /// The Service and its endpoints.
        view: View,
        /// The names of its EndpointSlices.
        slices: Vec<Arc<str>>,
    },
    /// It exists, but Signpost does not serve it.
    Unserved(Unserved),
    /// The source has no such Service, or all of it is rejected.
    Unknown,
}
