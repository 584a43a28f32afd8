//! A node: a network, mounts and a host name, with containerd and a kubelet.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::control_groups;
use super::lan::node_addresses;
use super::node_files::{self, CONTAINERD_SOCKET, SETTINGS, TUNABLES};
use crate::cluster::Program;
use crate::deadline::wait_for;
use crate::network::{Namespace, Process};

/// The control group, inside the node's, of the process that lives as long as the node.
pub(super) const HOLDER: &str = "holder";
/// The number of zones. Nodes are assigned to them in turn.
const ZONES: u8 = 3;
/// The timeout of programs that take a second on an idle machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Turns the namespaces in which it runs into a node. Files of containers and kubelets go below
/// `/var` and `/run`, which are private to the node from here on; all else is shared with the
/// machine.
const BECOME_A_NODE: &str = r#"
folder=$1
mount --bind "$folder/lib" /var/lib
mount --bind "$folder/log" /var/log
mount -t tmpfs tmpfs /run
for file in $(cd "$folder/lib/tunables" && find . -type f); do
    [ ! -e "/proc/sys/$file" ] || mount --bind "$folder/lib/tunables/$file" "/proc/sys/$file"
done
mount --make-rshared /
hostname "$2"
echo "it is a node"
exec cat
"#;

/// A running node. Dropping it ends its containers.
#[derive(Debug)]
pub struct Node {
    number: u8,
    namespace: Namespace,
    group: String,
    folder: PathBuf,
    // Dropped in this order: users before what they use.
    kubelet: Option<Program>,
    containerd: Program,
    holder: Process,
}

/// The ingredients of a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts<'a> {
    /// The folder of its files.
    pub(super) folder: &'a Path,
    /// The control group of the whole cluster.
    pub(super) group: &'a str,
    /// Archives of the images that exist from the start.
    pub(super) images: &'a [PathBuf],
}

// === impl Node ===

impl Node {
    /// Creates the node and starts containerd, which has imported the images when this returns.
    /// There is no kubelet yet.
    pub(super) fn start(number: u8, namespace: Namespace, parts: Parts<'_>) -> Result<Node> {
        let name = name(number);
        let folder = parts.folder.join(&name);
        let group = format!("{}/{name}", parts.group);
        write_files(&folder, number, &group)?;
        let (place, own) = (format!("{group}/{HOLDER}"), format!("{group}/system"));
        control_groups::make(&place)?;
        control_groups::make(&own)?;
        let mut command = namespace.command("unshare");
        command
            .args(["--mount", "--uts", "--propagation", "private", "--"])
            .args(["sh", "-ec", BECOME_A_NODE, "sh"])
            .arg(&folder)
            .arg(&name);
        let mut holder = Process::start(&name, command)?;
        holder.wait_for_line("it is a node", DEADLINE)?;
        control_groups::put(holder.id(), &place)?;
        let mut command = enter(&holder, "containerd");
        command.arg(format!("--config={SETTINGS}/containerd.toml"));
        // containerd joins the group before it starts any process, so its children are in the group
        // too.
        let containerd = Program::start("containerd", command, &folder.join("log/containerd.log"))?;
        control_groups::put(containerd.id(), &own)?;
        let mut node = Node {
            number,
            namespace,
            group,
            folder,
            kubelet: None,
            containerd,
            holder,
        };
        node.wait_for_containerd()?;
        for image in parts.images {
            node.import(image)?;
        }
        Ok(node)
    }

    /// Returns the number in its name and addresses.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Returns its name in Kubernetes.
    pub fn name(&self) -> String {
        name(self.number)
    }

    /// Returns its network.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the process that holds the namespaces of the node.
    pub fn process(&self) -> u32 {
        self.holder.id()
    }

    /// Returns a command that runs `program` in the node's network, mounts and host name.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        enter(&self.holder, program)
    }

    /// Runs a command on the node to its end; returns its output.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let (program, arguments) = arguments.split_first().context("a program to run")?;
        let output = self
            .command(program)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("failed to run {program} on {}", self.name()))?;
        ensure!(
            output.status.success(),
            "{program} {} on {}: {}: {}",
            arguments.join(" "),
            self.name(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts the kubelet, which creates the Node object.
    pub(super) fn start_kubelet(&mut self, program: &Path, kubeconfig: &Path) -> Result<()> {
        let mut command = self.command(program);
        let [ipv4, ipv6] = node_addresses(self.number);
        let name = self.name();
        command
            .arg(format!("--config={SETTINGS}/kubelet.yaml"))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg("--root-dir=/var/lib/kubelet")
            .arg("--cert-dir=/var/lib/kubelet/pki")
            .arg(format!("--node-ip={ipv4},{ipv6}"))
            .arg(format!("--hostname-override={name}"))
            .arg(format!(
                "--node-labels=topology.kubernetes.io/zone=zone-{}",
                (self.number - 1) % ZONES + 1
            ));
        let kubelet = Program::start("kubelet", command, &self.folder.join("log/kubelet.log"))?;
        control_groups::put(kubelet.id(), &format!("{}/system", self.group))?;
        self.kubelet = Some(kubelet);
        Ok(())
    }

    /// Kills the kubelet. Containers continue.
    pub fn stop_kubelet(&mut self) {
        self.kubelet = None;
    }

    /// Fails if one of its programs has ended.
    pub fn ensure_runs(&mut self) -> Result<()> {
        self.containerd.ensure_runs()?;
        match &mut self.kubelet {
            Some(kubelet) => kubelet.ensure_runs(),
            None => Ok(()),
        }
        .with_context(|| format!("{} is broken", name(self.number)))
    }

    /// Imports an archive of images.
    pub fn import(&self, archive: &Path) -> Result<()> {
        let address = format!("--address={CONTAINERD_SOCKET}");
        let archive = archive.to_string_lossy();
        self.run(&[
            "ctr",
            &address,
            "--namespace=k8s.io",
            "images",
            "import",
            &archive,
        ])?;
        Ok(())
    }

    fn wait_for_containerd(&mut self) -> Result<()> {
        let address = format!("--address={CONTAINERD_SOCKET}");
        wait_for("containerd to answer", DEADLINE, || {
            self.containerd.ensure_runs()?;
            Ok(self.run(&["ctr", &address, "version"]).ok().map(drop))
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kubelet = None;
        // Kill the containers and their shims, which do not end with containerd.
        if let Err(error) = control_groups::remove(&self.group) {
            eprintln!("{error:#}");
        }
    }
}

/// Returns the Kubernetes name of the node with this number.
pub(super) fn name(number: u8) -> String {
    format!("node-{number}")
}

fn enter(holder: &Process, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--target={}", holder.id()));
    command
        .args(["--mount", "--uts", "--net", "--"])
        .arg(program);
    command
}

/// Writes the files for [`BECOME_A_NODE`] and the programs.
fn write_files(folder: &Path, number: u8, group: &str) -> Result<()> {
    let settings = folder.join("lib/settings");
    let network = node_files::pod_network(number);
    let mut files = vec![
        (settings.join("containerd.toml"), node_files::containerd()),
        (
            settings.join("kubelet.yaml"),
            node_files::kubelet(group).to_string(),
        ),
        (settings.join("cni/pods.conflist"), network.to_string()),
    ];
    let tunables = TUNABLES
        .map(|(file, value)| (folder.join("lib/tunables").join(file), format!("{value}\n")));
    files.extend(tunables);
    fs::create_dir_all(folder.join("log"))?;
    for (file, text) in files {
        let above = file.parent().context("a file is in a folder")?;
        fs::create_dir_all(above)
            .and_then(|()| fs::write(&file, text))
            .with_context(|| format!("failed to write {}", file.display()))?;
    }
    Ok(())
}
