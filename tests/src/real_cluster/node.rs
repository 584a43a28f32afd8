//! One node: a network, mounts and a host name of its own, and in them containerd and a kubelet.

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

/// The control group, of a node's own, of the one process that is there as long as the node.
pub(super) const HOLDER: &str = "holder";
/// How many zones nodes are in, one after the other.
const ZONES: u8 = 3;
/// How long a program may take to answer that takes a second on a machine with nothing else to do.
const DEADLINE: Duration = Duration::from_secs(60);

/// Makes a node of the place it runs in. What containers and kubelets write goes below `/var` and
/// `/run`, which are the node's own from here on; all else is the machine's.
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

/// A node that runs. With it go its containers.
#[derive(Debug)]
pub struct Node {
    number: u8,
    namespace: Namespace,
    group: String,
    folder: PathBuf,
    // Who uses something ends before it.
    kubelet: Option<Program>,
    containerd: Program,
    holder: Process,
}

/// What a node is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts<'a> {
    /// Where its files are to be.
    pub(super) folder: &'a Path,
    /// The control group of the whole cluster.
    pub(super) group: &'a str,
    /// Archives of the images that are there from the start.
    pub(super) images: &'a [PathBuf],
}

// === impl Node ===

impl Node {
    /// Makes the node and starts containerd, which has the images when this returns. There is no
    /// kubelet yet.
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
        // Joined before it starts anything, which then is in the group, too.
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

    /// The number in its name and addresses.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// What Kubernetes calls it.
    pub fn name(&self) -> String {
        name(self.number)
    }

    /// Its network.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The process whose namespaces are the node's.
    pub fn process(&self) -> u32 {
        self.holder.id()
    }

    /// A command that runs `program` on the node: its network, its files, its name.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        enter(&self.holder, program)
    }

    /// Runs a command on the node to its end and returns what it prints.
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

    /// Starts the kubelet, which makes the Node object.
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

    /// Ends the kubelet as a crash does. Containers go on.
    pub fn stop_kubelet(&mut self) {
        self.kubelet = None;
    }

    /// Fails when one of its programs has ended.
    pub fn ensure_runs(&mut self) -> Result<()> {
        self.containerd.ensure_runs()?;
        match &mut self.kubelet {
            Some(kubelet) => kubelet.ensure_runs(),
            None => Ok(()),
        }
        .with_context(|| format!("{} is broken", name(self.number)))
    }

    /// Takes an archive of images in.
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
        // Containers, and what looks after each: none ends with containerd.
        if let Err(error) = control_groups::remove(&self.group) {
            eprintln!("{error:#}");
        }
    }
}

/// What Kubernetes calls the node of this number.
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

/// Writes what [`BECOME_A_NODE`] and the programs expect.
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
