//! The network of benchmarks that drive a backend without an API server: a client, a node and a server.

use anyhow::Result;

use crate::network::{Link, Namespace, Network};

/// Connects a client and a server with the node between them, which forwards. The client is the second host
/// of the network whose first three numbers are `of_client`, the server that of 192.168.2.0/24, and the
/// node is the first host of both. Further lines configure the server and the node.
pub fn connect(
    network: &Network,
    [client, node, server]: [&Namespace; 3],
    of_client: &str,
    [more_of_server, more_of_node]: [&str; 2],
) -> Result<()> {
    network.add_links(&[
        Link {
            from: (client, "uplink"),
            to: (node, "client"),
        },
        Link {
            from: (server, "uplink"),
            to: (node, "server"),
        },
    ])?;
    node.set_sysctls(&[("net/ipv4/ip_forward", "1")])?;
    client.configure(&format!(
        "link set uplink up\naddr add {of_client}.2/24 dev uplink\nroute add default via {of_client}.1\n",
    ))?;
    server.configure(&format!(
        "link set lo up\nlink set uplink up\naddr add 192.168.2.2/24 dev uplink\n\
         route add default via 192.168.2.1\n{more_of_server}",
    ))?;
    node.configure(&format!(
        "link set lo up\nlink set client up\nlink set server up\n\
         addr add {of_client}.1/24 dev client\naddr add 192.168.2.1/24 dev server\n{more_of_node}",
    ))
}
