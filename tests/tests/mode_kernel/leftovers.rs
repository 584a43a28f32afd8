//! Leftovers of agents, and their removal.

use std::time::Duration;

use anyhow::{Result, ensure};
use crds::condition::READY;
use crds::condition::reason::HANDED_BACK;
use crds::profile::mode::Mode;
use tests::network::{Connections, Kind};
use xtables::Variant;

use crate::stage::{Place, SERVING, Stage};

/// The interval between two connections of one client.
const EVERY: Duration = Duration::from_millis(10);

/// After `cleanup` in any mode nothing of Signpost is left, and other programs' rules stay.
pub(crate) fn cleanup(variant: Variant) -> Result<()> {
    let mut stage = Stage::start(variant, Mode::Iptables)?;
    stage.kill_agent()?;
    ensure!(stage.places()? == [Place::Iptables(variant)].into());
    stage.clean_up()?;
    ensure!(stage.places()?.is_empty(), "{:?}", stage.places()?);
    let others = stage
        .node()?
        .enter(|| xtables::observe_variants("SIGNPOST-"))??;
    ensure!(others.of(variant).rules == 2, "{others:?}");
    stage.clean_up()
}

/// Failure story T18 in this mode: after a handback nothing of Signpost is left, and a takeover
/// restores it.
pub(crate) fn handback(variant: Variant) -> Result<()> {
    let stage = Stage::start(variant, Mode::Iptables)?;
    // There is no other proxy to hand back to.
    stage.run(&["handback", "--force"])?;
    ensure!(stage.places()?.is_empty(), "{:?}", stage.places()?);
    let said = stage.expect_condition(READY, "False")?;
    ensure!(said.reason == HANDED_BACK.name, "{said:?}");
    stage.run(&["takeover"])?;
    stage.expect_mode(Mode::Iptables)?;
    stage.expect_only(Place::Iptables(variant))?;
    stage.expect_answers(&SERVING)
}

/// Failure story T36 (cilium#28260): the host has switched to the other variant meanwhile. The
/// leftovers of an earlier agent in the one variant are removed once the other serves.
pub(crate) fn other_variant() -> Result<()> {
    let mut stage = Stage::start(Variant::Legacy, Mode::Iptables)?;
    let clients = Connections::start(&stage.ways()?, &[Kind::New, Kind::Kept], EVERY)?;
    stage.kill_agent()?;
    stage.set_others(Variant::Legacy, false)?;
    stage.set_others(Variant::NfTables, true)?;
    ensure!(stage.places()? == [Place::Iptables(Variant::Legacy)].into());
    stage.start_agent()?;
    stage.expect_mode(Mode::Iptables)?;
    stage.expect_only(Place::Iptables(Variant::NfTables))?;
    clients.finish_unharmed()
}
