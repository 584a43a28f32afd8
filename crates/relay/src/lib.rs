//! Relays node ports on loopback to an endpoint in this process: a kernel that rewrites a packet
//! from 127.0.0.1 drops the reply as a martian.
//!
//! ```text
//! Dataplane --follow--> Listeners --Step--> Relays --> a socket on 127.0.0.1 or ::1, a task each
//!                       (pure)                           |
//!                                    TCP: each connection is copied to the endpoint it was given
//!                                    UDP: each client has a session, and an endpoint with it
//! ```
//!
//! The endpoints are those that [`Dataplane::verdict`](dataplane::Dataplane::verdict) gives for a
//! packet from this node to the node port on one of the node's own addresses. The kernel's rules
//! are not affected: the verdict on packets to a loopback address stays the same.
//!
//! Connections end with this process. Existing connections may finish when their endpoint is
//! removed or their port is closed.

mod chooser;
mod counts;
mod limits;
mod listeners;
mod local_port;
mod relays;
mod route;
mod shared;
mod tcp;
mod udp;

pub use chooser::Chooser;
pub use counts::Counts;
pub use limits::Limits;
pub use listeners::{ListenFailure, ListenFailureChange, Listeners, Step};
pub use local_port::{LocalPort, Transport};
pub use relays::{OpenError, Relays};
pub use route::Route;
