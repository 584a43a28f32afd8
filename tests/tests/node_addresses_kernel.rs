//! Addresses of a node are added and removed: connections to a node port at an address are served
//! from its addition until its removal.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use crds::profile::mode::Mode;
use dataplane::{Family, Protocol};
use libtest_mimic::Arguments;
use testkit::address_plan as addresses;
use tests::deadline::{patience, wait_for};
use tests::ipvs_support::find_ipvs;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{
    Namespace, Outcome, Plan, PlannedNode, Probe, Topology, enter_private_namespaces, probe,
    start_server,
};
use tests::other_rules::add_rule_of_others;
use tests::trial::trial;
use xtables::Variant;

/// How long the agent may take to start.
const PROMPTLY: Duration = Duration::from_secs(30);
/// How soon a change of addresses must show in the rules. An agent that polled addresses every two
/// seconds could not manage this [`TIMES`] in a row.
const AT_ONCE: Duration = Duration::from_millis(1500);
const TIMES: u8 = 3;
/// The timeout of a connection: far more than an answer takes on a machine that does nothing else.
const ANSWERED: Duration = Duration::from_millis(400);
/// The serving pod, its port, and the client pod.
const SERVING: u8 = 5;
const SERVED: u16 = 8080;
const ASKING: u8 = 9;
const NODE_PORT: u16 = 30080;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let lacks_ipvs = find_ipvs(&["rr"])?;
    if let Some(why) = &lacks_ipvs {
        println!("SKIPPED: mode ipvs: {why}");
    }
    let modes = [
        (Mode::Nftables, None),
        (Mode::Iptables, Some(Variant::NfTables)),
        (Mode::Iptables, Some(Variant::Legacy)),
        (Mode::Ipvs, None),
    ];
    let trials = modes.map(|(mode, variant)| {
        let of_variant = variant.map_or_else(String::new, |variant| format!("_{variant}"));
        let name = "a_node_port_is_there_as_soon_as_an_address_is";
        let name = format!("{name}::{mode}{of_variant}");
        let is_skipped = mode == Mode::Ipvs && lacks_ipvs.is_some();
        trial(&name, move || new_addresses(mode, variant)).with_ignored_flag(is_skipped)
    });
    let mut arguments = Arguments::from_args();
    // The tests measure time.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials.into()).exit();
}

fn new_addresses(mode: Mode, variant: Option<Variant>) -> Result<()> {
    let topology = Topology::build(&Plan {
        nodes: vec![PlannedNode {
            number: 1,
            pods: [SERVING, ASKING].into(),
        }],
        ..Plan::default()
    })?;
    let (node, client) = (topology.node(1)?, topology.pod(1, ASKING)?);
    let listens = Family::ALL.map(endpoint);
    let _server = start_server(topology.pod(1, SERVING)?, "web", &listens)?;
    let folder = tempfile::tempdir()?;
    if let Some(variant) = variant {
        add_rule_of_others(node, variant, &folder.path().join("their.lock"))?;
    }
    let directory = folder.path().join("manifests");
    fs::create_dir(&directory)?;
    fs::write(directory.join("all.yaml"), manifests(mode))?;
    let agent = LoneAgent::start(&Workplace {
        node: node.clone(),
        source: Source::Manifests(directory),
        folder: folder.path().to_owned(),
        sysctls: Sysctls::Writable,
        deadline: PROMPTLY,
    })?;
    agent.wait_until_ready()?;
    // It may be ready before it reports for the first time.
    let in_mode = wait_for("a report of the mode", PROMPTLY, || {
        Ok(agent.status()?.filter(|status| status.mode.is_some()))
    })?;
    ensure!(in_mode.mode == Some(mode), "{:?}", in_mode.mode);
    if let Some(variant) = variant {
        let used = in_mode
            .iptables
            .map(|iptables| iptables.variant.to_string());
        ensure!(used == Some(variant.to_string()), "it uses {used:?}");
    }
    for number in 1..=TIMES {
        let ipv4 = IpAddr::from([172, 21, 0, number]);
        let ipv6 = IpAddr::from([0xfd00, 0x172, 0x21, 0, 0, 0, 0, u16::from(number)]);
        let link_local = IpAddr::from([169, 254, 20, number]);
        for address in [ipv4, ipv6, link_local] {
            follow(
                node,
                address,
                // One late answer does not show that the address has gone.
                |there| Ok(answers(client, address)? == there && answers(client, address)? == there),
            )?;
        }
        // No pod can ask for an address that is unique on its own link alone.
        if mode == Mode::Nftables {
            for address in [
                ipv4,
                ipv6,
                link_local,
                IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0x20, u16::from(number)]),
            ] {
                follow(node, address, |there| Ok(is_listed(node, address) == there))?;
            }
        }
    }
    let log = agent.log();
    ensure!(!log.contains("address changes"), "it does not hear:\n{log}");
    Ok(())
}

/// Adds an address to the node, and removes it again. Each time, `shows` must soon say that it is there
/// or not.
fn follow(node: &Namespace, address: IpAddr, shows: impl Fn(bool) -> Result<bool>) -> Result<()> {
    for (change, there) in [("add", true), ("del", false)] {
        change_address(node, change, address)?;
        let began = Instant::now();
        wait_for(&format!("{change} {address}"), AT_ONCE, || {
            Ok(shows(there)?.then_some(()))
        })?;
        println!("    {change} {address}: {:.0?}", began.elapsed());
    }
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

/// Whether the Service answers at its node port of an address.
fn answers(client: &Namespace, address: IpAddr) -> Result<bool> {
    let question = Probe {
        protocol: Protocol::Tcp,
        source: None,
        destination: SocketAddr::new(address, NODE_PORT),
        deadline: patience(ANSWERED),
    };
    let outcomes = probe(client, &question, 1)?;
    Ok(matches!(outcomes[..], [Outcome::Answered { .. }]))
}

/// Whether the table of mode nftables has an address among those that accept node ports.
fn is_listed(node: &Namespace, address: IpAddr) -> bool {
    let family = match Family::of(address) {
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

fn endpoint(family: Family) -> SocketAddr {
    SocketAddr::new(addresses::pod_address(1, SERVING, family), SERVED)
}

/// Returns a Node, a Service with a node port and an endpoint, and a profile that accepts it at some
/// of the node's addresses.
fn manifests(mode: Mode) -> String {
    let slices = Family::ALL.map(|family| {
        format!(
            "---\n\
             apiVersion: discovery.k8s.io/v1\n\
             kind: EndpointSlice\n\
             metadata: {{namespace: shop, name: web-{number}, labels: {{kubernetes.io/service-name: web}}}}\n\
             addressType: {family}\n\
             ports: [{{name: \"\", protocol: TCP, port: {SERVED}}}]\n\
             endpoints: [{{addresses: [\"{address}\"], nodeName: {node}, conditions: {{ready: true}}}}]\n",
            number = family.to_string().to_lowercase(),
            address = endpoint(family).ip(),
            node = addresses::NODE,
        )
    });
    let [ipv4, ipv6] = Family::ALL.map(|family| addresses::cluster_ip(10, family));
    let [node_ipv4, node_ipv6] = Family::ALL.map(|family| addresses::node_address(1, family));
    format!(
        "apiVersion: signpost.dev/v1alpha1\n\
         kind: ProxyProfile\n\
         metadata: {{name: default}}\n\
         spec: {{mode: {mode}, nodePorts: {{addresses: [172.21.0.0/16, 169.254.0.0/16, \"fd00:172:21::/64\", \"fe80::/10\"]}}}}\n\
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
           ports: [{{protocol: TCP, port: 80, nodePort: {NODE_PORT}}}]\n{}",
        addresses::NODE,
        slices.concat(),
    )
}
