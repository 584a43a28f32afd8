//! Objects into what is kept of them. Pure and total: invalid parts become rejections, the rest is kept.

mod address;
mod endpoint_slice;
mod findings;
mod node;
mod precedence;
mod service;
mod service_cidr;

use dataplane::{Protocol, Rejection};

pub(crate) use endpoint_slice::parse_endpoint_slice;
pub(crate) use node::parse_node;
pub(crate) use service::{parse_service, unserved};
pub(crate) use service_cidr::parse_service_cidr;

/// What an object came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parsed<T> {
    /// What is kept; `None` if Signpost does not serve the object or rejects all of it.
    pub(crate) value: Option<T>,
    /// What of it is not honoured.
    pub(crate) rejections: Vec<Rejection>,
}

// === impl Parsed ===

impl<T> Parsed<T> {
    /// A value with nothing wrong about it.
    pub(crate) fn clean(value: T) -> Parsed<T> {
        Parsed {
            value: Some(value),
            rejections: Vec::new(),
        }
    }
}

/// The protocol called `name`; a port that does not say is TCP.
fn protocol_called(name: &str) -> Option<Protocol> {
    match name {
        "" | "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}
