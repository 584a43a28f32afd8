//! Agents that are killed at bad moments.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use crds::profile::mode::Mode;
use dataplane::Family;
use tests::network::{BusyWriter, Connections, Kind};
use xtables::Variant;

use crate::manifests;
use crate::stage::{Place, SERVING, SILENCE, Stage};

/// The interval between two connections of one client.
const EVERY: Duration = Duration::from_millis(10);
/// The number of chains for which a dump is never consistent while another program writes.
const LEFT_BEHIND: u32 = 20_000;
/// When the agent is killed after a change of the mode: before it has noticed, while it writes, and
/// after.
const MOMENTS: [u64; 8] = [2, 8, 15, 25, 40, 60, 90, 150];
/// When each of several agents is killed after its start: from before it has read anything until
/// after it has written everything.
const AFTER_START: [u64; 10] = [20, 60, 100, 150, 200, 260, 330, 410, 500, 600];

/// Failure story T11 (kubernetes#109286): at any moment one mode serves, and the next agent
/// completes the switch.
pub(crate) fn killed_while_switching(variant: Variant) -> Result<()> {
    let mut stage = Stage::start(variant, Mode::Nftables)?;
    let clients = Connections::start(&stage.ways()?, &[Kind::New, Kind::Kept], EVERY)?;
    let mut seen = Vec::new();
    let modes = [Mode::Iptables, Mode::Nftables].into_iter().cycle();
    for (mode, moment) in modes.zip(MOMENTS) {
        stage.set_mode(mode)?;
        // The fixed delay is the point of this test.
        std::thread::sleep(Duration::from_millis(moment));
        stage.kill_agent()?;
        let places = stage.places()?;
        ensure!(!places.is_empty(), "no mode serves after {moment} ms");
        seen.push(places);
        stage.start_agent()?;
        stage.expect_mode(mode)?;
        stage.expect_only(match mode {
            Mode::Iptables => Place::Iptables(variant),
            _ => Place::Nftables,
        })?;
    }
    println!("    it was killed with Signpost's rules in {seen:?}");
    clients.finish_unharmed()
}

/// Failure story T42 in this mode: existing rules are not written again.
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

/// Failure story T86: while another process continuously changes an unrelated table, every dump of
/// nf_tables is interrupted. An agent that started then wrote everything to legacy tables and left
/// its earlier rules behind; a later version waited for the other process to stop. One after that
/// failed again and again before it was ready, and each time paused for up to seconds.
pub(crate) fn restarted_among_the_restless() -> Result<()> {
    let variant = Variant::NfTables;
    let mut stage = Stage::start(variant, Mode::Iptables)?;
    let clients = Connections::start(&stage.ways()?, &[Kind::New, Kind::Kept], EVERY)?;
    stage.kill_agent()?;
    stage.leave_behind(LEFT_BEHIND)?;
    let others = BusyWriter::start(stage.node()?)?;
    let began = Instant::now();
    stage.start_agent()?;
    stage.expect_mode(Mode::Iptables)?;
    println!("    it was ready after {:.1?}", began.elapsed());
    for family in Family::ALL {
        let failed = format!("signpost_syncs_total{{ip_family=\"{family}\",outcome=\"failed\"}}");
        let failed = stage.agent()?.metric(&failed)?;
        ensure!(failed == 0.0, "{failed} attempts at {family} failed before");
    }
    others.finish()?;
    stage.expect_only(Place::Iptables(variant))?;
    clients.finish_unharmed()
}

/// Failure story T98: each agent finds an incomplete change of its predecessor, and has other
/// changes to make.
pub(crate) fn killed_again_and_again((mode, variant): (Mode, Variant)) -> Result<()> {
    let stage = Stage::build(variant)?.serve(mode)?;
    kill_again_and_again(stage, mode, manifests::OTHERS, EVERY)
}

/// The same with this many Services besides `shop/web`, and this interval between connections.
pub(crate) fn kill_again_and_again(
    mut stage: Stage,
    mode: Mode,
    others: u8,
    every: Duration,
) -> Result<()> {
    let clients = Connections::start(&stage.ways()?, &[Kind::New, Kind::Kept], every)?;
    let beside = Connections::start(&stage.ways_beside()?, &[Kind::Kept], every)?;
    let some = [&SERVING[..1], &SERVING].into_iter().cycle();
    for (moment, pods) in AFTER_START.into_iter().zip(some) {
        stage.kill_agent()?;
        for (name, manifest) in manifests::other_endpoints(others, pods) {
            stage.apply(&name, &manifest)?;
        }
        stage.start_agent()?;
        // The fixed delay is the point of this test.
        std::thread::sleep(Duration::from_millis(moment));
    }
    for _ in 0..2 {
        stage.kill_agent()?;
        stage.start_agent()?;
        stage.expect_mode(mode)?;
    }
    let written = stage.agent()?.metric("signpost_elements_written_total")?;
    ensure!(written == 0.0, "{written} rules were not as they should be");
    clients.finish_unharmed_within(SILENCE, beside)
}
