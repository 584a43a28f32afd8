//! The desired processing, by this node's kernel, of packets addressed to Services, as a value.
//!
//! The objects of a source arrive as [`Service`]s and [`Endpoint`]s. [`compile`] turns one Service
//! into [`ServiceRules`]. A [`Dataplane`] holds the rules of all Services, keyed by a packet's
//! destination. [`Dataplane::verdict`] computes where a packet may go, and is the specification for
//! every kernel mechanism.
//!
//! ```text
//! Service + [Endpoint] + Node + Config --compile--> Arc<ServiceRules> --set--> Dataplane
//!                                                                                 |
//!                                                  frontends, cluster IPs, hairpins, verdict
//! ```
//!
//! Everything here is pure: no clock, no I/O, no logger, `std` and `ipnet` only.

mod compile;
mod config;
mod endpoint;
mod frontend;
mod maglev;
mod next_part;
mod oracle;
mod persistent_map;
mod plane;
mod rejection;
mod scheduler;
mod service;
mod shared_list;
mod topology;

pub use address::{Family, Port, Protocol, is_ipv6_link_local};
pub use compile::{MOST_ELEMENTS, compile};
pub use config::{
    Config, ExternalIps, InterfaceMatch, IpvsTimeouts, LocalDetection, Mark, Masquerade, Mode,
    NodePortAddresses,
};
pub use endpoint::{Endpoint, EndpointPort, Endpoints, Hints, Omitted, Readiness};
pub use frontend::{
    Frontend, FrontendKey, FrontendKind, HealthCheck, LocalEndpoints, ServiceRules, Target,
};
pub use maglev::maglev;
pub use next_part::{NextPart, PartContents, PartSize};
pub use oracle::{Choice, Origin, Packet, Verdict};
pub use persistent_map::{Difference, PersistentMap};
pub use plane::{Claims, Dataplane, Disputes, Hairpin, Refused, Reserved};
pub use rejection::{ObjectKind, ObjectName, Rejection};
pub use scheduler::{Basis, Scheduler, UnknownScheduler};
pub use service::{
    Affinity, Node, Precedence, Service, ServiceKey, ServiceKind, ServicePort, ServicePortName,
    TrafficPolicy,
};
pub use topology::{Selection, TopologyLevel, select, topology_level};
