//! The environment of both contenders: an API server, and for each contender a node with clients
//! and servers.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use dataplane::Family;
use serde_json::json;
use tempfile::TempDir;
use testkit::address_plan as addresses;

use super::contender::{self, Contender, Entry};
use super::population::{NAMESPACE, Population};
use super::writer::Writer;
use crate::control_link::{API_SERVER, ControlLink};
use crate::control_plane::{ADMINISTRATOR, ControlPlane, Options};
use crate::deadline::wait_for;
use crate::differential::Mode;
use crate::network::{Link, Namespace, Network};
use crate::stamped;

/// How long the API server may take to serve a newly defined kind.
const SERVES_WITHIN: Duration = Duration::from_secs(60);
/// The address of the client pod.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 9);
/// The host that routes to all endpoints, so that the node needs one neighbour entry and not one
/// for each endpoint.
pub(crate) const SERVERS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// The address of the node on its links.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// The range of all endpoint addresses.
const ENDPOINTS: &str = "10.128.0.0/9";

/// An API server and a node for each contender.
#[derive(Debug)]
pub struct Arena {
    // Fields are dropped in this order: users before what they use.
    pub(crate) writer: Arc<Writer>,
    stands: [ContenderNode; 2],
    pub(crate) control_plane: ControlPlane,
    #[expect(dead_code, reason = "held for the sake of its end")]
    network: Network,
    files: TempDir,
    agent: PathBuf,
    pub(super) mode: Mode,
    /// The number of Services in the API server.
    services: u32,
}

/// A node with a client pod, and a host with all servers.
#[derive(Debug, Clone)]
pub(crate) struct ContenderNode {
    pub(crate) node: Namespace,
    pub(crate) client: Namespace,
    pub(crate) servers: Namespace,
}

// === impl Arena ===

impl Arena {
    /// Starts the control plane; no proxy programs the nodes yet. `agent` is the path of the
    /// Signpost agent.
    pub fn start(mode: Mode, agent: PathBuf) -> Result<Arena> {
        let mut network = Network::new()?;
        let [control] = network.add_namespaces(["control"])?;
        control.configure(&format!("addr add {API_SERVER}/32 dev lo\n"))?;
        let names = [
            ["node-kp", "client-kp", "servers-kp"],
            ["node-sp", "client-sp", "servers-sp"],
        ];
        let mut stands = Vec::new();
        for (names, number) in names.into_iter().zip(1..) {
            let stand = ContenderNode::build(&mut network, names)?;
            let link = ControlLink {
                control: &control,
                far_end: names[0],
                own: Ipv4Addr::new(10, 123, 1, number),
            };
            link.connect(&network, &stand.node)?;
            stands.push(stand);
        }
        let control_plane = ControlPlane::start(Options {
            bind: API_SERVER,
            network: Some(control.clone()),
            ..Options::default()
        })?;
        let kubeconfig = control_plane.kubeconfig(ADMINISTRATOR)?;
        let files = tempfile::Builder::new().prefix("signpost-bench-").tempdir();
        let arena = Arena {
            writer: Arc::new(Writer::open(
                &control,
                &kubeconfig,
                control_plane.etcd_socket(),
            )?),
            stands: stands
                .try_into()
                .map_err(|_| anyhow::anyhow!("there are two stands"))?,
            control_plane,
            network,
            files: files.context("failed to make a folder for logs")?,
            agent,
            mode,
            services: 0,
        };
        arena.install()?;
        Ok(arena)
    }

    /// Creates the objects of `population` that the API server does not have yet. The population
    /// must only have grown since the last call.
    pub fn fill(&mut self, population: &Population) -> Result<()> {
        self.writer.create(population, self.services)?;
        self.services = population.services();
        Ok(())
    }

    /// Switches both contenders to another mode.
    pub fn set_mode(&mut self, mode: Mode) -> Result<()> {
        self.mode = mode;
        self.tell_agent()
    }

    /// Returns how to start a contender.
    pub(crate) fn entry(&self, contender: Contender) -> Result<Entry> {
        Ok(Entry {
            contender,
            mode: self.mode,
            name: addresses::NODE,
            node: self.stand(contender).node.clone(),
            program: match contender {
                Contender::KubeProxy => self.control_plane.programs().join("kube-proxy"),
                Contender::Signpost => self.agent.clone(),
            },
            kubeconfig: self.control_plane.kubeconfig(ADMINISTRATOR)?,
            folder: self.files.path().to_owned(),
        })
    }

    pub(crate) fn stand(&self, contender: Contender) -> &ContenderNode {
        let [kube_proxy, signpost] = &self.stands;
        match contender {
            Contender::KubeProxy => kube_proxy,
            Contender::Signpost => signpost,
        }
    }

    /// Writes the agent's NodeProxy. kube-proxy reads a file instead.
    fn tell_agent(&self) -> Result<()> {
        let proxy = stamped::node_proxy("bench", contender::profile(self.mode))?;
        self.control_plane.apply(&proxy.to_string()).map(drop)
    }

    /// Installs Signpost's CustomResourceDefinition, the namespace, the Node as its kubelet would
    /// write it, and the agent's NodeProxy.
    fn install(&self) -> Result<()> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/generated/nodeproxies.yaml");
        let definition = fs::read_to_string(&file)
            .with_context(|| format!("failed to read {}", file.display()))?;
        self.control_plane.apply(&definition)?;
        wait_for("NodeProxies to be served", SERVES_WITHIN, || {
            Ok(self.control_plane.kubectl(&["get", "nodeproxies"]).ok())
        })?;
        let node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": addresses::NODE},
            "spec": {"podCIDRs": [addresses::pod_cidr(1, Family::Ipv4)]},
        });
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        let all = json!({"apiVersion": "v1", "kind": "List", "items": [node, namespace]});
        self.control_plane.apply(&all.to_string())?;
        self.tell_agent()?;
        let own = json!({"type": "InternalIP", "address": node_address()});
        let status = json!({"status": {"addresses": [own]}}).to_string();
        let node = format!("node/{}", addresses::NODE);
        self.control_plane.patch_status(&node, "default", &status)
    }
}

// === impl ContenderNode ===

impl ContenderNode {
    fn build(network: &mut Network, names: [&str; 3]) -> Result<ContenderNode> {
        let [node, client, servers] = network.add_namespaces(names)?;
        let links = [("veth9", &client), ("eth1", &servers)].map(|(near, far)| Link {
            from: (&node, near),
            to: (far, addresses::UPLINK),
        });
        network.add_links(&links)?;
        node.set_sysctls(&[("net/ipv4/ip_forward", "1")])?;
        node.configure(&format!(
            "addr add {own}/32 dev lo\n\
             link set veth9 up\naddr add {GATEWAY}/32 dev veth9\nroute add {CLIENT} dev veth9\n\
             link set eth1 up\naddr add {GATEWAY}/32 dev eth1\nroute add {SERVERS} dev eth1\n\
             route add {ENDPOINTS} via {SERVERS} dev eth1\n",
            own = node_address(),
        ))?;
        for (far, address) in [(&client, CLIENT), (&servers, SERVERS)] {
            let uplink = addresses::UPLINK;
            far.configure(&format!(
                "link set {uplink} up\naddr add {address}/32 dev {uplink}\n\
                 route add default via {GATEWAY} dev {uplink} onlink\n"
            ))?;
        }
        servers.configure(&format!("route add local {ENDPOINTS} dev lo\n"))?;
        Ok(ContenderNode {
            node,
            client,
            servers,
        })
    }
}

pub(crate) fn node_address() -> std::net::IpAddr {
    addresses::node_address(1, Family::Ipv4)
}
