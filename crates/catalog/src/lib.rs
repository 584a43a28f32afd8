//! Turns watch events into a view of each Service and the set of changed Services.
//!
//! A source (an API server's watch, a directory of manifests) sends [`Event`]s for four kinds of
//! object. [`Catalog::apply`] parses each object once and keeps only what the compiler needs; a
//! part that is invalid or not supported becomes a [`Rejection`](dataplane::Rejection), and the
//! rest is kept. The engine then takes the set of changes and queries the view of each changed
//! Service.
//!
//! ```text
//!                     parse once                            on demand
//!  Event<Service>       ---> Service --------------------+
//!                              ^ key                     +--> View { service, endpoints }
//!  Event<EndpointSlice> ---> slice, slice, slice --------+
//!  Event<Node>          ---> OwnNode                          Dirty { services, node, ... }
//!  Event<ServiceCidr>   ---> ranges                           rejections, missing lists
//! ```
//!
//! Everything here is synchronous and free of I/O. The cost of an event is proportional to its
//! object, never to the size of the cluster. The exception is the end of a list, which costs as
//! much as the list is long.
//!
//! # Incomplete until synced
//!
//! Until [`Catalog::synced`], the catalog is incomplete. An object that is not in it may still
//! exist, so nothing may be removed from the kernel because it is missing here.
//!
//! # Example
//!
//! ```
//! use catalog::{Catalog, Event, object};
//! use dataplane::ServiceKey;
//!
//! let service: object::Service = serde_json::from_str(r#"{
//!     "metadata": {"namespace": "shop", "name": "cart"},
//!     "spec": {"clusterIP": "10.96.0.10", "externalIPs": ["198.51.100.300"],
//!              "ports": [{"port": 80}]}
//! }"#)?;
//! let slice: object::EndpointSlice = serde_json::from_str(r#"{
//!     "metadata": {"namespace": "shop", "name": "cart-x7",
//!                  "labels": {"kubernetes.io/service-name": "cart"}},
//!     "addressType": "IPv4",
//!     "ports": [{"name": "", "port": 8080}],
//!     "endpoints": [{"addresses": ["10.0.1.5"], "nodeName": "node-1"}]
//! }"#)?;
//!
//! let mut catalog = Catalog::new("node-1");
//! catalog.apply(Event::<object::Service>::Init);
//! catalog.apply(Event::InitApply(service));
//! catalog.apply(Event::<object::Service>::InitDone);
//! catalog.apply(Event::<object::EndpointSlice>::Init);
//! catalog.apply(Event::InitApply(slice));
//! catalog.apply(Event::<object::EndpointSlice>::InitDone);
//! assert!(!catalog.synced(), "Nodes and ServiceCIDRs have not been listed");
//!
//! let cart = ServiceKey::new("shop", "cart");
//! assert!(catalog.take_dirty().services.contains_key(&cart));
//! let view = catalog.service(&cart).ok_or("served")?;
//! assert_eq!(view.endpoints.by_port.len(), 1);
//!
//! let rejection = catalog.rejections().next().ok_or("the external IP is not an address")?;
//! assert_eq!(
//!     rejection.to_string(),
//!     "Service shop/cart: spec.externalIPs[0]: \"198.51.100.300\" is not an IP address; it is not served",
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod catalog;
mod dirty;
mod event;
pub mod object;
mod object_store;
mod own_node;
mod parse;
mod shared_names;
mod slice;
mod unserved;

pub use catalog::{Catalog, View};
pub use dirty::{Dirty, Trigger};
pub use event::{Change, Event, ObjectKey};
pub use object_store::Faults;
pub use own_node::{LastKnownAddresses, NodeLifecycle, OwnNode};
pub use parse::is_no_source;
pub use unserved::Unserved;
