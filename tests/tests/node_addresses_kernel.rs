//! Addresses of a node are added and removed: connections to a node port at an address are served
//! from its addition until its removal.

use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use dataplane::Family;
use libtest_mimic::Arguments;
use testkit::address_plan as addresses;
use tests::deadline::wait_for;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{Namespace, Network, enter_private_namespaces};
use tests::trial::trial;

/// How long the agent may take to start.
const PROMPTLY: Duration = Duration::from_secs(30);
/// How soon a change of addresses must show in the rules. An agent that polled addresses every two
/// seconds could not manage this [`TIMES`] in a row.
const AT_ONCE: Duration = Duration::from_millis(1500);
const TIMES: u8 = 5;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let trial = trial(
        "a_node_port_is_there_as_soon_as_an_address_is",
        new_addresses,
    );
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit();
}

fn new_addresses() -> Result<()> {
    let mut network = Network::new()?;
    let [node] = network.add_namespaces(["node"])?;
    let interface = format!(
        "link set lo up\nlink add {uplink} type veth peer name peer\nlink set {uplink} up\n\
         link set peer up\n",
        uplink = addresses::UPLINK
    );
    node.configure(&interface)?;
    let folder = tempfile::tempdir()?;
    let directory = folder.path().join("manifests");
    fs::create_dir(&directory)?;
    fs::write(directory.join("all.yaml"), manifests())?;
    let agent = LoneAgent::start(&Workplace {
        node: node.clone(),
        source: Source::Manifests(directory),
        folder: folder.path().to_owned(),
        sysctls: Sysctls::Writable,
        deadline: PROMPTLY,
    })?;
    agent.wait_until_ready()?;
    for number in 1..=TIMES {
        let [ipv4, ipv6] = Family::ALL.map(|family| addresses::second_address(number, family));
        let link_local = [
            IpAddr::from([169, 254, 20, number]),
            IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0x20, u16::from(number)]),
        ];
        for address in [ipv4, ipv6].into_iter().chain(link_local) {
            let family = Family::of(address);
            for (change, there) in [("add", true), ("del", false)] {
                change_address(&node, change, address)?;
                let began = Instant::now();
                wait_for(&format!("{change} {address}"), AT_ONCE, || {
                    Ok((accepts(&node, family, address) == there).then_some(()))
                })?;
                println!("    {change} {address}: {:.0?}", began.elapsed());
            }
        }
    }
    let log = agent.log();
    ensure!(!log.contains("address changes"), "it does not hear:\n{log}");
    Ok(())
}

fn change_address(node: &Namespace, change: &str, address: IpAddr) -> Result<()> {
    let (length, duplicates) = match address {
        IpAddr::V4(_) => (32, ""),
        IpAddr::V6(_) => (128, " nodad"),
    };
    let uplink = addresses::UPLINK;
    node.configure(&format!(
        "addr {change} {address}/{length} dev {uplink}{duplicates}\n"
    ))
}

/// Whether node ports are accepted at an address.
fn accepts(node: &Namespace, family: Family, address: IpAddr) -> bool {
    let family = match family {
        Family::Ipv4 => "ip",
        Family::Ipv6 => "ip6",
    };
    let listed = node.nft(&["list", "set", family, "signpost", "nodeport-addresses"]);
    // The set does not exist while it would be empty.
    listed.is_ok_and(|set| {
        let mut words = set.split([' ', ',', '\n', '\t']);
        words.any(|word| word == address.to_string())
    })
}

/// Returns a Node, a Service with a node port, and a profile that accepts it at some of the node's
/// addresses.
fn manifests() -> String {
    let [ipv4, ipv6] = Family::ALL.map(|family| addresses::cluster_ip(10, family));
    let [node_ipv4, node_ipv6] = Family::ALL.map(|family| addresses::node_address(1, family));
    format!(
        "apiVersion: signpost.dev/v1alpha1\n\
         kind: ProxyProfile\n\
         metadata: {{name: default}}\n\
         spec: {{nodePorts: {{addresses: [172.20.0.0/16, 169.254.0.0/16, \"fd00:172:20::/64\", \"fe80::/10\"]}}}}\n\
         ---\n\
         apiVersion: v1\n\
         kind: Node\n\
         metadata: {{name: {}}}\n\
         status: {{addresses: [{{type: InternalIP, address: {node_ipv4}}}, {{type: InternalIP, address: \"{node_ipv6}\"}}]}}\n\
         ---\n\
         apiVersion: v1\n\
         kind: Service\n\
         metadata: {{namespace: shop, name: web}}\n\
         spec:\n  \
           type: NodePort\n  \
           clusterIP: {ipv4}\n  \
           clusterIPs: [{ipv4}, \"{ipv6}\"]\n  \
           ipFamilies: [IPv4, IPv6]\n  \
           ports: [{{protocol: TCP, port: 80, nodePort: 30080}}]\n",
        addresses::NODE
    )
}
