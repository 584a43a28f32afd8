//! A node: the real agent with a directory of manifests, serving pods, and a client pod.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::condition::RULES_CONTESTED;
use dataplane::{Family, Protocol};
use tempfile::TempDir;
use testkit::address_plan as addresses;
use tests::iptables_program::iptables_program;
use tests::lone_agent::{LoneAgent, Source, Sysctls, Workplace};
use tests::network::{
    Namespace, Outcome, Plan, PlannedNode, Probe, Server, Topology, Way, probe, start_server,
};
use tests::xtables_lock::xtables_lock_folder;
use xtables::Variant;

use crate::manifests;

/// The serving pods, their ports, and the client pod.
pub(crate) const SERVING: [u8; 3] = [5, 6, 7];
const SERVED: [u16; 2] = [8080, 5353];
const ASKING: u8 = 9;
/// The prefix of the names of Signpost's iptables chains.
const OWN_PREFIX: &str = "SIGNPOST-";
/// The deadline for everything that is not about drift.
pub(crate) const PROMPTLY: Duration = Duration::from_secs(20);

/// The node. Everything ends on drop, the agent first.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) agent: LoneAgent,
    #[expect(dead_code, reason = "held for the sake of their end")]
    servers: Vec<Server>,
    #[expect(dead_code, reason = "held for the sake of its end")]
    folder: TempDir,
    topology: Topology,
    workplace: Workplace,
    place: Place,
    /// The rules in the kernel before any damage.
    undisturbed: Vec<String>,
}

/// The place of Signpost's rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Signpost's own tables.
    Nftables,
    /// Chains in tables of iptables.
    Iptables(Variant),
    /// Signpost's own tables for mode ipvs. Its virtual servers are not listed here.
    Ipvs,
}

/// The state of a node before the agent starts, and the agent's configuration.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// The desired place of the rules.
    pub(crate) place: Place,
    /// The interval between two periodic checks.
    pub(crate) sync_period: &'static str,
    /// The number of rules of other programs in each variant of iptables.
    pub(crate) others: Vec<(Variant, u8)>,
}

// === impl Node ===

impl Node {
    /// Starts a node without periodic checks for an hour.
    pub(crate) fn start(place: Place) -> Result<Node> {
        Node::start_with(&Setting {
            place,
            sync_period: "1h",
            others: match place {
                // Signpost uses the variant of the other programs.
                Place::Iptables(Variant::Legacy) => vec![(Variant::Legacy, 1)],
                Place::Iptables(Variant::NfTables) | Place::Nftables | Place::Ipvs => Vec::new(),
            },
        })
    }

    /// Starts everything; returns once the agent listens to the kernel.
    pub(crate) fn start_with(setting: &Setting) -> Result<Node> {
        let plan = Plan {
            nodes: vec![PlannedNode {
                number: 1,
                pods: SERVING.into_iter().chain([ASKING]).collect(),
            }],
            ..Plan::default()
        };
        let topology = Topology::build(&plan)?;
        let mut servers = Vec::new();
        for pod in SERVING {
            let listening = Family::ALL.map(|family| {
                let address = addresses::pod_address(1, pod, family);
                SERVED.map(|port| SocketAddr::new(address, port))
            });
            let listening = listening.as_flattened();
            let inside = topology.pod(1, pod)?;
            servers.push(start_server(inside, &server(pod), listening)?);
        }
        let folder = xtables_lock_folder()?;
        let workplace = Workplace {
            node: topology.node(1)?.clone(),
            source: Source::Manifests(manifests::write(folder.path(), setting)?),
            folder: folder.path().to_owned(),
            sysctls: Sysctls::Writable,
            deadline: PROMPTLY,
        };
        for (variant, rules) in &setting.others {
            for number in 0..*rules {
                let rule = format!("-t filter -A INPUT -s 203.0.113.{number} -j ACCEPT");
                iptables(&workplace, *variant, Family::Ipv4, &rule)?;
            }
        }
        let agent = LoneAgent::start(&workplace)?;
        wait_until_it_listens(&agent, setting.place)?;
        let mut node = Node {
            agent,
            servers,
            folder,
            topology,
            workplace,
            place: setting.place,
            undisturbed: Vec::new(),
        };
        node.undisturbed = node.listed()?;
        ensure!(node.answers()?, "the Service does not answer");
        Ok(node)
    }

    /// Switches the profile to another place; returns once the agent listens there and only there.
    pub(crate) fn switch_to(&self, place: Place) -> Result<()> {
        manifests::commit_mode(&self.workplace.folder, place)?;
        self.agent.wait_for("the other mode", |agent| {
            let mode = agent.status()?.unwrap_or_default().mode;
            let joined = listening_sockets(agent)? == sockets(place);
            Ok((mode == Some(manifests::mode(place)) && joined).then_some(()))
        })
    }

    /// Returns the environment of the agent.
    pub(crate) fn workplace(&self) -> &Workplace {
        &self.workplace
    }

    /// Returns the network namespace of the node.
    pub(crate) fn namespace(&self) -> Result<&Namespace> {
        self.topology.node(1)
    }

    /// Changes the kernel's rules with `nft`.
    pub(crate) fn nft(&self, command: &str) -> Result<String> {
        self.namespace()?.nft(&[command])
    }

    /// Runs `iptables` with arguments that the shell splits. It waits for the agent's lock.
    pub(crate) fn iptables(
        &self,
        variant: Variant,
        family: Family,
        arguments: &str,
    ) -> Result<String> {
        iptables(&self.workplace, variant, family, arguments)
    }

    /// Runs a line of shell.
    pub(crate) fn shell(&self, line: &str) -> Result<String> {
        shell(&self.workplace, line)
    }

    /// Returns the output of `iptables-save` for tables nat and filter, without counters.
    pub(crate) fn saved(&self, variant: Variant, family: Family) -> Result<Vec<String>> {
        let save = program(variant, family, "-save");
        let mut lines = Vec::new();
        for table in ["nat", "filter"] {
            // A table that does not exist is listed as empty.
            let saved = self.shell(&format!("{save} -t {table}"));
            let saved = saved.unwrap_or_default();
            let kept = saved.lines().filter(|line| line.starts_with(['-', ':']));
            let uncounted = kept.map(|line| line.split(" [").next().unwrap_or(line));
            lines.extend(uncounted.map(|line| format!("{family} {table} {line}")));
        }
        Ok(lines)
    }

    /// Returns the part of that output without Signpost's rules.
    pub(crate) fn saved_of_others(&self, variant: Variant, family: Family) -> Result<Vec<String>> {
        let mut lines = self.saved(variant, family)?;
        lines.retain(|line| !line.contains(OWN_PREFIX));
        Ok(lines)
    }

    /// Returns the agent's lock.
    pub(crate) fn lock(&self) -> PathBuf {
        self.workplace.xtables_lock()
    }

    /// Removes a pod's address of one family from the endpoints in a file of the example.
    pub(crate) fn take_out(&self, file: &str, address: IpAddr) -> Result<()> {
        let manifest = manifests::folder(&self.workplace.folder).join(file);
        let text = fs::read_to_string(&manifest)?;
        let is_it = |line: &&str| line.contains(&format!("[{address}]"));
        ensure!(
            text.lines().any(|line| is_it(&line)),
            "the example has changed"
        );
        let left = text.lines().filter(|line| !is_it(line));
        let new = self.workplace.folder.join("new.yaml");
        fs::write(&new, left.collect::<Vec<_>>().join("\n"))?;
        fs::rename(new, manifest).context("failed to write a manifest")
    }

    /// Returns the way from the client pod to the Service.
    pub(crate) fn way(&self, family: Family) -> Result<Way> {
        Ok(Way {
            from: "a pod".to_owned(),
            inside: self.asking()?.clone(),
            protocol: Protocol::Tcp,
            destination: SocketAddr::new(addresses::cluster_ip(10, family), 80),
        })
    }

    /// Returns a serving pod.
    pub(crate) fn pod(&self, pod: u8) -> Result<&Namespace> {
        self.topology.pod(1, pod)
    }

    /// Returns the client pod.
    pub(crate) fn asking(&self) -> Result<&Namespace> {
        self.topology.pod(1, ASKING)
    }

    /// Whether the kernel holds the same rules as before any damage.
    pub(crate) fn is_as_before(&self) -> Result<bool> {
        Ok(self.listed()? == self.undisturbed)
    }

    /// Whether the Service answers in both families.
    pub(crate) fn answers(&self) -> Result<bool> {
        for family in Family::ALL {
            let question = Probe {
                protocol: Protocol::Tcp,
                source: None,
                destination: SocketAddr::new(addresses::cluster_ip(10, family), 80),
                deadline: Duration::from_secs(2),
            };
            let outcomes = probe(self.asking()?, &question, 1)?;
            if !matches!(outcomes[..], [Outcome::Answered { .. }]) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the status and the message of a condition.
    pub(crate) fn condition(&self, kind: &str) -> Result<(String, String)> {
        let found = self.agent.condition(kind)?;
        let found = found.with_context(|| format!("there is no condition {kind}"))?;
        Ok((found.status, found.message))
    }

    /// Returns the recent syncs.
    pub(crate) fn syncs(&self) -> Result<String> {
        self.agent.get("/debug/syncs")
    }

    /// Lists all of Signpost's rules, sorted where the order has no meaning.
    fn listed(&self) -> Result<Vec<String>> {
        match self.place {
            Place::Nftables => self.listed_nftables("signpost"),
            Place::Ipvs => self.listed_nftables("signpost-ipvs"),
            Place::Iptables(variant) => self.listed_iptables(variant),
        }
    }

    fn listed_nftables(&self, table: &str) -> Result<Vec<String>> {
        let mut parts = Vec::new();
        for family in ["ip", "ip6"] {
            // Without the counts of rules, which traffic changes.
            let list = ["--stateless", "list", "table", family, table];
            let listed = self.namespace()?.nft(&list);
            // A table that does not exist is listed as empty.
            let listed = listed.unwrap_or_default();
            let pieces = listed.split(['\n', ',', '{', '}']).map(str::trim);
            parts.extend(pieces.map(|piece| format!("{family} {piece}")));
        }
        parts.sort();
        Ok(parts)
    }

    fn listed_iptables(&self, variant: Variant) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for family in Family::ALL {
            lines.extend(self.saved(variant, family)?);
        }
        lines.retain(|line| line.contains(OWN_PREFIX));
        // The order of chains has no meaning, the order of rules in a chain has.
        lines.sort_by_cached_key(|line| {
            let place = line.split(' ').take(4).map(str::to_owned);
            place.collect::<Vec<_>>()
        });
        Ok(lines)
    }
}

/// Returns the name of the server in a pod.
pub(crate) fn server(pod: u8) -> String {
    format!("web-{pod}")
}

/// Returns the name of an iptables program: `suffix` is empty, `-save` or `-restore`.
pub(crate) fn program(variant: Variant, family: Family, suffix: &str) -> String {
    format!("{}{suffix}", iptables_program(family, variant))
}

/// Runs `iptables` on the node of a workplace, with arguments that the shell splits.
pub(crate) fn iptables(
    workplace: &Workplace,
    variant: Variant,
    family: Family,
    arguments: &str,
) -> Result<String> {
    let program = program(variant, family, "");
    shell(workplace, &format!("{program} --wait {arguments}"))
}

/// Runs a line of shell on the node of a workplace.
pub(crate) fn shell(workplace: &Workplace, line: &str) -> Result<String> {
    let mut command = workplace.node.command("sh");
    command.args(["-c", line]);
    command.env("XTABLES_LOCKFILE", workplace.xtables_lock());
    let output = command.output().context("unable to run sh")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{line}: {errors}");
    Ok(String::from_utf8(output.stdout)?)
}

fn wait_until_it_listens(agent: &LoneAgent, place: Place) -> Result<()> {
    // After it has subscribed, the agent checks each family once for changes that it has missed.
    agent.wait_for("the agent to listen", |agent| {
        let looked = agent.get("/debug/syncs").unwrap_or_default();
        let reported = agent.condition(RULES_CONTESTED)?.is_some();
        let joined = listening_sockets(agent)? == sockets(place);
        Ok((reported && joined && looked.matches("(Drift)").count() >= 2).then_some(()))
    })
}

/// Returns the number of sockets that listen: one to nf_tables, and another one to iptables in
/// variant nf_tables.
fn sockets(place: Place) -> usize {
    match place {
        Place::Iptables(Variant::NfTables) => 2,
        Place::Iptables(Variant::Legacy) | Place::Nftables | Place::Ipvs => 1,
    }
}

/// Returns the number of sockets in the agent's network namespace that listen to nf_tables.
fn listening_sockets(agent: &LoneAgent) -> Result<usize> {
    let process = agent.process_id();
    let sockets = fs::read_to_string(format!("/proc/{process}/net/netlink"))?;
    let is_one = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // NETLINK_NETFILTER, and NFNLGRP_NFTABLES as a bit of the groups.
        matches!(fields[..], [_, "12", _, "00000040", ..])
    };
    Ok(sockets.lines().filter(is_one).count())
}
