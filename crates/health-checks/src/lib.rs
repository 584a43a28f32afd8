//! Answers health checks of load balancers and monitors, in kube-proxy's formats: `/healthz` and
//! `/livez` of the node ([`router`]), and the health-check node ports of Services
//! ([`serve_services`]).
//!
//! [`ProxyHealth`] decides whether the kernel keeps up with the desired state. The reconciler's thread
//! updates it; what else an answer depends on is asked of [`NodeFacts`].

mod health_answer;
mod health_proxy;
mod service_health;

use std::fmt;
use std::time::Duration;

use catalog::NodeLifecycle;

pub use health_answer::router;
pub use health_proxy::{FamilyHealth, NodeHealth, ProxyHealth, UpdateState};
pub use service_health::serve as serve_services;

/// What answers depend on, besides the kernel. Every value is the latest, and no call waits.
pub trait NodeFacts: fmt::Debug + Send + Sync {
    /// Whether the node stays in the cluster. A node of which nothing is known yet stays.
    fn lifecycle(&self) -> NodeLifecycle;

    /// The period in which the profile has the kernel checked.
    fn sync_period(&self) -> Duration;
}
