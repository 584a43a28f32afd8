//! Agents that end when they had better not.

use std::time::Duration;

use anyhow::{Result, ensure};
use crds::profile::mechanism::Mode;
use tests::network::{Connections, Kind, Restless};
use xtables::Variant;

use crate::manifests;
use crate::stage::{Place, SERVING, Stage};

/// Between two connections of one client.
const EVERY: Duration = Duration::from_millis(10);
/// Chains of which a list is never whole while somebody else changes anything.
const LEFT_BEHIND: u32 = 20_000;
/// How long after a mode was asked for the agent is killed: before it has noticed, while it writes,
/// and after.
const MOMENTS: [u64; 8] = [2, 8, 15, 25, 40, 60, 90, 150];
/// How long after its start each of several agents is killed: from before it has read anything until
/// after it has written all.
const AFTER_START: [u64; 10] = [20, 60, 100, 150, 200, 260, 330, 410, 500, 600];

/// Failure story T11 (kubernetes#109286): whenever it is killed, somebody serves, and the next agent
/// ends what was begun.
pub(crate) fn killed_while_switching(variant: Variant) -> Result<()> {
    let mut stage = Stage::start(variant, Mode::Nftables)?;
    let clients = Connections::start(&stage.ways()?, &[Kind::New, Kind::Kept], EVERY)?;
    let mut seen = Vec::new();
    let modes = [Mode::Iptables, Mode::Nftables].into_iter().cycle();
    for (mode, moment) in modes.zip(MOMENTS) {
        stage.set_mode(mode)?;
        // What is tried here is a moment, whatever happens then.
        std::thread::sleep(Duration::from_millis(moment));
        stage.kill_agent()?;
        let places = stage.places()?;
        ensure!(!places.is_empty(), "nobody serves after {moment} ms");
        seen.push(places);
        stage.start_agent()?;
        stage.expect_mode(mode)?;
        stage.expect_only(match mode {
            Mode::Iptables => Place::Iptables(variant),
            _ => Place::Nftables,
        })?;
    }
    println!("    it was killed with ours in {seen:?}");
    clients.finish_unharmed()
}

/// As failure story T42, in this mode: what is there already is not written again.
pub(crate) fn restarted(variant: Variant) -> Result<()> {
    let mut stage = Stage::start(variant, Mode::Iptables)?;
    let clients = Connections::start(&stage.ways()?, &[Kind::New, Kind::Kept], EVERY)?;
    stage.kill_agent()?;
    stage.start_agent()?;
    stage.expect_mode(Mode::Iptables)?;
    let written = stage.agent()?.metric("signpost_elements_written_total")?;
    ensure!(written == 0.0, "{written} rules were written");
    clients.finish_unharmed()
}

/// Failure story T86: while another process changes an unrelated table all the time, every look at
/// nf_tables is interrupted. An agent that started then wrote everything to legacy tables, and left
/// what it had where it was; a later one waited for the others to rest.
pub(crate) fn restarted_among_the_restless() -> Result<()> {
    let variant = Variant::NfTables;
    let mut stage = Stage::start(variant, Mode::Iptables)?;
    let clients = Connections::start(&stage.ways()?, &[Kind::New, Kind::Kept], EVERY)?;
    stage.kill_agent()?;
    stage.leave_behind(LEFT_BEHIND)?;
    let others = Restless::start(stage.node()?)?;
    stage.start_agent()?;
    stage.expect_mode(Mode::Iptables)?;
    others.finish()?;
    stage.expect_only(Place::Iptables(variant))?;
    clients.finish_unharmed()
}

/// Failure story T98: each agent finds what the one before has left of a change, and other changes to
/// make.
pub(crate) fn killed_again_and_again((mode, variant): (Mode, Variant)) -> Result<()> {
    let mut stage = Stage::start(variant, mode)?;
    let clients = Connections::start(&stage.ways()?, &[Kind::New, Kind::Kept], EVERY)?;
    let some = [&SERVING[..1], &SERVING].into_iter().cycle();
    for (moment, pods) in AFTER_START.into_iter().zip(some) {
        stage.kill_agent()?;
        for (name, manifest) in manifests::other_endpoints(manifests::OTHERS, pods) {
            stage.apply(&name, &manifest)?;
        }
        stage.start_agent()?;
        // What is tried here is a moment, whatever happens then.
        std::thread::sleep(Duration::from_millis(moment));
    }
    for _ in 0..2 {
        stage.kill_agent()?;
        stage.start_agent()?;
        stage.expect_mode(mode)?;
    }
    let written = stage.agent()?.metric("signpost_elements_written_total")?;
    ensure!(written == 0.0, "{written} rules were not as they should be");
    clients.finish_unharmed()
}
