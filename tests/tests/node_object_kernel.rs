//! The object of a Node is deleted, recreated without addresses and completed some time later, as
//! by a cloud provider, and an agent restarts meanwhile: connections to node ports continue all the
//! time, in every mode.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::node_proxy::IptablesVariant;
use crds::profile::mode::Mode;
use dataplane::{Family, Protocol};
use libtest_mimic::Arguments;
use serde_json::{Value, json};
use testkit::address_plan as addresses;
use tests::ipvs_support::find_ipvs;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{
    Namespace, Outcome, Plan, PlannedNode, Probe, Topology, Traffic, enter_private_namespaces,
    keep_connection, probe, start_server, start_traffic,
};
use tests::trial::trial;

const PROMPTLY: Duration = Duration::from_secs(30);
const NODE: u8 = 1;
const POD: u8 = 5;
const CLIENT: u8 = 2;
const NODE_PORT: u16 = 30080;
const SERVER_PORT: u16 = 8080;
/// The interval between two connections of a client. It leaves processor time for the agent, also in
/// user-mode Linux.
const INTERVAL: Duration = Duration::from_millis(50);

/// The modes by name, with the variant of mode iptables.
const MODES: [(&str, Mode, Option<IptablesVariant>); 4] = [
    ("nftables", Mode::Nftables, None),
    ("iptables", Mode::Iptables, Some(IptablesVariant::NfTables)),
    (
        "iptables_legacy",
        Mode::Iptables,
        Some(IptablesVariant::Legacy),
    ),
    ("ipvs", Mode::Ipvs, None),
];

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let lacks_ipvs = find_ipvs(&["rr"])?;
    if let Some(why) = &lacks_ipvs {
        println!("SKIPPED: mode ipvs: {why}");
    }
    let trials = MODES.map(|(name, mode, variant)| {
        let name =
            format!("t88_t118_connections_survive_a_node_object_that_comes_back_bare_{name}");
        let is_skipped = mode == Mode::Ipvs && lacks_ipvs.is_some();
        trial(&name, move || comes_back_bare(mode, variant)).with_ignored_flag(is_skipped)
    });
    let mut arguments = Arguments::from_args();
    // The clients measure failures.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials.into()).exit();
}

fn comes_back_bare(mode: Mode, variant: Option<IptablesVariant>) -> Result<()> {
    let topology = Topology::build(&Plan {
        nodes: vec![PlannedNode {
            number: NODE,
            pods: [POD].into(),
        }],
        clients: [CLIENT].into(),
        others: Vec::new(),
    })?;
    let listens = Family::ALL
        .map(|family| SocketAddr::new(addresses::pod_address(NODE, POD, family), SERVER_PORT));
    let _server = start_server(topology.pod(NODE, POD)?, "web", &listens)?;
    let folder = tempfile::tempdir()?;
    let directory = folder.path().join("manifests");
    fs::create_dir(&directory)?;
    let write = |name: &str, object: &Value| write_object(folder.path(), &directory, name, object);
    write("profile", &profile(mode))?;
    write("service", &service())?;
    for family in Family::ALL {
        write(&format!("slice-{family}"), &slice("web", family))?;
    }
    write("node", &whole())?;
    let workplace = Workplace {
        node: topology.node(NODE)?.clone(),
        source: Source::Manifests(directory.clone()),
        folder: folder.path().to_owned(),
        sysctls: Sysctls::Writable,
        deadline: PROMPTLY,
    };
    if variant == Some(IptablesVariant::Legacy) {
        use_legacy_tables(&workplace)?;
    }
    let mut agent = LoneAgent::start(&workplace)?;
    agent.wait_until_ready()?;
    agent.wait_for("the mode to be reported", |agent| {
        let status = agent.status()?.unwrap_or_default();
        let used = status.iptables.map(|iptables| iptables.variant);
        Ok(((status.mode, used) == (Some(mode), variant)).then_some(()))
    })?;
    let clients = clients(topology.outside()?)?;
    let bare = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": addresses::NODE}});
    let named = with_addresses(&[("Hostname", addresses::NODE)]);
    let damaged = with_addresses(&[("InternalIP", "192.168.0"), ("InternalIP", "::")]);
    let removed = || fs::remove_file(directory.join("node.yaml"));
    for (number, object) in (20..).zip([&bare, &named, &damaged, &bare]) {
        removed()?;
        write("node", object)?;
        agent.wait_for("the status to name the Node", |agent| {
            let status = agent.status()?;
            let rejections = status.map(|status| status.rejections).unwrap_or_default();
            let fields: Vec<&str> = rejections.first.iter().map(|r| r.field.as_str()).collect();
            let both = ["spec.podCIDRs", "status.addresses"];
            Ok(both
                .iter()
                .all(|field| fields.contains(field))
                .then_some(()))
        })?;
        wait_for_round(&agent, topology.outside()?, number, write)?;
    }
    for family in Family::ALL {
        let deleted = agent.metric(&format!(
            "kubeproxy_conntrack_reconciler_deleted_entries_total{{ip_family=\"{family}\"}}"
        ))?;
        ensure!(deleted == 0.0, "{deleted} flows of {family} were deleted");
    }
    // T118: a new agent has never seen the addresses.
    agent.kill()?;
    agent = LoneAgent::start(&workplace)?;
    agent.wait_until_ready()?;
    wait_for_round(&agent, topology.outside()?, 30, write)?;
    write("node", &whole())?;
    agent.wait_for("the status to name nothing", |agent| {
        let status = agent.status()?;
        Ok(status
            .is_some_and(|status| status.rejections.is_empty())
            .then_some(()))
    })?;
    for (way, client) in clients {
        let tally = client.stop()?;
        ensure!(tally.failures() == 0, "{way}: {tally}");
        ensure!(tally.answers() > 10, "{way}: {tally}");
    }
    Ok(())
}

/// Adds a rule of another program to legacy tables, so that the agent uses them.
fn use_legacy_tables(workplace: &Workplace) -> Result<()> {
    let mut command = workplace.node.command("iptables-legacy");
    command.args([
        "-t",
        "filter",
        "-A",
        "INPUT",
        "-s",
        "203.0.113.9",
        "-j",
        "ACCEPT",
    ]);
    let output = command
        .env("XTABLES_LOCKFILE", workplace.xtables_lock())
        .output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}

/// Waits until a Service written after the object is served, which proves that the object's state
/// has reached the kernel.
fn wait_for_round(
    agent: &LoneAgent,
    outside: &Namespace,
    number: u8,
    write: impl Fn(&str, &Value) -> Result<()>,
) -> Result<()> {
    let cluster_ip = addresses::cluster_ip(number, Family::Ipv4);
    let name = format!("later-{number}");
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": name},
        "spec": {
            "clusterIP": cluster_ip,
            "ports": [{"name": "tcp", "protocol": "TCP", "port": 80}],
        },
    });
    write(&name, &service)?;
    write(&format!("{name}-slice"), &slice(&name, Family::Ipv4))?;
    let asked = Probe {
        protocol: Protocol::Tcp,
        source: None,
        destination: SocketAddr::new(cluster_ip, 80),
        deadline: Duration::from_millis(500),
    };
    agent.wait_for("a later Service to be served", |_| {
        let outcomes = probe(outside, &asked, 1)?;
        let answered = |outcome: &Outcome| matches!(outcome, Outcome::Answered { .. });
        Ok(outcomes.iter().all(answered).then_some(()))
    })
}

/// Starts clients outside for a node port in each family: consecutive new connections, and one UDP
/// flow.
fn clients(outside: &Namespace) -> Result<Vec<(String, Traffic)>> {
    let mut clients = Vec::new();
    for family in Family::ALL {
        let probe = |protocol| Probe {
            protocol,
            source: None,
            destination: SocketAddr::new(addresses::node_address(NODE, family), NODE_PORT),
            deadline: Duration::from_secs(2),
        };
        let tcp = start_traffic(outside, &probe(Protocol::Tcp), INTERVAL)?;
        clients.push((format!("new connections over {family}"), tcp));
        let udp = keep_connection(outside, &probe(Protocol::Udp), INTERVAL)?;
        clients.push((format!("a UDP flow over {family}"), udp));
    }
    Ok(clients)
}

/// Replaces the content of the file `name` by `object` atomically.
fn write_object(folder: &Path, directory: &Path, name: &str, object: &Value) -> Result<()> {
    let new = folder.join("new");
    fs::write(&new, serde_json::to_string_pretty(object)?)?;
    let file = directory.join(format!("{name}.yaml"));
    fs::rename(&new, file).with_context(|| format!("failed to write {name}"))
}

fn profile(mode: Mode) -> Value {
    json!({
        "apiVersion": "signpost.dev/v1alpha1", "kind": "ProxyProfile",
        "metadata": {"name": "default"},
        "spec": {"mode": mode, "nodePorts": {"addresses": ["primary"]}},
    })
}

fn whole() -> Value {
    let addresses = Family::ALL.map(|family| addresses::node_address(NODE, family).to_string());
    let [ipv4, ipv6] = addresses.each_ref().map(String::as_str);
    let mut node = with_addresses(&[("InternalIP", ipv4), ("InternalIP", ipv6)]);
    let pods = Family::ALL.map(|family| addresses::pod_cidr(NODE, family));
    node["spec"] = json!({"podCIDRs": pods});
    node
}

fn with_addresses(list: &[(&str, &str)]) -> Value {
    let list = list.iter();
    let list: Vec<Value> = list
        .map(|(kind, address)| json!({"type": kind, "address": address}))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": addresses::NODE},
        "status": {"addresses": list},
    })
}

fn service() -> Value {
    let cluster_ips = Family::ALL.map(|family| addresses::cluster_ip(10, family));
    let ports = ["TCP", "UDP"].map(|protocol| {
        json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": 80, "nodePort": NODE_PORT})
    });
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "type": "NodePort", "ipFamilies": ["IPv4", "IPv6"],
            "clusterIP": cluster_ips[0], "clusterIPs": cluster_ips, "ports": ports,
        },
    })
}

fn slice(service: &str, family: Family) -> Value {
    let ports = ["TCP", "UDP"].map(|protocol| {
        json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": SERVER_PORT})
    });
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "namespace": "shop",
            "name": format!("{service}-{}", family.to_string().to_lowercase()),
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": family.to_string(), "ports": ports,
        "endpoints": [{
            "addresses": [addresses::pod_address(NODE, POD, family)],
            "nodeName": addresses::NODE, "conditions": {"ready": true},
        }],
    })
}
