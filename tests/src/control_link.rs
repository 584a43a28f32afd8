//! The way from a node to an API server that is in a namespace of its own.

use std::net::Ipv4Addr;

use anyhow::Result;

use crate::network::{Link, Namespace, Network};

/// The node's interface towards the API server, which nothing else goes through.
const NEAR: &str = "control0";

/// Where an API server is and who comes to it.
#[derive(Debug, Clone, Copy)]
pub struct ControlLink<'a> {
    /// The namespace of the API server, which has `api_server` already.
    pub control: &'a Namespace,
    /// The address it is reached at.
    pub api_server: Ipv4Addr,
    /// What the link is called at the API server's end.
    pub far_end: &'a str,
    /// The address that the node has on this link.
    pub own: Ipv4Addr,
}

// === impl ControlLink ===

impl ControlLink<'_> {
    /// Makes the link from `node`.
    pub fn connect(&self, network: &Network, node: &Namespace) -> Result<()> {
        let ControlLink {
            control,
            api_server,
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
             route add {api_server} dev {NEAR} src {own}\n"
        ))?;
        control.configure(&format!(
            "link set {far_end} up\nroute add {own} dev {far_end}\n"
        ))
    }
}
