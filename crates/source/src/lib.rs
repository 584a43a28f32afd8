//! The inputs of the engine: an API server or a directory of manifests, the node's own addresses,
//! and what an earlier process has kept of them on disk.
//!
//! ```text
//! kubernetes::watch --+
//!      or             +--Delivery--> one channel --> Engine
//! manifests::watch  --+
//! addresses::watch  --+
//! ```
//!
//! What [`last_good`] and [`last_node`] kept is read once, before the first delivery.
//!
//! Sources never give up: an error becomes a [`SourceCondition`], and everything delivered before
//! stays in force.

pub mod addresses;
pub mod kubernetes;
pub mod last_good;
pub mod last_node;
pub mod manifests;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use catalog::Change;
use crds::NodeProxySpec;
use crds::readable::UnreadableField;
use thiserror::Error;
use tokio::sync::mpsc;

pub use manifests::UnreadableManifest;

/// A message from a source to the engine. Each source sends its messages in order, over one
/// channel.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "a configuration is rare, and every other delivery is moved, not copied"
)]
pub enum Delivery {
    /// A change of Services, EndpointSlices, Nodes or ServiceCIDRs.
    Objects(Change),
    /// The node's configuration; `None` if there is none. Sent when it is first known, and then
    /// only when it changes.
    Configuration(Option<Assignment>),
    /// The addresses of this node's own interfaces. Sent at start, and then when they change.
    Addresses(LocalAddresses),
    /// The interfaces of this node. Sent when the engine first asks for them, and then when they change.
    Interfaces(Interfaces),
    /// The condition of the source itself. Sent when it is first known, and then when it changes.
    Condition(SourceCondition),
}

/// The addresses of a node's own interfaces.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LocalAddresses {
    /// All of them.
    pub all: BTreeSet<IpAddr>,
    /// Those that only the device of another service proxy has.
    pub of_proxies: BTreeSet<IpAddr>,
}

impl<A: Into<BTreeSet<IpAddr>>> From<A> for LocalAddresses {
    /// Addresses of devices that belong to no service proxy.
    fn from(addresses: A) -> LocalAddresses {
        LocalAddresses {
            all: addresses.into(),
            of_proxies: BTreeSet::new(),
        }
    }
}

/// The interfaces of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interfaces {
    /// Those on which packets of others may arrive.
    Known(BTreeSet<Arc<str>>),
    /// The kernel does not list them, or no task watches them any more.
    Unknown,
}

/// The configuration of this node.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// The generation of the NodeProxy that holds it; absent if it was computed on the node.
    pub generation: Option<i64>,
    /// The configuration.
    pub spec: NodeProxySpec,
    /// Which profile decided, and why, as a sentence.
    pub reason: String,
    /// The fields of the spec that this version cannot read, because a newer operator wrote values
    /// that it does not know. They have their defaults in `spec`.
    pub unreadable: Vec<UnreadableField>,
}

/// The condition of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceCondition {
    /// What was delivered is current.
    Fresh,
    /// What was delivered may be out of date.
    Stale {
        /// When it was last known to be current, by this machine's clock.
        since: SystemTime,
        /// The reason, as text.
        message: String,
    },
    /// The manifests, or parts of them, that are not used as written. The list is complete: if it
    /// is empty, every file was read.
    Manifests(Vec<UnreadableManifest>),
}

/// The receiver of deliveries is gone: the engine has ended, so the source can end, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("failed to deliver to the engine: its task has ended")]
pub struct EngineGone;

/// Sends a delivery; waits while the engine is busy.
async fn deliver(
    deliveries: &mpsc::Sender<Delivery>,
    delivery: Delivery,
) -> Result<(), EngineGone> {
    deliveries.send(delivery).await.map_err(|_| EngineGone)
}
