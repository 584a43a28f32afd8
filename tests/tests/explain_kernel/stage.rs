//! An agent in a separate namespace with the manifests of the example.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crds::profile::mode::Mode;
use netlink::ipvs::{IpvsSocket, Operation};
use tempfile::TempDir;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{Namespace, Network};
use xtables::Variant;

/// The agent's manifests.
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/demo");

/// The folder of changed manifests, in that of the stage.
const MANIFESTS: &str = "manifests";

/// The deadline of waits for the agent.
const PROMPTLY: Duration = Duration::from_secs(20);

/// The key of an endpoint of Service `demo/web`.
pub(crate) const SECOND_ENDPOINT: &str = "10.96.0.10 . tcp . 80 . 0x00000001";

/// A node with a running agent that has programmed everything.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) agent: LoneAgent,
    pub(crate) node: Namespace,
    folder: TempDir,
    // Dropped last: the other fields hold only the name of the namespace.
    #[expect(dead_code, reason = "held for the sake of its end")]
    network: Network,
}

// === impl Stage ===

impl Stage {
    /// Starts the agent and waits until it is ready.
    pub(crate) fn build() -> Result<Stage> {
        Stage::follow(|_, _| Ok(EXAMPLE.into()))
    }

    /// The same in mode iptables, on a node where another program uses this variant.
    pub(crate) fn build_with_iptables(variant: Variant) -> Result<Stage> {
        Stage::follow(|folder, node| {
            let rule = ["-A", "INPUT", "-i", "lo", "-j", "ACCEPT"];
            run_iptables(node, folder, variant, &rule)?;
            write_manifests(folder, Mode::Iptables)
        })
    }

    /// The same in mode ipvs.
    pub(crate) fn build_with_ipvs() -> Result<Stage> {
        Stage::follow(|folder, _| write_manifests(folder, Mode::Ipvs))
    }

    /// Starts an agent with the manifests in the folder that `prepare` returns.
    fn follow(prepare: impl FnOnce(&Path, &Namespace) -> Result<PathBuf>) -> Result<Stage> {
        let mut network = Network::new()?;
        let [node] = network.add_namespaces(["node-1"])?;
        node.configure("addr add 192.168.0.1/32 dev lo\naddr add fd00:192:168::1/128 dev lo\n")?;
        let folder = tempfile::tempdir()?;
        let agent = LoneAgent::start(&Workplace {
            node: node.clone(),
            source: Source::Manifests(prepare(folder.path(), &node)?),
            folder: folder.path().to_owned(),
            sysctls: Sysctls::Writable,
            deadline: PROMPTLY,
        })?;
        agent.wait_until_ready()?;
        Ok(Stage {
            agent,
            node,
            folder,
            network,
        })
    }

    /// Deletes one of the agent's elements from the kernel, unless it is already missing.
    pub(crate) fn delete_second_endpoint(&self) {
        let command = format!("delete element ip signpost endpoints {{ {SECOND_ENDPOINT} }}");
        let _ = self.node.nft(&[&command]);
    }

    /// Removes an endpoint from the virtual servers of the agent, unless it is already missing.
    pub(crate) fn remove_destination(&self, endpoint: SocketAddr) -> Result<()> {
        let mut socket = self
            .node
            .enter(|| IpvsSocket::open(backend_ipvs::MARKS))??;
        let own = socket.observe_virtual_servers()?.own;
        let behind = socket.observe_destinations_of(own.into_keys())?;
        let has_it = behind.iter().filter(|(_, all)| all.contains_key(&endpoint));
        let removals = has_it.map(|(key, _)| Operation::RemoveDestination {
            key: *key,
            address: endpoint,
        });
        let removals: Vec<_> = removals.collect();
        Ok(socket.commit(&removals)?)
    }

    /// Runs `ipvsadm` on the node; returns its output.
    pub(crate) fn ipvsadm(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.node.command("ipvsadm");
        let output = command.args(arguments).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?}: {errors}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Writes a manifest beside those of the example, for an agent that was not started with the example
    /// itself. The agent never reads a part of it.
    pub(crate) fn write_manifest(&self, name: &str, text: &str) -> Result<()> {
        let new = self.folder.path().join(name);
        fs::write(&new, text)?;
        let file = self.folder.path().join(MANIFESTS).join(name);
        fs::rename(new, file).with_context(|| format!("failed to write {name}"))
    }

    /// Flushes a chain of IPv4's table nat.
    pub(crate) fn flush(&self, variant: Variant, chain: &str) -> Result<()> {
        let arguments = ["-t", "nat", "-F", chain];
        run_iptables(&self.node, self.folder.path(), variant, &arguments)
    }
}

/// Writes the example with this mode into a folder below `inside`.
fn write_manifests(inside: &Path, mode: Mode) -> Result<PathBuf> {
    let manifests = inside.join(MANIFESTS);
    fs::create_dir(&manifests)?;
    for entry in fs::read_dir(EXAMPLE)? {
        let entry = entry?;
        let text = fs::read_to_string(entry.path())?;
        let text = text.replace("mode: nftables", &format!("mode: {mode}"));
        fs::write(manifests.join(entry.file_name()), text)?;
    }
    Ok(manifests)
}

/// Runs the program of `variant` with the lock of the agent in `folder`.
fn run_iptables(
    node: &Namespace,
    folder: &Path,
    variant: Variant,
    arguments: &[&str],
) -> Result<()> {
    let mut command = match variant {
        Variant::NfTables => node.command("iptables-nft"),
        Variant::Legacy => node.command("iptables-legacy"),
    };
    command.env("XTABLES_LOCKFILE", folder.join("xtables.lock"));
    let output = command.arg("-w").args(arguments).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {errors}");
    Ok(())
}
