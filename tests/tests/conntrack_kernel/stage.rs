//! A node, three servers, a client, and the manifests of the agent.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::profile::mode::Mode;
use dataplane::Family;
use netlink::conntrack::{Answers, Filter, Flow, FlowSocket, Protocol};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::address_plan as addresses;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{Namespace, Plan, PlannedNode, Server, Topology, start_server};
use tests::other_rules::add_rule_of_others;
use xtables::Variant;

/// The deadline of waits.
pub(crate) const PROMPTLY: Duration = Duration::from_secs(10);
/// The number of the node.
const NODE: u8 = 1;
/// The numbers of the servers' pods.
pub(crate) const SERVERS: [u8; 3] = [5, 6, 7];
/// The number of the client's pod.
const CLIENT: u8 = 9;
/// The port of the servers for both ports of the Service.
const SERVER_PORT: u16 = 5353;
/// The UDP port of the Service.
pub(crate) const UDP_PORT: u16 = 53;
/// Its TCP port.
pub(crate) const TCP_PORT: u16 = 80;

/// Namespaces with servers, and a directory of manifests that initially contains only the node.
#[derive(Debug)]
pub(crate) struct Stage {
    #[expect(
        dead_code,
        reason = "servers stop when they are dropped, before their namespaces go"
    )]
    servers: Vec<Server>,
    topology: Topology,
    folder: TempDir,
    mode: Mode,
    /// The variant of iptables that another program uses, if that matters.
    variant: Option<Variant>,
}

// === impl Stage ===

impl Stage {
    pub(crate) fn build(mode: Mode) -> Result<Stage> {
        let topology = Topology::build(&Plan {
            nodes: vec![PlannedNode {
                number: NODE,
                pods: SERVERS.into_iter().chain([CLIENT]).collect(),
            }],
            clients: [].into(),
            others: Vec::new(),
        })?;
        let mut servers = Vec::new();
        for pod in SERVERS {
            let listens = Family::ALL.map(|family| server(pod, family));
            let inside = topology.pod(NODE, pod)?;
            servers.push(start_server(inside, &pod.to_string(), &listens)?);
        }
        let stage = Stage {
            servers,
            topology,
            folder: tempfile::tempdir()?,
            mode,
            variant: None,
        };
        fs::create_dir(stage.manifests())?;
        // The others see the defaults of an agent without a profile.
        if mode != Mode::default() {
            stage.apply_profile(&json!({}))?;
        }
        stage.apply("node", &node())?;
        Ok(stage)
    }

    /// The same in mode iptables, where another program uses this variant, and so Signpost does.
    pub(crate) fn build_beside(variant: Variant) -> Result<Stage> {
        let stage = Stage {
            variant: Some(variant),
            ..Stage::build(Mode::Iptables)?
        };
        let lock = stage.folder.path().join("their.lock");
        add_rule_of_others(stage.node()?, variant, &lock)?;
        Ok(stage)
    }

    /// Starts the agent and waits until everything is programmed and its first pass is over.
    pub(crate) fn start_agent(&self) -> Result<LoneAgent> {
        self.start_agent_with(Sysctls::Writable)
    }

    pub(crate) fn start_agent_with(&self, sysctls: Sysctls) -> Result<LoneAgent> {
        let agent = LoneAgent::start(&Workplace {
            node: self.node()?.clone(),
            source: Source::Manifests(self.manifests()),
            folder: self.folder.path().to_owned(),
            sysctls,
            deadline: PROMPTLY,
        })?;
        agent.wait_until_ready()?;
        agent.wait_for("its first passes", |agent| {
            let [ipv4, ipv6] = Family::ALL.map(|family| passes(agent, family));
            Ok((ipv4? > 0.0 && ipv6? > 0.0).then_some(()))
        })?;
        if let Some(variant) = self.variant {
            let iptables = agent.status()?.unwrap_or_default().iptables;
            let used = iptables.context("it is in mode iptables")?.variant;
            ensure!(used.to_string() == variant.to_string(), "it uses {used}");
        }
        Ok(agent)
    }

    /// Returns the mode of the agent.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Removes the rules of the agent, or all rules of the tables that it shares with others.
    pub(crate) fn flush_rules(&self) -> Result<()> {
        let node = self.node()?;
        let Some(variant) = self.variant else {
            let table = match self.mode {
                Mode::Ipvs => "signpost-ipvs",
                Mode::Nftables | Mode::Iptables => "signpost",
            };
            return node.nft(&["delete", "table", "ip", table]).map(drop);
        };
        let program = match variant {
            Variant::NfTables => "iptables-nft",
            Variant::Legacy => "iptables-legacy",
        };
        for table in ["nat", "filter", "mangle"] {
            let mut command = node.command(program);
            let status = command.args(["-w", "-t", table, "-F"]).status()?;
            ensure!(status.success(), "{program} -t {table} -F: {status}");
        }
        Ok(())
    }

    /// Returns how many packets of connections that were not redirected the rules have dropped.
    pub(crate) fn observe_dropped(&self) -> Result<u64> {
        let node = self.node()?;
        let (listing, before) = match self.variant {
            None => {
                let chain = ["list", "chain", "ip", "signpost", "refuse-unredirected"];
                (node.nft(&chain)?, "ct status confirmed counter packets ")
            }
            Some(variant) => {
                let program = match variant {
                    Variant::NfTables => "iptables-nft-save",
                    Variant::Legacy => "iptables-legacy-save",
                };
                let output = node
                    .command(program)
                    .args(["-c", "-t", "filter"])
                    .output()?;
                let text = String::from_utf8(output.stdout)?;
                let dropped = text
                    .lines()
                    .find(|line| line.ends_with("-A SIGNPOST-UNREDIRECTED -j DROP"));
                (dropped.context("there is a rule")?.to_owned(), "[")
            }
        };
        let (_, rest) = listing.split_once(before).context("a rule counts")?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Ok(digits.parse()?)
    }

    /// Returns the namespace of the agent.
    pub(crate) fn node(&self) -> Result<&Namespace> {
        self.topology.node(NODE)
    }

    /// Returns the namespace of clients.
    pub(crate) fn client(&self) -> Result<&Namespace> {
        self.topology.pod(NODE, CLIENT)
    }

    /// Returns the namespace of server `pod`.
    pub(crate) fn server(&self, pod: u8) -> Result<&Namespace> {
        self.topology.pod(NODE, pod)
    }

    /// Writes the Service.
    pub(crate) fn apply_service(&self) -> Result<()> {
        let cluster_ips = Family::ALL.map(cluster_ip);
        let ingress = Family::ALL.map(|family| json!({"ip": load_balancer_ip(family)}));
        let ports = [("dns", "UDP", UDP_PORT), ("http", "TCP", TCP_PORT)];
        let ports = ports.map(|(name, protocol, port)| {
            json!({"name": name, "protocol": protocol, "port": port, "targetPort": SERVER_PORT})
        });
        self.apply(
            "service",
            &json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"namespace": "demo", "name": "dns"},
                "spec": {
                    "type": "LoadBalancer", "ipFamilyPolicy": "RequireDualStack",
                    "ipFamilies": ["IPv4", "IPv6"],
                    "clusterIP": cluster_ips[0], "clusterIPs": cluster_ips, "ports": ports,
                },
                "status": {"loadBalancer": {"ingress": ingress}},
            }),
        )
    }

    /// Removes the Service.
    pub(crate) fn remove_service(&self) -> Result<()> {
        let file = self.manifests().join("service.yaml");
        fs::remove_file(file).context("failed to remove the Service")
    }

    /// Makes the pods of `servers` the only endpoints of the Service.
    pub(crate) fn apply_endpoints(&self, servers: &[u8]) -> Result<()> {
        for family in Family::ALL {
            let endpoints = servers.iter().map(|pod| {
                json!({
                    "addresses": [server(*pod, family).ip()], "nodeName": addresses::NODE,
                    "conditions": {"ready": true},
                })
            });
            let ports = [("dns", "UDP"), ("http", "TCP")];
            let ports = ports.map(
                |(name, protocol)| json!({"name": name, "protocol": protocol, "port": SERVER_PORT}),
            );
            let name = format!("dns-{}", family.to_string().to_lowercase());
            self.apply(
                &name,
                &json!({
                    "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                    "metadata": {
                        "namespace": "demo", "name": name,
                        "labels": {"kubernetes.io/service-name": "dns"},
                    },
                    "addressType": family.to_string(), "ports": ports,
                    "endpoints": endpoints.collect::<Vec<Value>>(),
                }),
            )?;
        }
        Ok(())
    }

    /// Writes a Service of another namespace that claims the addresses of the first one at its UDP
    /// port, with the pods of `servers` as endpoints. Its name sorts first.
    pub(crate) fn apply_tenant(&self, servers: &[u8]) -> Result<()> {
        let claimed = Family::ALL.map(|family| [cluster_ip(family), load_balancer_ip(family)]);
        let own = tenant_ip();
        let endpoints = servers.iter().map(|pod| {
            json!({
                "addresses": [server(*pod, Family::Ipv4).ip()], "nodeName": addresses::NODE,
                "conditions": {"ready": true},
            })
        });
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "aaa", "name": "tenant"},
            "spec": {
                "type": "ClusterIP", "ipFamilies": ["IPv4"], "clusterIP": own,
                "clusterIPs": [own], "externalIPs": claimed.concat(),
                "ports": [{
                    "name": "dns", "protocol": "UDP", "port": UDP_PORT, "targetPort": SERVER_PORT,
                }],
            },
        });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "namespace": "aaa", "name": "tenant",
                "labels": {"kubernetes.io/service-name": "tenant"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "dns", "protocol": "UDP", "port": SERVER_PORT}],
            "endpoints": endpoints.collect::<Vec<Value>>(),
        });
        let both = json!({"apiVersion": "v1", "kind": "List", "items": [service, slice]});
        self.apply("tenant", &both)
    }

    /// Writes a profile with this `conntrack` section.
    pub(crate) fn apply_profile(&self, conntrack: &Value) -> Result<()> {
        self.apply(
            "profile",
            &json!({
                "apiVersion": "signpost.dev/v1alpha1", "kind": "ProxyProfile",
                "metadata": {"name": "default"},
                "spec": {"mode": self.mode, "conntrack": conntrack},
            }),
        )
    }

    /// Returns the flows to `destination` in the node's conntrack table.
    pub(crate) fn observe_flows(
        &self,
        protocol: Protocol,
        destination: SocketAddr,
    ) -> Result<Vec<Flow>> {
        let filter = Filter {
            family: Family::of(destination.ip()),
            protocol,
            answers: Answers::Any,
        };
        let mut flows = Vec::new();
        self.node()?.enter(|| -> Result<()> {
            FlowSocket::open()?.observe_flows(&filter, |flow| {
                if flow.original.destination == destination {
                    flows.push(*flow);
                }
                ControlFlow::Continue(())
            })?;
            Ok(())
        })??;
        Ok(flows)
    }

    /// Returns the value of the node's `nf_conntrack_NAME`, which exists as soon as a rule uses
    /// connection state.
    pub(crate) fn observe_sysctl(&self, name: &str) -> Result<String> {
        let file = format!("/proc/sys/net/netfilter/nf_conntrack_{name}");
        let text = self.node()?.enter(|| fs::read_to_string(file))??;
        Ok(text.trim().to_owned())
    }

    /// Replaces the content of the file `name` by `object` atomically.
    fn apply(&self, name: &str, object: &Value) -> Result<()> {
        let new = self.folder.path().join("new");
        fs::write(&new, serde_json::to_string_pretty(object)?)?;
        let file = self.manifests().join(format!("{name}.yaml"));
        fs::rename(&new, file).with_context(|| format!("failed to write {name}"))
    }

    fn manifests(&self) -> PathBuf {
        self.folder.path().join("manifests")
    }
}

/// Returns the number of successful passes over the flows of a family.
pub(crate) fn passes(agent: &LoneAgent, family: Family) -> Result<f64> {
    agent.metric(&format!(
        "kubeproxy_conntrack_reconciler_sync_duration_seconds_count{{ip_family=\"{family}\"}}"
    ))
}

/// Returns the number of flows of a family that the agent has removed.
pub(crate) fn deleted(agent: &LoneAgent, family: Family) -> Result<f64> {
    agent.metric(&format!(
        "kubeproxy_conntrack_reconciler_deleted_entries_total{{ip_family=\"{family}\"}}"
    ))
}

/// The cluster IP of the Service.
pub(crate) fn cluster_ip(family: Family) -> IpAddr {
    addresses::cluster_ip(53, family)
}

/// The load-balancer IP of the Service, outside every ServiceCIDR.
pub(crate) fn load_balancer_ip(family: Family) -> IpAddr {
    addresses::load_balancer_ip(1, family)
}

/// The cluster IP of the Service that claims addresses of another one.
pub(crate) fn tenant_ip() -> IpAddr {
    addresses::cluster_ip(66, Family::Ipv4)
}

/// Returns the address of the server in `pod`.
pub(crate) fn server(pod: u8, family: Family) -> SocketAddr {
    SocketAddr::new(addresses::pod_address(NODE, pod, family), SERVER_PORT)
}

fn node() -> Value {
    let internal = Family::ALL.map(
        |family| json!({"type": "InternalIP", "address": addresses::node_address(NODE, family)}),
    );
    let cidrs = Family::ALL.map(|family| addresses::pod_cidr(NODE, family));
    let services = Family::ALL.map(addresses::service_cidr);
    json!({
        "apiVersion": "v1", "kind": "List",
        "items": [
            {
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": addresses::NODE},
                "spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs},
                "status": {"addresses": internal},
            },
            {
                "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
                "metadata": {"name": "kubernetes"}, "spec": {"cidrs": services},
            },
        ],
    })
}
