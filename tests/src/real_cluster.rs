//! A real cluster on one machine: a control plane, DNS, and nodes with containerd and a kubelet,
//! which run real Pods. It has no service proxy until a test installs one.
//!
//! ```text
//!   control: etcd, API server, controllers, scheduler, DNS
//!      |
//!    bridge ---- outside
//!      |  `---- node-1: containerd, kubelet ---- pods
//!      `------- node-2: containerd, kubelet ---- pods
//! ```
//!
//! Each of these is a network namespace, and every node has separate mounts, a host name and
//! control groups. Everything is in an [`enclosure`], which removes everything however it ends.

mod control_groups;
mod dns;
pub mod enclosure;
mod gateway;
pub mod helm;
pub mod images;
pub mod kube_proxy;
pub mod lan;
mod node;
mod node_files;
mod pods;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::json;

pub use gateway::Gateway;
pub use node::Node;
pub use pods::Part;

use crate::build_script;
use crate::cluster::Program;
use crate::control_plane::{ADMINISTRATOR, ControlPlane, Kubelets, Options, User};
use crate::deadline::wait_for;
use enclosure::Enclosure;
use lan::Lan;
use node::Parts;

/// The highest number of a node.
pub const LAST_NODE: u8 = 9;
/// Programs and other files installed by `tools/set-up cluster`.
const NEEDED: [&str; 7] = [
    "containerd",
    "runc",
    "/usr/lib/cni/ptp",
    "iptables",
    "conntrack",
    "mmdebstrap",
    "/usr/include/stdio.h",
];
/// How long a node may take to be ready. It takes some ten seconds.
const READY_DEADLINE: Duration = Duration::from_secs(120);

/// The initial state of a cluster.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The number of nodes, which are numbered from 1.
    pub nodes: u8,
    /// Archives of images for every node besides those that Kubernetes needs.
    pub images: Vec<PathBuf>,
}

/// A running cluster.
#[derive(Debug)]
pub struct RealCluster {
    // Fields are dropped in this order: users before what they use.
    nodes: BTreeMap<u8, Node>,
    dns: Program,
    control_plane: ControlPlane,
    lan: Lan,
    images: Vec<PathBuf>,
    enclosure: Enclosure,
}

/// The folder of programs and images built for clusters, besides the control plane. The first build
/// on a machine takes many minutes.
#[derive(Debug, Clone)]
pub struct Built(PathBuf);

// === impl Built ===

impl Built {
    /// Builds DNS and the images that every cluster has.
    pub fn cluster() -> Result<Built> {
        let folder = build_script::run("cluster/build", &[]);
        Ok(Built(
            folder.context("failed to build what a cluster needs")?,
        ))
    }

    /// Returns the path of a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the full name of one of the images, such as `agnhost`.
    pub fn image(&self, name: &str) -> Result<String> {
        let file = self.0.join("images.txt");
        let list = fs::read_to_string(&file)
            .with_context(|| format!("failed to read {}", file.display()))?;
        let image = list.lines().find(|image| {
            let last = image.rsplit('/').next().unwrap_or_default();
            last.split(':').next() == Some(name)
        });
        let image = image.with_context(|| format!("there is no image {name}"))?;
        Ok(image.to_owned())
    }

    /// Returns the archives of images, sorted by name.
    pub fn images(&self) -> Result<Vec<PathBuf>> {
        let folder = self.0.join("images");
        let entries = fs::read_dir(&folder)
            .with_context(|| format!("failed to list {}", folder.display()))?;
        let mut archives = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "tar") {
                archives.push(path);
            }
        }
        archives.sort();
        Ok(archives)
    }
}

// === impl RealCluster ===

impl RealCluster {
    /// Starts everything; returns when all nodes are Ready. Calls `say` with each step.
    pub fn start(
        plan: &Plan,
        enclosure: &Enclosure,
        say: &(dyn Fn(&str) + Sync),
    ) -> Result<RealCluster> {
        ensure!(
            (1..=LAST_NODE).contains(&plan.nodes),
            "a cluster has between 1 and {LAST_NODE} nodes, not {}",
            plan.nodes
        );
        let built = Built::cluster()?;
        crate::control_plane::build_programs()?;
        let images: Vec<PathBuf> = built
            .images()?
            .into_iter()
            .chain(plan.images.clone())
            .collect();
        let mut lan = Lan::build()?;
        let numbers = 1..=plan.nodes;
        let machines: Vec<_> = numbers
            .map(|number| Ok((number, lan.add_node(number)?)))
            .collect::<Result<_>>()?;
        // Start both concurrently: they are independent until a kubelet logs in.
        let (control_plane, nodes) = thread::scope(|scope| -> Result<_> {
            let nodes: Vec<_> = machines
                .into_iter()
                .map(|(number, namespace)| {
                    let images = &images;
                    scope.spawn(move || {
                        let group = enclosure.name();
                        let parts = Parts {
                            folder: enclosure.folder(),
                            group: &group,
                            images,
                        };
                        let node = Node::start(number, namespace, parts)?;
                        say(&format!(
                            "{} has containerd and {} images",
                            node.name(),
                            images.len()
                        ));
                        Ok((number, node))
                    })
                })
                .collect();
            let control_plane = ControlPlane::start(Options {
                bind: lan::CONTROL,
                network: Some(lan.control().clone()),
                users: (1..=LAST_NODE).map(kubelet_user).collect(),
                kubelets: Kubelets::Real,
                ..Options::default()
            });
            // Join all threads, even after an error: a dropped node removes its own resources.
            let nodes: Result<BTreeMap<u8, Node>> = nodes
                .into_iter()
                .map(|node| {
                    node.join()
                        .map_err(|_| anyhow!("the start of a node panicked"))?
                })
                .collect();
            Ok((control_plane?, nodes?))
        })?;
        say("the control plane is ready");
        let dns = dns::start(
            &built.program("dns"),
            enclosure.folder(),
            &lan,
            &control_plane,
        )?;
        tell_where_the_api_server_is(&control_plane)?;
        let mut cluster = RealCluster {
            nodes,
            dns,
            control_plane,
            lan,
            images,
            enclosure: enclosure.clone(),
        };
        let numbers: Vec<u8> = cluster.nodes.keys().copied().collect();
        for number in &numbers {
            cluster.join(*number)?;
        }
        for number in numbers {
            cluster.wait_until_ready(number)?;
            say(&format!("{} is Ready", node::name(number)));
        }
        Ok(cluster)
    }

    /// Returns the control plane with its API server and kubectl.
    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// Returns the control plane, to stop and restart its API server.
    pub fn control_plane_mut(&mut self) -> &mut ControlPlane {
        &mut self.control_plane
    }

    /// Returns the network.
    pub fn lan(&self) -> &Lan {
        &self.lan
    }

    /// Returns all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// Returns one node.
    pub fn node(&self, number: u8) -> Result<&Node> {
        let node = self.nodes.get(&number);
        node.with_context(|| format!("{} is not there", node::name(number)))
    }

    /// Returns one node, to stop its kubelet.
    pub fn node_mut(&mut self, number: u8) -> Result<&mut Node> {
        let node = self.nodes.get_mut(&number);
        node.with_context(|| format!("{} is not there", node::name(number)))
    }

    /// Adds a node; returns when it is Ready.
    pub fn add_node(&mut self, number: u8) -> Result<()> {
        let namespace = self.lan.add_node(number)?;
        let group = self.enclosure.name();
        let parts = Parts {
            folder: self.enclosure.folder(),
            group: &group,
            images: &self.images,
        };
        let node = Node::start(number, namespace, parts)?;
        self.nodes.insert(number, node);
        self.join(number)?;
        self.wait_until_ready(number)
    }

    /// Removes a node as if its machine were switched off, and then its Node object.
    pub fn remove_node(&mut self, number: u8) -> Result<()> {
        let node = self.nodes.remove(&number);
        let node = node.with_context(|| format!("{} is not there", node::name(number)))?;
        let (name, namespace) = (node.name(), node.namespace().clone());
        drop(node);
        self.control_plane.kubectl(&["delete", "node", &name])?;
        self.lan.remove_node(&namespace)
    }

    /// Starts or restarts the kubelet of a node.
    pub fn start_kubelet(&mut self, number: u8) -> Result<()> {
        let program = self.control_plane.programs().join("kubelet");
        let kubeconfig = self.control_plane.kubeconfig(&kubelet_user(number).name)?;
        self.node_mut(number)?.start_kubelet(&program, &kubeconfig)
    }

    /// Fails if a process outside the containers has ended.
    pub fn ensure_runs(&mut self) -> Result<()> {
        self.control_plane.ensure_runs()?;
        self.dns.ensure_runs()?;
        self.nodes.values_mut().try_for_each(Node::ensure_runs)
    }

    /// Waits until a Node has the condition Ready.
    pub fn wait_until_ready(&mut self, number: u8) -> Result<()> {
        let name = node::name(number);
        let path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
        wait_for(&format!("{name} to be Ready"), READY_DEADLINE, || {
            self.ensure_runs()?;
            let ready = self
                .control_plane
                .kubectl(&["get", "node", &name, "--output", path])
                .is_ok_and(|status| status == "True");
            Ok(ready.then_some(()))
        })
    }

    /// Joins a node to the cluster: starts its kubelet, assigns its pod CIDRs and adds routes to it
    /// on the other nodes.
    fn join(&mut self, number: u8) -> Result<()> {
        self.start_kubelet(number)?;
        self.lan.add_route(self.lan.control(), number)?;
        for other in self.nodes.values().filter(|node| node.number() != number) {
            self.lan.add_route(other.namespace(), number)?;
            self.lan
                .add_route(self.node(number)?.namespace(), other.number())?;
        }
        let name = node::name(number);
        wait_for(&format!("the Node {name}"), READY_DEADLINE, || {
            self.ensure_runs()?;
            Ok(self.control_plane.kubectl(&["get", "node", &name]).ok())
        })?;
        // The controller for this would assign CIDRs in the order in which nodes join.
        let cidrs = lan::pod_cidrs(number);
        let patch = json!({"spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs}}).to_string();
        self.control_plane
            .kubectl(&["patch", "node", &name, "--patch", &patch])
            .map(drop)
    }
}

/// Returns the user of a kubelet.
fn kubelet_user(number: u8) -> User {
    User {
        name: format!("system:node:{}", node::name(number)),
        groups: vec!["system:nodes".to_owned()],
    }
}

/// Writes the ConfigMap that kubeadm writes and many programs read: the address of the API server
/// for clients that cannot use the Service.
fn tell_where_the_api_server_is(control_plane: &ControlPlane) -> Result<()> {
    let authority = fs::read(control_plane.certificate_authority())?;
    let authority = String::from_utf8(authority).context("a certificate in PEM is text")?;
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "", "cluster": {
            "server": format!("https://{}", control_plane.address()),
        }}],
    });
    let object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "cluster-info", "namespace": "kube-public"},
        "data": {"kubeconfig": kubeconfig.to_string(), "ca.crt": authority},
    });
    control_plane.apply(&object.to_string()).map(drop)
}

/// Returns the kubeconfig of the administrator.
pub fn kubeconfig(cluster: &RealCluster) -> Result<PathBuf> {
    cluster.control_plane.kubeconfig(ADMINISTRATOR)
}

/// Returns what is missing to build and start a cluster here, in one line; `None` if nothing is.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("containers take root".to_owned());
    }
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        return Some(
            "nodes need control groups of version 1, and here they are of version 2".to_owned(),
        );
    }
    if let Some(folder) = env::var_os("KUBEBUILDER_ASSETS")
        && !Path::new(&folder).join("kubelet").exists()
    {
        return Some(format!("there is no kubelet in {}", folder.display()));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .collect();
    let is_there = |file: &&str| folders.iter().any(|folder| folder.join(file).exists());
    let missing = NEEDED.iter().find(|file| !is_there(file))?;
    Some(format!("there is no {missing}: tools/set-up cluster"))
}

/// Returns what is missing to start a cluster here and install Signpost on it, in one line; `None`
/// if nothing is.
pub fn missing_for_signpost() -> Result<Option<String>> {
    if let Some(problem) = missing() {
        return Ok(Some(problem));
    }
    Ok(match images::observe()? {
        images::OwnImages::Made(_) => None,
        images::OwnImages::Missing => Some("there are no images to install: make image".to_owned()),
    })
}
