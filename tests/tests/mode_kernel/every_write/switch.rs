//! The agent is killed after each write of a switch. Failure story T285.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::profile::mode::Mode;
use dataplane::Protocol;
use serde_json::json;
use tests::agent_tracer::{Pace, Tracer, Writers};
use tests::deadline::wait_for;
use tests::network::{Connections, Kind};
use xtables::Variant;

use super::{After, FEW};
use crate::stage::{PROMPTLY, Place, SERVING, Stage};
use crate::{ipvs, manifests};

/// The interval between two connections of one client. It leaves processor time for agents that start,
/// also in user-mode Linux.
const EVERY: Duration = Duration::from_millis(200);

/// A node whose agent is traced.
struct Traced {
    stage: Stage,
    variant: Variant,
    /// In which it was last.
    mode: Mode,
}

/// Failure story T285: after whichever write the agent is killed, clients are served, and the next
/// agent completes the switch and leaves nothing of the other mode.
pub(crate) fn is_completed([back, there]: [Mode; 2], variant: Variant, after: After) -> Result<()> {
    let stage = Stage::build_with(variant, FEW)?.serve(back)?;
    let clients = Connections::start(&stage.ways()?, &[Kind::New, Kind::Kept], EVERY)?;
    let flows = Connections::start(&stage.ways_by(Protocol::Udp)?, &[Kind::Kept], EVERY)?;
    let mut node = Traced {
        stage,
        variant,
        mode: back,
    };
    let mut plans = Vec::new();
    for mode in [there, back] {
        plans.push((mode, after.of(1..=node.count_writes(mode)?)));
    }
    let planned: usize = plans.iter().map(|(_, writes)| writes.len()).sum();
    let most = plans.iter().map(|(_, writes)| writes.len()).max();
    let mut reached = 0;
    for round in 0..most.unwrap_or(0) {
        for (mode, writes) in &plans {
            let switched = match writes.get(round) {
                None => node.switch(*mode).map(|()| false),
                Some(write) => node.switch_killed(*mode, *write),
            };
            let switched = switched
                .with_context(|| format!("to {mode}, killed in round {round} of {writes:?}"))?;
            reached += usize::from(switched);
        }
    }
    println!("    killed after writes {plans:?}, of which {reached} were reached");
    ensure!(
        reached * 4 >= planned * 3,
        "too few of {planned} writes were reached: {reached}"
    );
    node.expect_nothing_to_write()?;
    flows.finish_unharmed()?;
    clients.finish_unharmed()?;
    match after {
        _ if ![back, there].contains(&Mode::Ipvs) => Ok(()),
        After::Every => node.expect_no_ipvs(),
        After::Middle => Ok(()),
    }
}

// === impl Traced ===

impl Traced {
    /// Switches undisturbed; returns the number of writes.
    fn count_writes(&mut self, mode: Mode) -> Result<usize> {
        let mut tracer = self.trace(Pace::Undisturbed)?;
        self.switch(mode)?;
        let writes = tracer.observe_calls()?.writes;
        ensure!(writes > 0, "nothing was written");
        Ok(writes)
    }

    /// Switches with an agent that is killed after this write, and with the next one. Returns
    /// whether there was such a write: an earlier incident may have left less to write.
    fn switch_killed(&mut self, mode: Mode, write: usize) -> Result<bool> {
        let mut tracer = self.trace(Pace::Stopping)?;
        self.choose(mode)?;
        let stage = &self.stage;
        let reached = tracer.reach(write, || stage.is_settled(mode), |_| Ok(()))?;
        tracer.kill()?;
        self.stage.agent = None;
        let places = self.stage.places()?;
        ensure!(!places.is_empty(), "no mode serves");
        self.stage.start_agent()?;
        self.switch(mode)?;
        Ok(reached)
    }

    fn trace(&self, pace: Pace) -> Result<Tracer> {
        let trace = self.stage.file("trace");
        Tracer::attach(self.stage.agent()?, Writers::Reconciler, pace, &trace)
    }

    /// Waits until one mode alone is left.
    fn switch(&mut self, mode: Mode) -> Result<()> {
        let place = Place::of(mode, self.variant);
        self.choose(mode)?;
        self.stage.expect_mode(mode)?;
        let mut last = self.stage.places()?;
        let left = wait_for("one mode to be left", PROMPTLY, || {
            last = self.stage.places()?;
            if mode != Mode::Ipvs {
                // The clients have connections of IPVS.
                last.remove(&Place::IpvsEnding);
            }
            Ok((last == [place].into()).then_some(()))
        });
        self.mode = mode;
        left.with_context(|| format!("rules are in {last:?}"))
    }

    /// Requests a mode without periodic checks, which would be calls.
    fn choose(&self, mode: Mode) -> Result<()> {
        let mut profile = manifests::profile(&mode.to_string());
        profile["spec"]["syncPeriod"] = json!("1h");
        self.stage.apply("profile", &profile)
    }

    /// An agent that starts finds everything as it should be.
    fn expect_nothing_to_write(&mut self) -> Result<()> {
        self.stage.expect_answers(&SERVING)?;
        self.stage.kill_agent()?;
        self.stage.start_agent()?;
        self.stage.expect_mode(self.mode)?;
        let agent = self.stage.agent()?;
        let written = agent.metric("signpost_elements_written_total")?;
        ensure!(written == 0.0, "{written} were missing or left over");
        Ok(())
    }

    /// Once the last connection of IPVS has ended, nothing of it is left.
    fn expect_no_ipvs(&self) -> Result<()> {
        let expected = [Place::of(self.mode, self.variant)].into();
        wait_for("connections of IPVS to end", ipvs::ENDS_WITHIN, || {
            Ok((self.stage.places()? == expected).then_some(()))
        })?;
        let left = ipvs::servers(&self.stage)?.observe_virtual_servers()?;
        ensure!(left.own.is_empty(), "{left:?}");
        Ok(())
    }
}
