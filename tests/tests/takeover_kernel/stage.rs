//! A node of a cluster with a real API server, on which kube-proxy and Signpost's agent start and
//! stop.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::condition::{FOREIGN_PROXY_DETECTED, READY};
use crds::effective::hash::ConfigHash;
use crds::profile::handover::Handover;
use crds::{EffectiveConfig, NodeProxySpec, ProxyProfileSpec};
use dataplane::Family;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::address_plan as addresses;
use tests::binaries;
use tests::cluster::Program;
use tests::control_link::{API_SERVER, ControlLink};
use tests::control_plane::{ADMINISTRATOR, ControlPlane, KUBE_PROXY, Objects, Options, User};
use tests::deadline::wait_for;
use tests::differential::programs::Programs;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{Namespace, Network, Plan, PlannedNode, Server, Topology, start_server};
use xtables::Variant;

use crate::virtual_servers;

/// The serving pods and the client pod.
pub(crate) const SERVING: [u8; 2] = [5, 6];
pub(crate) const CLIENT: u8 = 9;
/// The node port of the Service, and the port of its endpoints.
pub(crate) const NODE_PORT: u16 = 30080;
const SERVER_PORT: u16 = 8080;
/// The node's address on the link to the API server.
pub(crate) const NODE_ON_THE_WAY: Ipv4Addr = Ipv4Addr::new(10, 123, 1, 1);
/// The address of a pod of the node that its podCIDRs do not contain. No server answers there.
pub(crate) const POD_OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 7);
/// The address of another program's virtual server.
pub(crate) const OTHERS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
/// The deadline of waits for either proxy. In a user-mode kernel, beside other programs on two processors,
/// kube-proxy in mode ipvs took more than 80 s for its first rules.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// kube-proxy's mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Nftables,
    Iptables,
    LegacyIptables,
    Ipvs,
}

/// The cluster. The tests start both proxies.
#[derive(Debug)]
pub(crate) struct Stage {
    // Fields are dropped in this order: users before what they use.
    pub(crate) agent: Option<LoneAgent>,
    kube_proxy: Option<Program>,
    #[expect(dead_code, reason = "held for the sake of their end")]
    servers: Vec<Server>,
    control_plane: ControlPlane,
    topology: Topology,
    #[expect(dead_code, reason = "held for the sake of its end")]
    network: Network,
    files: TempDir,
}

/// The output of a command, and whether it succeeded.
#[derive(Debug)]
pub(crate) struct Printed {
    pub(crate) succeeded: bool,
    pub(crate) text: String,
}

// === impl Stage ===

impl Stage {
    /// Builds everything. No proxy runs yet.
    pub(crate) fn start() -> Result<Stage> {
        let topology = Topology::build(&Plan {
            nodes: vec![PlannedNode {
                number: 1,
                pods: SERVING.into_iter().chain([CLIENT]).collect(),
            }],
            clients: [2].into(),
            others: Vec::new(),
        })?;
        let mut servers = Vec::new();
        for pod in SERVING {
            let listening = Family::ALL
                .map(|family| SocketAddr::new(addresses::pod_address(1, pod, family), SERVER_PORT));
            let name = format!("web-{pod}");
            servers.push(start_server(topology.pod(1, pod)?, &name, &listening)?);
        }
        let mut network = Network::new()?;
        let [control] = network.add_namespaces(["control"])?;
        control.configure(&format!("addr add {API_SERVER}/32 dev lo\n"))?;
        let link = ControlLink {
            control: &control,
            far_end: "node",
            own: NODE_ON_THE_WAY,
        };
        link.connect(&network, topology.node(1)?)?;
        let control_plane = ControlPlane::start(Options {
            bind: API_SERVER,
            network: Some(control.clone()),
            users: vec![User::named(KUBE_PROXY)],
            ..Options::default()
        })?;
        let stage = Stage {
            agent: None,
            kube_proxy: None,
            servers,
            control_plane,
            topology,
            network,
            files: TempDir::new()?,
        };
        stage.install()?;
        Ok(stage)
    }

    /// Returns the network.
    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the node.
    pub(crate) fn node(&self) -> Result<&Namespace> {
        self.topology.node(1)
    }

    /// Stops both proxies and removes their rules and everything that tests have added.
    pub(crate) fn clear(&mut self) -> Result<()> {
        self.agent = None;
        self.kube_proxy = None;
        self.node()?.nft(&["flush ruleset"])?;
        virtual_servers::clear(self.node()?)?;
        let folder = self.folder();
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir(&folder)?;
        self.configure(Handover::Manual)?;
        self.apply_services(&["web"])
    }

    /// Starts kube-proxy, and waits until the kernel holds its rules for `shop/web`.
    pub(crate) fn start_kube_proxy(&mut self, mode: Mode) -> Result<()> {
        let file = self.files.path().join("kube-proxy.yaml");
        let kubeconfig = self.control_plane.kubeconfig(KUBE_PROXY)?;
        fs::write(&file, configuration(mode, &kubeconfig).to_string())?;
        let program = self.control_plane.programs().join("kube-proxy");
        let mut command = self.node()?.command(program);
        command.arg("--config").arg(&file);
        if mode == Mode::LegacyIptables {
            self.programs(Variant::Legacy)?.show_to(&mut command)?;
        }
        let log = self.files.path().join("kube-proxy.log");
        self.kube_proxy = Some(Program::start("kube-proxy", command, &log)?);
        let waited = self.wait_for("the rules of kube-proxy", |stage| {
            let mut all = true;
            for family in Family::ALL {
                let rules = stage.list_kube_proxy(mode, family)?;
                let address = addresses::cluster_ip(10, family).to_string();
                all &= rules.contains(&address);
                // Virtual servers may be left from before, and this rule is among the last that a
                // sync in mode ipvs writes.
                let chains = stage.list_kube_proxy(Mode::Iptables, family)?;
                all &= mode != Mode::Ipvs || chains.contains("jump KUBE-MARK-MASQ");
            }
            Ok(all.then_some(()))
        });
        waited.with_context(|| {
            let log = fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(15)..].join("\n")
        })
    }

    /// Returns the iptables programs of `variant`.
    pub(crate) fn programs(&self, variant: Variant) -> Result<Programs> {
        Programs::link(self.files.path(), variant)
    }

    /// Kills kube-proxy. Its rules stay, as after the deletion of its Pod.
    pub(crate) fn stop_kube_proxy(&mut self) {
        self.kube_proxy = None;
    }

    /// Lists kube-proxy's rules in the kernel; empty if there are none. In mode ipvs these are the
    /// virtual servers of both families, and nothing else.
    pub(crate) fn list_kube_proxy(&self, mode: Mode, family: Family) -> Result<String> {
        let family = nft_word(family);
        Ok(match mode {
            Mode::Nftables => {
                let table = ["list", "table", family, "kube-proxy"];
                self.node()?.nft(&table).unwrap_or_default()
            }
            Mode::Iptables => {
                let tables = ["nat", "filter", "mangle"];
                let listed = tables.map(|table| {
                    let table = ["list", "table", family, table];
                    self.node()
                        .and_then(|node| node.nft(&table))
                        .unwrap_or_default()
                });
                listed.concat()
            }
            Mode::LegacyIptables => {
                let program = match family {
                    "ip" => "iptables-legacy-save",
                    _ => "ip6tables-legacy-save",
                };
                let output = self.node()?.command(program).output()?;
                String::from_utf8_lossy(&output.stdout).into_owned()
            }
            Mode::Ipvs => virtual_servers::list(self.node()?)?,
        })
    }

    /// Whether the kernel has Signpost's tables, in both families or in none.
    pub(crate) fn has_signpost_tables(&self) -> Result<bool> {
        let tables = self.node()?.nft(&["list", "tables"])?;
        let own = ["table ip signpost", "table ip6 signpost"];
        let there = own.map(|table| tables.lines().any(|line| line == table));
        ensure!(
            there[0] == there[1],
            "one family has a table, the other has none:\n{tables}"
        );
        Ok(there[0])
    }

    /// Starts the agent, and waits until it reports that it is ready.
    pub(crate) fn start_agent(&mut self) -> Result<()> {
        self.launch_agent()?;
        self.wait_for_condition(READY, |ready| ready.status == "True")
            .map(drop)
    }

    /// Starts the agent.
    pub(crate) fn launch_agent(&mut self) -> Result<()> {
        // Remove the report of an earlier agent.
        let status = self.folder().join("status.yaml");
        if status.exists() {
            fs::remove_file(status)?;
        }
        self.agent = Some(LoneAgent::start(&Workplace {
            node: self.node()?.clone(),
            source: Source::Kubeconfig(self.control_plane.kubeconfig(ADMINISTRATOR)?),
            folder: self.folder(),
            sysctls: Sysctls::Writable,
            deadline: DEADLINE,
        })?);
        Ok(())
    }

    /// Returns the running agent.
    pub(crate) fn agent(&self) -> Result<&LoneAgent> {
        self.agent.as_ref().context("an agent was started")
    }

    /// Kills the agent with SIGKILL.
    pub(crate) fn kill_agent(&mut self) -> Result<()> {
        self.agent.take().context("an agent was started")?.kill()
    }

    /// Returns the folder of the agents' persistent state.
    pub(crate) fn state(&self) -> PathBuf {
        self.folder().join("state")
    }

    /// Runs `signpost-agent` on the node.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<Printed> {
        let output = self.command(arguments)?.output()?;
        let mut text = String::from_utf8(output.stdout)?;
        text += &String::from_utf8_lossy(&output.stderr);
        println!("    signpost-agent {}:", arguments.join(" "));
        for line in text.lines() {
            println!("        {line}");
        }
        Ok(Printed {
            succeeded: output.status.success(),
            text,
        })
    }

    /// Returns the command that [`Stage::run`] runs.
    pub(crate) fn command(&self, arguments: &[&str]) -> Result<std::process::Command> {
        let mut command = self.node()?.command(binaries::find("signpost-agent")?);
        command.args(arguments).arg("--state").arg(self.state());
        Ok(command)
    }

    /// Waits until `is_it` accepts a condition that the agent reports; returns it.
    pub(crate) fn wait_for_condition(
        &self,
        kind: &str,
        is_it: impl Fn(&Condition) -> bool,
    ) -> Result<Condition> {
        let mut last = None;
        let waited = self
            .agent()?
            .wait_for(&format!("condition {kind}"), |agent| {
                last = agent.condition(kind)?;
                Ok(last.clone().filter(|condition| is_it(condition)))
            });
        waited.with_context(|| format!("it was last {last:?}"))
    }

    /// Waits for the agent's report about other proxies.
    pub(crate) fn wait_for_foreign(&self, status: &str, reason: &str) -> Result<Condition> {
        self.wait_for_condition(FOREIGN_PROXY_DETECTED, |condition| {
            condition.status == status && condition.reason == reason
        })
    }

    /// Polls `look` until it returns a value.
    pub(crate) fn wait_for<T>(
        &self,
        what: &str,
        mut look: impl FnMut(&Stage) -> Result<Option<T>>,
    ) -> Result<T> {
        wait_for(what, DEADLINE, || look(self))
    }

    /// Makes these Services, with the same endpoints, the only ones in the API server; clients use
    /// the first one.
    pub(crate) fn apply_services(&self, names: &[&str]) -> Result<()> {
        let objects: Vec<Value> = names
            .iter()
            .zip(10..)
            .flat_map(|(name, number)| service(name, number))
            .collect();
        for (api_version, kind) in [("v1", "Service"), ("discovery.k8s.io/v1", "EndpointSlice")] {
            let namespace = Some("shop");
            let objects = Objects {
                api_version,
                kind,
                namespace,
            };
            let selector = "service,service!=web";
            self.control_plane.delete_selected(objects, selector)?;
        }
        self.apply(&objects)
    }

    /// Adds a Service whose endpoint is [`POD_OUTSIDE`], until the next [`Stage::apply_services`].
    pub(crate) fn apply_pod_outside(&self) -> Result<()> {
        let metadata = |name: &str, labels: Value| {
            let mut metadata = json!({"namespace": "shop", "name": name, "labels": labels});
            metadata["labels"]["service"] = "outside".into();
            metadata
        };
        let port = json!({"name": "http", "protocol": "TCP", "port": SERVER_PORT});
        let of_service = json!({"kubernetes.io/service-name": "outside"});
        self.apply(&[
            json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": metadata("outside", json!({})),
                "spec": {"ports": [port], "ipFamilies": ["IPv4"]},
            }),
            json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": metadata("outside", of_service),
                "addressType": "IPv4",
                "ports": [port],
                "endpoints": [{"addresses": [POD_OUTSIDE], "nodeName": addresses::NODE}],
            }),
        ])
    }

    /// Adds Service `shop/front`, whose external IP is the node's address, until the next
    /// [`Stage::apply_services`].
    pub(crate) fn apply_external_ip(&self) -> Result<()> {
        let mut objects = service("front", 11);
        let own = addresses::node_address(1, Family::Ipv4);
        objects[0]["spec"]["externalIPs"] = json!([own]);
        self.apply(&objects)
    }

    fn install(&self) -> Result<()> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds/generated/nodeproxies.yaml");
        self.apply(&[serde_saphyr::from_str(&fs::read_to_string(file)?)?])?;
        let node_proxies = Objects {
            api_version: "signpost.dev/v1alpha1",
            kind: "NodeProxy",
            namespace: None,
        };
        wait_for("NodeProxies to be served", DEADLINE, || {
            Ok(self.control_plane.serves(node_proxies)?.then_some(()))
        })?;
        self.apply(&[
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}),
            json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": addresses::NODE},
                "spec": {"podCIDRs": Family::ALL.map(|family| addresses::pod_cidr(1, family))},
            }),
        ])?;
        self.configure(Handover::Manual)?;
        let own = Family::ALL.map(
            |family| json!({"type": "InternalIP", "address": addresses::node_address(1, family)}),
        );
        self.control_plane.merge_status(&[json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": addresses::NODE},
            "status": {"addresses": own},
        })])
    }

    /// Assigns to the node the configuration of a profile with this `handover`; returns its hash.
    pub(crate) fn configure(&self, handover: Handover) -> Result<ConfigHash> {
        self.configure_by(&ProxyProfileSpec {
            handover,
            ..ProxyProfileSpec::default()
        })
    }

    /// Assigns to the node the configuration of a profile; returns its hash.
    pub(crate) fn configure_by(&self, profile: &ProxyProfileSpec) -> Result<ConfigHash> {
        let config = EffectiveConfig::of(profile);
        let config_hash = ConfigHash::of(&config);
        let spec = NodeProxySpec {
            profile_name: "default".to_owned(),
            profile_generation: 1,
            config_hash: config_hash.clone(),
            config,
            written_fields: Vec::new(),
        };
        self.apply(&[json!({
            "apiVersion": "signpost.dev/v1alpha1",
            "kind": "NodeProxy",
            "metadata": {"name": addresses::NODE},
            "spec": spec,
        })])?;
        Ok(config_hash)
    }

    /// Waits until the agent has applied the configuration of this hash.
    pub(crate) fn wait_for_applied(&self, hash: &ConfigHash) -> Result<()> {
        let waited = self
            .agent()?
            .wait_for("the configuration to be applied", |agent| {
                let status = agent.status()?;
                let applied = status.and_then(|status| status.applied_hash);
                Ok((applied.as_ref() == Some(hash)).then_some(()))
            });
        waited.with_context(|| self.agent().map(LoneAgent::log).unwrap_or_default())
    }

    fn apply(&self, objects: &[Value]) -> Result<()> {
        self.control_plane.apply_as_manager(objects)
    }

    fn folder(&self) -> PathBuf {
        self.files.path().join("agent")
    }
}

/// Returns a Service of both families with a node port, and its EndpointSlices.
fn service(name: &str, number: u8) -> Vec<Value> {
    let ips = Family::ALL.map(|family| addresses::cluster_ip(number, family));
    let node_port = NODE_PORT + u16::from(number) - 10;
    let ports = [("http", "TCP"), ("quic", "UDP")];
    let mut objects = vec![json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "shop", "name": name, "labels": {"service": name}},
        "spec": {
            "type": "NodePort",
            "clusterIP": ips[0],
            "clusterIPs": ips,
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack",
            "ports": ports.map(|(name, protocol)| json!({
                "name": name, "protocol": protocol, "port": 80, "targetPort": SERVER_PORT, "nodePort": node_port,
            })),
        },
    })];
    for family in Family::ALL {
        let endpoints = SERVING.map(|pod| {
            let address = addresses::pod_address(1, pod, family);
            json!({"addresses": [address], "nodeName": addresses::NODE, "conditions": {"ready": true}})
        });
        objects.push(json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": "shop",
                "name": format!("{name}-{}", family.to_string().to_lowercase()),
                "labels": {"kubernetes.io/service-name": name, "service": name},
            },
            "addressType": family.to_string(),
            "ports": ports.map(|(name, protocol)| json!({
                "name": name, "protocol": protocol, "port": SERVER_PORT,
            })),
            "endpoints": endpoints,
        }));
    }
    objects
}

/// Returns kube-proxy's configuration file. It leaves the conntrack sysctls alone.
fn configuration(mode: Mode, kubeconfig: &Path) -> Value {
    let own = addresses::node_address(1, Family::Ipv4);
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": match mode {
            Mode::Nftables => "nftables",
            Mode::Iptables | Mode::LegacyIptables => "iptables",
            Mode::Ipvs => "ipvs",
        },
        "hostnameOverride": addresses::NODE,
        "clientConnection": {"kubeconfig": kubeconfig},
        "detectLocalMode": "NodeCIDR",
        "nftables": {"minSyncPeriod": "1s"},
        "iptables": {"minSyncPeriod": "1s"},
        // kube-proxy removes virtual servers of other programs at all other addresses.
        "ipvs": {
            "minSyncPeriod": "1s",
            "excludeCIDRs": [format!("{OTHERS}/32"), format!("{own}/32")],
        },
        "oomScoreAdj": 0,
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    })
}

pub(crate) fn nft_word(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ip",
        Family::Ipv6 => "ip6",
    }
}
