//! The agent is killed after each write of its start, or of a repair while it runs. Failure stories T328, T329,
//! T345 and T349.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use crds::profile::mode::Mode;
use dataplane::Family;
use serde_json::json;
use testkit::address_plan as addresses;
use tests::agent_tracer::{Pace, Tracer, Writers};
use tests::iptables_program::iptables_program;
use tests::network::Way;
use tests::questions::{Client, Questions};
use xtables::Variant;

use super::damage::{Damage, remove_everything, remove_part, run_shell};
use super::{After, FEW};
use crate::manifests::{self, NODE_PORT};
use crate::stage::{SERVED, SERVING, SERVING_ELSEWHERE, Stage, server};

/// A Service with another server than `shop/web`, and the last number of its cluster IPs.
const ANOTHER: (&str, u8) = ("other-0", 20);
/// A Service that comes while no agent runs, and the last number of its cluster IPs.
const LATE: (&str, u8) = ("late", 90);

/// The families of which an agent that starts, and one that runs, finds no rules and of the other one no node
/// ports.
const LOST_BEFORE: Family = Family::Ipv6;
const LOST_WHILE_RUNNING: Family = Family::Ipv4;
/// The metric of repairs, and how long an agent takes to tell it.
const REPAIRS: &str = "signpost_drift_total";
const FOR_A_METRIC: Duration = Duration::from_millis(500);

/// The names of the tests.
pub(crate) const STORIES: [(&str, Start); 6] = [
    (
        "t328_no_write_of_a_start_refuses_anybody_and_one_that_is_killed_is_completed",
        Start::Nothing,
    ),
    (
        "t329_no_write_of_a_repair_harms_others_and_one_that_is_killed_is_completed",
        Start::Damaged,
    ),
    (
        "t345_no_write_of_a_new_layout_harms_anybody_and_one_that_is_killed_is_completed",
        Start::AnotherLayout,
    ),
    (
        "t345_no_write_of_a_new_configuration_harms_anybody_and_one_that_is_killed_is_completed",
        Start::AnotherConfiguration,
    ),
    (
        "t349_no_write_of_a_running_agents_repair_harms_others_and_one_that_is_killed_is_completed",
        Start::Running(Damage::Part),
    ),
    (
        "t349_no_write_of_a_repair_after_a_flush_refuses_anybody_and_one_that_is_killed_is_completed",
        Start::Running(Damage::Everything),
    ),
];

/// What an agent finds when it starts, or meets while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// No rules.
    Nothing,
    /// Rules of which another program has removed those of IPv6 and the node ports. Services have changed
    /// meanwhile.
    Damaged,
    /// The working rules of another layout.
    AnotherLayout,
    /// The rules of another configuration.
    AnotherConfiguration,
    /// The agent runs, and another program removes rules.
    Running(Damage),
}

/// The settings of the profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settings {
    Usual,
    /// Those with which all Services are programmed in another way.
    Other,
}

/// A node whose agents are killed.
struct Node {
    stage: Stage,
    start: Start,
    mode: Mode,
    variant: Variant,
    /// How many repairs a running agent had counted before the damage.
    repairs_before: f64,
}

/// Between any two writes of a start, and after whichever the agent is killed, no client is refused or gets to
/// another Service, and those that were served are; the next agent completes it.
pub(crate) fn is_completed(start: Start, mode: Mode, variant: Variant) -> Result<()> {
    let stage = Stage::build_with(variant, FEW)?;
    // Without rules a packet to a cluster IP gets no answer.
    for family in Family::ALL {
        let route = format!(
            "route replace blackhole {}",
            addresses::service_cidr(family)
        );
        stage.topology.world().configure(&route)?;
    }
    let mut node = Node {
        stage,
        start,
        mode,
        variant,
        repairs_before: 0.0,
    };
    let all = node.undisturbed()?;
    let writes = After::asked().of(1..=all);
    for write in &writes {
        let killed = node.killed(*write);
        killed.with_context(|| format!("killed after write {write} of {all}"))?;
    }
    println!("    {all} writes, and killed after {writes:?}");
    Ok(())
}

// === impl Node ===

impl Node {
    /// Lets the agent write, and asks after each write. Returns the number of writes.
    fn undisturbed(&mut self) -> Result<usize> {
        let (mut questions, mut tracer) = self.begin()?;
        let mut writes = 0;
        let look = |write| {
            writes = write;
            questions.ask(&format!("after write {write}"))
        };
        tracer.reach(usize::MAX, || self.is_done(), look)?;
        tracer.kill()?;
        ensure!(writes > 1, "{writes} writes tell little");
        self.finish(questions)?;
        Ok(writes)
    }

    /// Lets the agent write until it is killed after this write, and starts another one.
    fn killed(&mut self, write: usize) -> Result<()> {
        let (mut questions, mut tracer) = self.begin()?;
        let reached = tracer.reach(write, || self.is_done(), |_| Ok(()))?;
        ensure!(reached, "there was no such write");
        tracer.kill()?;
        questions.ask("after its end")?;
        self.stage.agent = None;
        self.stage.start_agent()?;
        questions.ask("while the next one starts")?;
        self.stage.expect_mode(self.mode)?;
        self.finish(questions)
    }

    /// All are served, and another agent has nothing to write.
    fn finish(&mut self, questions: Questions) -> Result<()> {
        questions.finish()?;
        self.stage.agent = None;
        self.stage.start_agent()?;
        self.stage.expect_mode(self.mode)?;
        let agent = self.stage.agent()?;
        let written = agent.metric("signpost_elements_written_total")?;
        ensure!(written == 0.0, "{written} were missing or left over");
        self.stage.kill_agent()
    }

    /// Makes what an agent is to find, asks for the first time, and lets the agent begin.
    fn begin(&mut self) -> Result<(Questions, Tracer)> {
        self.stage.agent = None;
        self.stage.clean_up()?;
        self.configure(Settings::Usual)?;
        let (another, _) = ANOTHER;
        let slices = manifests::endpoints_elsewhere(another);
        self.stage.apply(&format!("{another}-endpoints"), &slices)?;
        match self.start {
            Start::Nothing => {}
            Start::Damaged => self.find_damage()?,
            Start::AnotherLayout => self.lay_out_otherwise()?,
            Start::AnotherConfiguration => {
                self.configure(Settings::Other)?;
                self.program()?;
                self.configure(Settings::Usual)?;
            }
            Start::Running(damage) => return self.meet(damage),
        }
        let questions = Questions::begin(self.clients()?)?;
        self.stage.start_stopped_agent()?;
        let trace = self.stage.file("trace");
        let tracer = Tracer::of_start(self.stage.agent()?, Pace::Stopping, &trace)?;
        Ok((questions, tracer))
    }

    /// Stops a running agent, damages its rules, and lets it go on.
    fn meet(&mut self, damage: Damage) -> Result<(Questions, Tracer)> {
        self.stage.start_agent()?;
        self.stage.expect_mode(self.mode)?;
        self.repairs_before = self.stage.agent()?.metric(REPAIRS)?;
        let trace = self.stage.file("trace");
        let tracer = Tracer::of_stopped(self.stage.agent()?, Writers::Reconciler, &trace)?;
        match damage {
            Damage::Part => remove_part(&self.stage, self.mode, self.variant, LOST_WHILE_RUNNING)?,
            Damage::Everything => remove_everything(&self.stage, self.mode, self.variant)?,
        }
        let questions = Questions::begin(self.clients()?)?;
        tracer.go_on()?;
        Ok((questions, tracer))
    }

    /// Whether the agent has written everything. It does not stand still.
    fn is_done(&self) -> Result<bool> {
        let Start::Running(damage) = self.start else {
            return self.stage.is_settled(self.mode);
        };
        let repairs = damage.repairs(self.mode) + self.repairs_before;
        // It may stand still before it answers.
        let counted = self.stage.agent()?.metric_within(REPAIRS, FOR_A_METRIC);
        Ok(counted.is_ok_and(|counted| counted >= repairs))
    }

    /// Requests the mode with these settings, without periodic checks, which would be calls.
    fn configure(&self, settings: Settings) -> Result<()> {
        let mut profile = manifests::profile(&self.mode.to_string());
        profile["spec"]["syncPeriod"] = json!("1h");
        match (settings, self.mode) {
            (Settings::Usual, _) => {}
            (Settings::Other, Mode::Ipvs) => {
                profile["spec"]["loadBalancer"] = json!({"scheduler": "lc"});
            }
            (Settings::Other, Mode::Nftables | Mode::Iptables) => {
                profile["spec"]["masquerade"] = json!({"markBit": 13});
            }
        }
        self.stage.apply("profile", &profile)
    }

    /// Leaves the rules of an agent.
    fn program(&mut self) -> Result<()> {
        self.stage.start_agent()?;
        self.stage.expect_mode(self.mode)?;
        self.stage.kill_agent()
    }

    /// Leaves rules of which another program has removed some before Services have changed.
    fn find_damage(&mut self) -> Result<()> {
        let (late, number) = LATE;
        for (name, slices) in manifests::other_endpoints(FEW, &SERVING[..1]).skip(1) {
            self.stage.apply(&name, &slices)?;
        }
        if self.stage.file(&format!("manifests/{late}.yaml")).exists() {
            self.stage.remove(late)?;
        }
        self.program()?;
        remove_part(&self.stage, self.mode, self.variant, LOST_BEFORE)?;
        for (name, slices) in manifests::other_endpoints(FEW, &SERVING).skip(1) {
            self.stage.apply(&name, &slices)?;
        }
        self.stage.apply(late, &manifests::service(late, number))
    }

    fn lay_out_otherwise(&mut self) -> Result<()> {
        match self.mode {
            Mode::Nftables => {
                self.program()?;
                run_shell(&self.stage, &other_priority())
            }
            Mode::Iptables => run_shell(&self.stage, &other_chains(self.variant)?),
            Mode::Ipvs => bail!("no other layout of it is known"),
        }
    }

    /// Those who are asked. Who is served when the agent begins must be all the time.
    fn clients(&self) -> Result<Vec<Client>> {
        let (_, number) = ANOTHER;
        let of_web = SERVING.map(server).to_vec();
        let mut clients = Vec::new();
        for way in self.stage.ways()? {
            let to_another = (way.from == "a pod").then(|| Way {
                destination: SocketAddr::new(
                    addresses::cluster_ip(number, Family::of(way.destination.ip())),
                    80,
                ),
                ..way.clone()
            });
            clients.push(self.client(way, of_web.clone()));
            let of_another = vec![server(SERVING_ELSEWHERE)];
            clients.extend(to_another.map(|way| self.client(way, of_another)));
        }
        Ok(clients)
    }

    fn client(&self, way: Way, servers: Vec<String>) -> Client {
        let is_left =
            |lost| Family::of(way.destination.ip()) != lost && way.destination.port() != NODE_PORT;
        let is_served = match self.start {
            Start::Nothing | Start::Running(Damage::Everything) => false,
            Start::Damaged => is_left(LOST_BEFORE),
            Start::Running(Damage::Part) => is_left(LOST_WHILE_RUNNING),
            Start::AnotherLayout | Start::AnotherConfiguration => true,
        };
        Client {
            way,
            servers,
            at_first: None,
            is_served,
        }
    }
}

/// Moves NAT of mode nftables to the usual priority.
fn other_priority() -> String {
    let mut lines = String::new();
    for family in ["ip", "ip6"] {
        for hook in ["prerouting", "output"] {
            let chain = format!("{family} signpost nat-{hook}");
            let _ = writeln!(
                lines,
                "nft 'delete chain {chain}; add chain {chain} {{ type nat hook {hook} priority -100; }}; \
                 add rule {chain} jump dispatch'"
            );
        }
    }
    lines
}

/// Chains with other names and contents.
fn other_chains(variant: Variant) -> Result<String> {
    let mut lines = String::new();
    for family in Family::ALL {
        let iptables = format!("{} -w -t nat", iptables_program(family, variant));
        writeln!(lines, "{iptables} -N SIGNPOST-OLD")?;
        let at =
            |pod: (u8, u8)| SocketAddr::new(addresses::pod_address(pod.0, pod.1, family), SERVED);
        let (_, another) = ANOTHER;
        let node = addresses::node_address(1, family);
        for (address, port, endpoint) in [
            (addresses::cluster_ip(10, family), 80, at((1, SERVING[0]))),
            (node, NODE_PORT, at((1, SERVING[0]))),
            (
                addresses::cluster_ip(another, family),
                80,
                at((2, SERVING_ELSEWHERE)),
            ),
        ] {
            writeln!(
                lines,
                "{iptables} -A SIGNPOST-OLD -d {address} -p tcp --dport {port} \
                 -j DNAT --to-destination {endpoint}"
            )?;
        }
        for chain in ["PREROUTING", "OUTPUT"] {
            writeln!(lines, "{iptables} -A {chain} -j SIGNPOST-OLD")?;
        }
    }
    Ok(lines)
}
