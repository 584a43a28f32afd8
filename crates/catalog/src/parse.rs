//! Parses objects into what is kept of them. Pure and total: invalid parts become rejections, the
//! rest is kept.

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
pub use service::is_no_source;
pub(crate) use service::{parse_service, unserved};
pub(crate) use service_cidr::parse_service_cidr;

/// The result of parsing an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parsed<T> {
    /// What is kept; `None` if Signpost does not serve the object or rejects all of it.
    pub(crate) value: Option<T>,
    /// The parts of it that are not honoured.
    pub(crate) rejections: Vec<Rejection>,
}

// === impl Parsed ===

impl<T> Parsed<T> {
    /// A value without rejections.
    pub(crate) fn clean(value: T) -> Parsed<T> {
        Parsed {
            value: Some(value),
            rejections: Vec::new(),
        }
    }
}

/// Returns the protocol called `name`; an empty name means TCP.
fn protocol_called(name: &str) -> Option<Protocol> {
    match name {
        "" | "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}
