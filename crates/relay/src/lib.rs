//! Node ports on loopback, carried to an endpoint by this process: a kernel that rewrites a packet
//! from 127.0.0.1 refuses the reply as a martian.
//!
//! ```text
//! Dataplane --follow--> Listeners --Step--> Relays --> a socket on 127.0.0.1 or ::1, a task each
//!                       (pure)                           |
//!                                    TCP: each connection is copied to the endpoint it was given
//!                                    UDP: each client has a session, and an endpoint with it
//! ```
//!
//! Where a connection may go is what [`Dataplane::verdict`](dataplane::Dataplane::verdict) says of
//! a packet that this node sends to the node port on an address of its own. What the kernel carries
//! out is not touched: the verdict on packets to a loopback address stays what it is.
//!
//! Connections end with this process; those that an endpoint serves when it leaves, or when its port
//! is closed, are left to finish.

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
pub use limits::{Limits, raise_descriptor_limit};
pub use listeners::{Listeners, News, Refusal, Step};
pub use local_port::{LocalPort, Transport};
pub use relays::{OpenError, Relays};
pub use route::Route;
