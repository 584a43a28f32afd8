//! Connections between all places.

use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result};
use dataplane::{Family, Protocol};
use testkit::address_plan as addresses;
use tests::cluster::shop::{WEB, cluster_address, node_port_address};
use tests::cluster::{Cluster, DEADLINE};

pub(crate) fn everywhere(cluster: &mut Cluster) -> Result<()> {
    let all = WEB.map(|pod| pod.name);
    let nodes: Vec<u8> = cluster.nodes().collect();
    let mut ways = 0;
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for family in Family::ALL {
            for node in &nodes {
                let outside = cluster.topology().outside()?;
                let own = cluster.topology().node(*node)?;
                let pod = cluster.client_pod(*node)?;
                let node_port = node_port_address(*node, family);
                let cluster_ip = cluster_address(family);
                let places = [
                    (outside, node_port),
                    (pod, cluster_ip),
                    (own, cluster_ip),
                    (pod, node_port),
                ];
                for (inside, destination) in places {
                    cluster.wait_for_servers(inside, (protocol, destination), &all, DEADLINE)?;
                    ways += 1;
                }
            }
        }
    }
    // The Service of the API server, whose endpoint is not a Pod.
    let api_server = SocketAddr::new(addresses::cluster_ip(1, Family::Ipv4), 443);
    for node in nodes {
        let connected = cluster
            .client_pod(node)?
            .enter(|| TcpStream::connect_timeout(&api_server, DEADLINE))?;
        connected.with_context(|| format!("a pod of node-{node} does not reach the API server"))?;
    }
    println!("    {ways} ways, each to all {} servers", all.len());
    Ok(())
}
