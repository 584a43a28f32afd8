//! The link from a node to an API server in another namespace.

use std::net::Ipv4Addr;

use anyhow::Result;

use crate::network::{Link, Namespace, Network};

/// The address of an API server in a namespace of its own.
pub const API_SERVER: Ipv4Addr = Ipv4Addr::new(10, 123, 0, 1);

/// The node's interface to the API server, used for nothing else.
const NEAR: &str = "control0";

/// The parameters of a link between a node and an API server.
#[derive(Debug, Clone, Copy)]
pub struct ControlLink<'a> {
    /// The namespace of the API server, in which [`API_SERVER`] is already configured.
    pub control: &'a Namespace,
    /// The name of the interface at the API server's end.
    pub far_end: &'a str,
    /// The address of the node on this link.
    pub own: Ipv4Addr,
}

// === impl ControlLink ===

impl ControlLink<'_> {
    /// Creates the link from `node`.
    pub fn connect(&self, network: &Network, node: &Namespace) -> Result<()> {
        let ControlLink {
            control,
            far_end,
            own,
        } = self;
        network.add_links(&[Link {
            from: (node, NEAR),
            to: (control, far_end),
        }])?;
        node.configure(&format!(
            "link set {NEAR} up\n\
             addr add {own}/32 dev {NEAR}\n\
             route add {API_SERVER} dev {NEAR} src {own}\n"
        ))?;
        control.configure(&format!(
            "link set {far_end} up\nroute add {own} dev {far_end}\n"
        ))
    }
}
