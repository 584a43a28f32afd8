//! Where agents start, and what comes between.

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use backend::Backend as _;
use backend_iptables::Iptables;
use backend_nftables::Nftables;
use dataplane::{Dataplane, Family};
use testkit::address_plan as addresses;
use xtables::Variant;

use crate::agent::{self, Grain, Incident, Script};
use crate::mechanism::{Mechanism, Steps as _};
use crate::services::{self, API_SERVER, NODE_PORT, SERVED, SERVING, STICKY, WEB};
use crate::stage::Stage;
use crate::witness::Witness;

/// At how many steps of one change an agent is killed, or the kernel has no memory, at most; they are
/// spread over all.
const INCIDENTS: usize = 4;

/// What an agent finds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Start {
    /// Nothing.
    Nothing,
    /// The rules of another version, which serve.
    AnotherForm,
    /// Its rules, of which another program has removed a half.
    Damaged,
    /// Its rules from before some Services came and others went.
    Earlier,
    /// The rules of another mechanism, which serve.
    Other(Mechanism),
    /// Nothing. What it is to program serves some sources only, as in what follows.
    NothingGuarded,
    /// Its rules from before, when the Service served everybody.
    Unguarded,
    /// Its rules from before, when the Service served other sources.
    OtherRanges,
}

/// One family of a node on its way from `start` to what is wanted, by `mechanism`: undisturbed, by an
/// agent that is killed at some step and the next one, and where the kernel has no memory at some step.
pub(crate) fn run(mechanism: Mechanism, start: Start, family: Family) -> Result<()> {
    let stage = Stage::build()?;
    let scenario = Scenario {
        stage: &stage,
        mechanism,
        start,
        family,
        wanted: match start.is_guarded() {
            true => services::guarded(),
            false => services::wanted(),
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
    fn is_guarded(self) -> bool {
        matches!(
            self,
            Start::NothingGuarded | Start::Unguarded | Start::OtherRanges
        )
    }
}

struct Scenario<'a> {
    stage: &'a Stage,
    mechanism: Mechanism,
    start: Start,
    family: Family,
    wanted: Dataplane,
}

// === impl Scenario ===

impl Scenario<'_> {
    /// In the smallest steps there are. How many, and how often clients asked.
    fn undisturbed(&self) -> Result<(usize, usize)> {
        self.prepare()?;
        let script = Script::new(Grain::SmallestParts, Some(self.witness()?));
        let script = self.run(script)?;
        ensure!(script.steps > 0, "there was nothing to do");
        Ok((script.steps, self.finish(script)?))
    }

    /// The next agent goes on in the steps of an agent that nothing happens to.
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

    /// The same agent goes on.
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

    /// The steps at which something happens.
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

    /// Lets an agent start, and go on until all is done or it is killed.
    fn run(&self, script: Script) -> Result<Script> {
        let mechanisms = (self.mechanism, self.other());
        agent::run(self.stage, &self.wanted, mechanisms, self.family, script)
    }

    /// Fails unless all was well, and the rules are now those of an agent that found nothing: one that
    /// starts once more has nothing to write.
    fn finish(&self, mut script: Script) -> Result<usize> {
        let witness = script.witness.take().context("somebody looked")?;
        let looks = witness.finish()?;
        let steps = self.run(Script::new(Grain::Transactions, None))?.steps;
        ensure!(steps == 0, "another agent would still take {steps} steps");
        Ok(looks)
    }

    /// Makes the node what an agent is to find.
    fn prepare(&self) -> Result<()> {
        self.clear()?;
        match self.start {
            Start::Nothing | Start::NothingGuarded => Ok(()),
            Start::AnotherForm => match self.mechanism {
                Mechanism::Nftables => self.leave_other_priority(),
                Mechanism::Iptables(variant) => self.leave_other_chains(variant),
            },
            Start::Damaged => {
                self.program(self.mechanism, &self.wanted)?;
                self.damage()
            }
            Start::Earlier => self.program(self.mechanism, &services::earlier()),
            Start::Other(other) => self.program(other, &self.wanted),
            Start::Unguarded => self.program(self.mechanism, &services::unguarded()),
            Start::OtherRanges => self.program(self.mechanism, &services::guarded_for_others()),
        }
    }

    fn clear(&self) -> Result<()> {
        let mut nftables = Nftables::open_family(self.stage, Variant::NfTables, self.family)?;
        let _ = nftables.commit_removal()?;
        for mechanism in [Some(self.mechanism), self.other()].into_iter().flatten() {
            if let Mechanism::Iptables(variant) = mechanism {
                let mut iptables = Iptables::open_family(self.stage, variant, self.family)?;
                let _ = iptables.commit_removal()?;
            }
        }
        Ok(())
    }

    fn other(&self) -> Option<Mechanism> {
        match self.start {
            Start::Other(other) => Some(other),
            _ => None,
        }
    }

    fn program(&self, mechanism: Mechanism, dataplane: &Dataplane) -> Result<()> {
        let script = Script::new(Grain::Transactions, None);
        let _ = agent::run(
            self.stage,
            dataplane,
            (mechanism, None),
            self.family,
            script,
        )?;
        Ok(())
    }

    /// All that this version would write, but with NAT where all others have it, too.
    fn leave_other_priority(&self) -> Result<()> {
        self.program(Mechanism::Nftables, &self.wanted)?;
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

    /// Chains of other names and other contents, to one endpoint of each Service.
    fn leave_other_chains(&self, variant: Variant) -> Result<()> {
        let iptables = format!("{} -w -t nat", iptables(self.family, variant));
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

    /// Removes about half of what there is.
    fn damage(&self) -> Result<()> {
        let lines = match self.mechanism {
            Mechanism::Nftables => {
                let family = nft_family(self.family);
                format!("nft flush map {family} signpost services")
            }
            Mechanism::Iptables(variant) => {
                let program = iptables(self.family, variant);
                let chains =
                    format!("{program}-save -t nat | sed -n 's/^:\\(SIGNPOST[^ ]*\\).*/\\1/p'");
                format!(
                    "{chains} | sed -n 'n;p' | while read chain; do {program} -w -t nat -F $chain; done"
                )
            }
        };
        self.stage.shell(&lines)
    }
}

fn nft_family(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ip",
        Family::Ipv6 => "ip6",
    }
}

fn iptables(family: Family, variant: Variant) -> String {
    let family = match family {
        Family::Ipv4 => "iptables",
        Family::Ipv6 => "ip6tables",
    };
    let variant = match variant {
        Variant::NfTables => "nft",
        Variant::Legacy => "legacy",
    };
    format!("{family}-{variant}")
}
