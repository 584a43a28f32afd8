//! Obstacles to mode iptables.

use std::fs::{self, File};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::condition::reason::{MODE_NOT_HONOURED, XTABLES_LOCK_HELD};
use crds::condition::{FEATURES_HONOURED, IPV4_PROGRAMMED, IPV6_PROGRAMMED, READY};
use crds::profile::mode::Mode;
use rustix::fs::{FlockOperation, flock};
use tests::network::{Connections, Kind};
use xtables::Variant;

use crate::manifests::{endpoints, service};
use crate::stage::{Place, SERVING, Stage};

/// The interval between two connections of one client.
const EVERY: Duration = Duration::from_millis(10);

/// The metric of failed rounds in one family, which is sufficient.
const FAILED: &str = "signpost_syncs_total{ip_family=\"IPv4\",outcome=\"failed\"}";
/// The number of rounds of both families to wait for: more than the pause between two attempts.
const CHECKS: f64 = 26.0;

/// Failure story T12 (kubernetes#140898): a switch to a mode that cannot work does not start, is
/// reported, and no client notices anything.
pub(crate) fn lock_that_cannot_be_opened() -> Result<()> {
    let stage = Stage::start(Variant::Legacy, Mode::Nftables)?;
    let clients = Connections::start(&stage.ways()?, &[Kind::New, Kind::Kept], EVERY)?;
    fs::create_dir(stage.lock()?)?;
    stage.set_mode(Mode::Iptables)?;
    let said = stage.expect_condition(FEATURES_HONOURED, "False")?;
    ensure!(said.reason == MODE_NOT_HONOURED.name, "{said:?}");
    let named = said.message.contains("mode iptables") && said.message.contains("xtables.lock");
    ensure!(named, "{said:?}");
    stage.expect_mode(Mode::Nftables)?;
    stage.expect_only(Place::Nftables)?;
    ensure!(stage.agent()?.get("/proxyMode")? == "nftables");
    // The agent continues to apply changes.
    stage.apply("web-endpoints", &endpoints("web", &SERVING[..1]))?;
    stage.expect_answers(&SERVING[..1])?;
    stage.apply("web-endpoints", &endpoints("web", &SERVING))?;
    stage.expect_answers(&SERVING)?;
    // The agent retries from time to time, which does not count as a failure.
    let syncs = || stage.agent()?.metric("signpost_syncs_total");
    let failed = || stage.agent()?.metric(FAILED);
    let (syncs_before, failed_before) = (syncs()?, failed()?);
    stage.agent()?.wait_for("periodic checks", |_| {
        Ok((syncs()? > syncs_before + CHECKS).then_some(()))
    })?;
    let more = failed()? - failed_before;
    ensure!(more == 0.0, "{more} syncs failed");
    // The agent notices by itself when the obstacle is gone.
    fs::remove_dir(stage.lock()?)?;
    stage.expect_condition(FEATURES_HONOURED, "True")?;
    stage.expect_mode(Mode::Iptables)?;
    stage.expect_only(Place::Iptables(Variant::Legacy))?;
    clients.finish_unharmed()
}

/// The same for a mode that worked until then: its leftovers in the kernel cannot be removed until
/// the lock can be opened again. The agent reports this, does not treat the leftovers as damage by
/// another program, and does not return to the mode.
pub(crate) fn lock_that_is_taken_away() -> Result<()> {
    let stage = Stage::start(Variant::Legacy, Mode::Iptables)?;
    let clients = Connections::start(&stage.ways()?, &[Kind::New, Kind::Kept], EVERY)?;
    fs::remove_file(stage.lock()?)?;
    fs::create_dir(stage.lock()?)?;
    // Without changes the agent does not need the lock.
    stage.apply("another", &service("another", 250))?;
    stage.apply("another-endpoints", &endpoints("another", &SERVING[..1]))?;
    stage.expect_mode(Mode::Nftables)?;
    let said = stage.expect_condition(FEATURES_HONOURED, "False")?;
    ensure!(said.reason == MODE_NOT_HONOURED.name, "{said:?}");
    for part in [
        "nftables is used",
        "rules of mode iptables are still in the kernel",
        "xtables.lock",
    ] {
        ensure!(said.message.contains(part), "no {part:?} in {said:?}");
    }
    // Other programs keep using their tables, and the agent retries soon.
    stage.set_others(Variant::Legacy, false)?;
    stage.set_others(Variant::Legacy, true)?;
    let syncs = || stage.agent()?.metric("signpost_syncs_total");
    let before = syncs()?;
    stage.agent()?.wait_for("periodic checks", |_| {
        Ok((syncs()? > before + CHECKS).then_some(()))
    })?;
    stage.expect_mode(Mode::Nftables)?;
    stage.apply("web-endpoints", &endpoints("web", &SERVING[..1]))?;
    stage.expect_answers(&SERVING[..1])?;
    stage.apply("web-endpoints", &endpoints("web", &SERVING))?;
    stage.expect_answers(&SERVING)?;
    // Both existed at the same time: the active mode, and the leftovers of the other.
    let places = [Place::Nftables, Place::Iptables(Variant::Legacy)];
    ensure!(stage.places()? == places.into(), "{:?}", stage.places()?);

    fs::remove_dir(stage.lock()?)?;
    stage.expect_condition(FEATURES_HONOURED, "True")?;
    stage.expect_mode(Mode::Iptables)?;
    stage.expect_only(Place::Iptables(Variant::Legacy))?;
    stage.expect_answers(&SERVING)?;
    let drifts = stage.agent()?.metric("signpost_drift_total")?;
    ensure!(drifts == 0.0, "{drifts} damages that no program caused");
    clients.finish_unharmed()
}

/// Failure story T37 (kubernetes#105742, vpc-cni#2948): an agent that waits in vain for the lock
/// reports for how long and which process holds it, and finishes as soon as the lock is free.
pub(crate) fn lock_that_is_held() -> Result<()> {
    let stage = Stage::start(Variant::Legacy, Mode::Iptables)?;
    let lock = File::open(stage.lock()?).context("the agent has made it")?;
    flock(&lock, FlockOperation::LockExclusive)?;
    stage.apply("web-endpoints", &endpoints("web", &SERVING[..1]))?;
    let said = stage.expect_condition(READY, "False")?;
    ensure!(said.reason == XTABLES_LOCK_HELD.name, "{said:?}");
    ensure!(said.message.contains("xtables.lock"), "{said:?}");
    let holder = format!("process {}", std::process::id());
    ensure!(said.message.contains(&holder), "{said:?}");
    for family in [IPV4_PROGRAMMED, IPV6_PROGRAMMED] {
        let said = stage.expect_condition(family, "False")?;
        ensure!(said.reason == XTABLES_LOCK_HELD.name, "{said:?}");
    }
    drop(lock);
    stage.expect_condition(READY, "True")?;
    stage.expect_answers(&SERVING[..1])?;
    let agent = stage.agent()?;
    let status = agent.status()?.unwrap_or_default();
    let iptables = status.iptables.context("it tells of iptables")?;
    let longest = iptables.longest_lock_wait.duration();
    ensure!(longest >= Duration::from_secs(5), "{longest:?}");
    let name = "signpost_xtables_lock_wait_seconds_sum";
    ensure!(agent.metric(name)? >= 5.0, "{name}");
    let name = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total";
    ensure!(agent.metric(name)? >= 2.0, "{name}");
    Ok(())
}

/// Failure story T30 (spatiumddi#382), in variant nf_tables: a flush of the rules that lead to
/// Signpost's chains is noticed.
pub(crate) fn flushed_chain() -> Result<()> {
    let stage = Stage::start(Variant::NfTables, Mode::Iptables)?;
    stage.expect_answers(&SERVING)?;
    let drifts = || stage.agent()?.metric("signpost_drift_total");
    for damage in ["flush chain ip nat PREROUTING", "flush table ip6 nat"] {
        let before = drifts()?;
        stage.node()?.nft(&[damage])?;
        stage
            .agent()?
            .wait_for("a repair", |_| Ok((drifts()? > before).then_some(())))?;
        stage.expect_answers(&SERVING)?;
    }
    Ok(())
}
