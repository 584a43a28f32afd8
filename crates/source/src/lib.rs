//! Where the engine learns what to serve: an API server or a directory of manifests, and the
//! node's own addresses.
//!
//! ```text
//! kubernetes::watch --+
//!      or             +--Delivery--> one channel --> Engine
//! manifests::watch  --+
//! addresses::watch  --+
//! ```
//!
//! Sources never give up: what goes wrong with one is a [`SourceCondition`], and everything that
//! was delivered before stays in force.

pub mod addresses;
pub mod kubernetes;
pub mod manifests;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::SystemTime;

use catalog::Change;
use crds::NodeProxySpec;
use thiserror::Error;
use tokio::sync::mpsc;

pub use manifests::UnreadableManifest;

/// What a source tells the engine, in order, over one channel.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "a configuration is rare, and every other delivery is moved, not copied"
)]
pub enum Delivery {
    /// Something about Services, EndpointSlices, Nodes or ServiceCIDRs.
    Objects(Change),
    /// The node's configuration; `None` when there is none. Sent when it is first known, and then
    /// only when it changes.
    Configuration(Option<Assignment>),
    /// The addresses of this node's own interfaces. Sent at start, and then when they change.
    Addresses(BTreeSet<IpAddr>),
    /// How the source itself is doing. Sent when it is first known, and then when it changes.
    Condition(SourceCondition),
}

/// The configuration of this node.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// The generation of the NodeProxy it stands in; absent when it was worked out on the node.
    pub generation: Option<i64>,
    /// The configuration.
    pub spec: NodeProxySpec,
    /// Which profile decided, and why; a sentence.
    pub reason: String,
}

/// How a source is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceCondition {
    /// What was delivered is what there is.
    Fresh,
    /// What was delivered may be out of date.
    Stale {
        /// When it was last known to be right, by this machine's clock.
        since: SystemTime,
        /// Why, as text.
        message: String,
    },
    /// The manifests, or parts of them, that are not used as they stand; all of them, so that an
    /// empty list means that every file was read.
    Manifests(Vec<UnreadableManifest>),
}

/// The receiver of deliveries is gone: the engine has ended, and with it the purpose of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("failed to deliver to the engine: its task has ended")]
pub struct EngineGone;

/// Hands over a delivery, waiting while the engine is busy.
async fn deliver(
    deliveries: &mpsc::Sender<Delivery>,
    delivery: Delivery,
) -> Result<(), EngineGone> {
    deliveries.send(delivery).await.map_err(|_| EngineGone)
}
