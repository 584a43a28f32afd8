//! The initial states of agents, and the incidents.

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use backend::Backend as _;
use backend_iptables::Iptables;
use backend_ipvs::{Ipvs, MARKS};
use backend_nftables::Nftables;
use dataplane::{Dataplane, Family};
use netlink::ipvs::{IpvsSocket, Operation};
use testkit::address_plan as addresses;
use tests::iptables_program::iptables_program;
use xtables::Variant;

use crate::agent::{self, Grain, Incident, Script};
use crate::mode::{Mode, Steps as _};
use crate::services::{self, API_SERVER, NODE_PORT, SERVED, SERVING, STICKY, WEB};
use crate::stage::Stage;
use crate::witness::Witness;

/// The maximum number of steps of one change at which an incident happens; they are spread evenly.
const INCIDENTS: usize = 4;

/// The initial state.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Start {
    /// No rules.
    Nothing,
    /// The working rules of another version.
    AnotherForm,
    /// The agent's rules, half of them removed by another program.
    Damaged,
    /// The agent's rules from before some Services were added and others removed.
    Earlier,
    /// The working rules of another mode.
    Other(Mode),
    /// No rules. From here on, the desired state admits only some sources.
    NothingGuarded,
    /// The agent's rules from when the Service admitted all sources.
    Unguarded,
    /// The agent's rules from when the Service admitted other sources.
    OtherRanges,
}

/// Moves one family of a node from `start` to the desired state through `mode`: undisturbed,
/// with an agent killed at some step and its successor, and with a lack of memory at some step.
pub(crate) fn run(mode: Mode, start: Start, family: Family) -> Result<()> {
    let stage = Stage::build()?;
    let scenario = Scenario {
        stage: &stage,
        mode,
        start,
        family,
        expected: match start.is_guarded() {
            true => services::guarded(),
            false => services::expected(),
        },
    };
    let (steps, mut looks) = scenario.undisturbed()?;
    looks += scenario.killed()?;
    looks += scenario.without_memory()?;
    println!("    {steps} steps; all clients asked {looks} times");
    Ok(())
}

// === impl Start ===

impl Start {
    /// The mode from which a switch starts.
    pub(crate) fn other(self) -> Option<Mode> {
        match self {
            Start::Other(other) => Some(other),
            _ => None,
        }
    }

    fn is_guarded(self) -> bool {
        matches!(
            self,
            Start::NothingGuarded | Start::Unguarded | Start::OtherRanges
        )
    }
}

struct Scenario<'a> {
    stage: &'a Stage,
    mode: Mode,
    start: Start,
    family: Family,
    expected: Dataplane,
}

// === impl Scenario ===

impl Scenario<'_> {
    /// Runs undisturbed in the smallest steps; returns their number and the number of checks.
    fn undisturbed(&self) -> Result<(usize, usize)> {
        self.prepare()?;
        let script = Script::new(Grain::SmallestParts, Some(self.witness()?));
        let script = self.run(script)?;
        ensure!(script.steps > 0, "there was nothing to do");
        let is_switch = self.other().is_some();
        ensure!(!is_switch || script.parts > 1, "{} parts", script.parts);
        Ok((script.steps, self.finish(script)?))
    }

    /// Kills the agent; the next one continues with the steps of an undisturbed agent.
    fn killed(&self) -> Result<usize> {
        let mut looks = 0;
        for grain in [Grain::Transactions, Grain::SmallestParts] {
            for step in self.steps(grain)? {
                let moment = || format!("killed at step {step} of {grain:?}");
                self.prepare()?;
                let witness = self.witness()?;
                let mut script = Script::new(grain, None);
                script.incident = Some((step, Incident::Kill));
                let dead = self.run(script).with_context(moment)?;
                ensure!(dead.incident.is_none(), "it was not {}", moment());
                let script = Script::new(Grain::Transactions, Some(witness));
                let script = self.run(script).with_context(moment)?;
                looks += self.finish(script).with_context(moment)?;
            }
        }
        Ok(looks)
    }

    /// Lets the kernel lack memory; the same agent continues.
    fn without_memory(&self) -> Result<usize> {
        let (mut looks, grain) = (0, Grain::SmallestParts);
        for step in self.steps(grain)? {
            let moment = || format!("without memory at step {step}");
            self.prepare()?;
            let mut script = Script::new(grain, Some(self.witness()?));
            script.incident = Some((step, Incident::NoMemory));
            let script = self.run(script).with_context(moment)?;
            ensure!(script.incident.is_none(), "it was never {}", moment());
            looks += self.finish(script).with_context(moment)?;
        }
        Ok(looks)
    }

    /// Returns the steps at which an incident happens.
    fn steps(&self, grain: Grain) -> Result<Vec<usize>> {
        self.prepare()?;
        let all = self.run(Script::new(grain, None))?.steps;
        let stride = all.div_ceil(INCIDENTS).max(1);
        Ok((0..all).rev().step_by(stride).collect())
    }

    fn witness(&self) -> Result<Witness> {
        match self.start.is_guarded() {
            true => Witness::begin_outside(self.stage, self.family),
            false => Witness::begin(self.stage, self.family),
        }
    }

    /// Runs an agent until it is done or killed.
    fn run(&self, script: Script) -> Result<Script> {
        let modes = (self.mode, self.other());
        agent::run(self.stage, &self.expected, modes, self.family, script)
    }

    /// Fails unless all checks succeeded and the rules equal those of an agent that started without
    /// rules: another start has nothing to write.
    fn finish(&self, mut script: Script) -> Result<usize> {
        let witness = script.witness.take().context("the witness is there")?;
        let looks = witness.finish()?;
        let steps = self.run(Script::new(Grain::Transactions, None))?.steps;
        ensure!(steps == 0, "another agent would still take {steps} steps");
        Ok(looks)
    }

    /// Creates the initial state.
    fn prepare(&self) -> Result<()> {
        self.clear()?;
        match self.start {
            Start::Nothing | Start::NothingGuarded => Ok(()),
            Start::AnotherForm => match self.mode {
                Mode::Nftables => self.leave_other_priority(),
                Mode::Iptables(variant) => self.leave_other_chains(variant),
                Mode::Ipvs => bail!("no other form of it is known"),
            },
            Start::Damaged => {
                self.program(self.mode, &self.expected)?;
                self.damage()
            }
            Start::Earlier => self.program(self.mode, &services::earlier()),
            Start::Other(other) => self.program(other, &self.expected),
            Start::Unguarded => self.program(self.mode, &services::unguarded()),
            Start::OtherRanges => self.program(self.mode, &services::guarded_for_others()),
        }
    }

    fn clear(&self) -> Result<()> {
        let mut nftables = Nftables::open_family(self.stage, Variant::NfTables, self.family)?;
        let _ = nftables.commit_removal()?;
        for mode in [Some(self.mode), self.other()].into_iter().flatten() {
            match mode {
                Mode::Nftables => {}
                Mode::Iptables(variant) => {
                    let mut iptables = Iptables::open_family(self.stage, variant, self.family)?;
                    let _ = iptables.commit_removal()?;
                }
                Mode::Ipvs => {
                    let mut ipvs = Ipvs::open_family(self.stage, Variant::NfTables, self.family)?;
                    let _ = ipvs.commit_removal()?;
                }
            }
        }
        Ok(())
    }

    fn other(&self) -> Option<Mode> {
        self.start.other()
    }

    fn program(&self, mode: Mode, dataplane: &Dataplane) -> Result<()> {
        let script = Script::new(Grain::Transactions, None);
        let _ = agent::run(self.stage, dataplane, (mode, None), self.family, script)?;
        Ok(())
    }

    /// Writes the same table as this version, except that NAT has the usual priority.
    fn leave_other_priority(&self) -> Result<()> {
        self.program(Mode::Nftables, &self.expected)?;
        let family = nft_family(self.family);
        for hook in ["prerouting", "output"] {
            let chain = format!("{family} signpost nat-{hook}");
            let _ = self.stage.node()?.nft(&[&format!(
                "delete chain {chain}; \
                 add chain {chain} {{ type nat hook {hook} priority -100; }}; \
                 add rule {chain} jump dispatch"
            )])?;
        }
        Ok(())
    }

    /// Writes chains with other names and contents that lead to one endpoint of each Service.
    fn leave_other_chains(&self, variant: Variant) -> Result<()> {
        let iptables = format!("{} -w -t nat", iptables_program(self.family, variant));
        let endpoint = addresses::pod_address(1, SERVING[0], self.family);
        let endpoint = SocketAddr::new(endpoint, SERVED);
        let mut lines = format!("{iptables} -N SIGNPOST-OLD\n");
        let of_cluster_ip = |number, protocol: &str| {
            let address = addresses::cluster_ip(number, self.family);
            format!("-d {address} -p {protocol} --dport 80")
        };
        let of_node_port = |protocol: &str| {
            let address = addresses::node_address(1, self.family);
            format!("-d {address} -p {protocol} --dport {NODE_PORT}")
        };
        for destination in [
            of_cluster_ip(API_SERVER, "tcp"),
            of_cluster_ip(WEB, "tcp"),
            of_cluster_ip(WEB, "udp"),
            of_cluster_ip(STICKY, "tcp"),
            of_node_port("tcp"),
            of_node_port("udp"),
        ] {
            let rule = format!("-A SIGNPOST-OLD {destination} -j DNAT --to-destination {endpoint}");
            writeln!(lines, "{iptables} {rule}")?;
        }
        for chain in ["PREROUTING", "OUTPUT"] {
            writeln!(lines, "{iptables} -A {chain} -j SIGNPOST-OLD")?;
        }
        self.stage.shell(&lines)
    }

    /// Removes about half of the rules.
    fn damage(&self) -> Result<()> {
        let lines = match self.mode {
            Mode::Nftables => {
                let family = nft_family(self.family);
                format!("nft flush map {family} signpost services")
            }
            Mode::Iptables(variant) => {
                let program = iptables_program(self.family, variant);
                let chains =
                    format!("{program}-save -t nat | sed -n 's/^:\\(SIGNPOST[^ ]*\\).*/\\1/p'");
                format!(
                    "{chains} | sed -n 'n;p' | while read chain; do {program} -w -t nat -F $chain; done"
                )
            }
            Mode::Ipvs => {
                self.remove_virtual_servers()?;
                let family = nft_family(self.family);
                // The map of cluster IPs stays, and leads to virtual servers that are gone.
                format!("nft flush map {family} signpost-ipvs nodeports")
            }
        };
        self.stage.shell(&lines)
    }

    /// Removes every second virtual server of those without affinity: one with affinity keeps its mark,
    /// and new clients are refused while its endpoints are added.
    fn remove_virtual_servers(&self) -> Result<()> {
        let table = format!("{} signpost-ipvs", nft_family(self.family));
        let with_affinity = self
            .stage
            .node()?
            .nft(&[&format!("list map {table} affinities")])?;
        let mut socket = self.stage.node()?.enter(|| IpvsSocket::open(MARKS))??;
        let own = socket.observe_virtual_servers()?.own.into_keys();
        let own = own.filter(|key| {
            let mark = format!("{:#010x}", key.mark.value());
            key.family == self.family && !with_affinity.contains(&mark)
        });
        let removals = own
            .step_by(2)
            .map(|key| Operation::RemoveVirtualServer { key });
        Ok(socket.commit(&removals.collect::<Vec<_>>())?)
    }
}

fn nft_family(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ip",
        Family::Ipv6 => "ip6",
    }
}
