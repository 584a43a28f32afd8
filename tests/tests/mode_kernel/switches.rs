//! Switches from one mode to another and back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crds::condition::{FEATURES_HONOURED, IPTABLES_SPLIT};
use crds::node_proxy::IptablesVariant;
use crds::profile::mode::Mode;
use tests::network::{Connections, Kind};
use xtables::Variant;

use crate::manifests::{self, endpoints};
use crate::stage::{Place, SERVING, SILENCE, Stage};

/// The interval between two connections of one client.
const EVERY: Duration = Duration::from_millis(10);

/// Failure story T4: the reported mode is the real one.
pub(crate) fn serves(variant: Variant) -> Result<()> {
    let stage = Stage::start(variant, Mode::Iptables)?;
    stage.expect_answers(&SERVING)?;
    stage.apply("web-endpoints", &endpoints("web", &SERVING[..1]))?;
    stage.expect_answers(&SERVING[..1])?;
    ensure!(stage.places()? == [Place::Iptables(variant)].into());
    let agent = stage.agent()?;
    let status = agent.status()?.context("it says how it is")?;
    let iptables = status.iptables.context("it says which variant it uses")?;
    let expected = match variant {
        Variant::NfTables => IptablesVariant::NfTables,
        Variant::Legacy => IptablesVariant::Legacy,
    };
    ensure!(iptables.variant == expected, "{iptables:?}");
    ensure!(agent.get("/proxyMode")? == "iptables");
    for table in ["nat", "filter"] {
        let name = "kubeproxy_sync_proxy_rules_iptables_total";
        let series = format!("{name}{{table=\"{table}\",ip_family=\"IPv4\"}}");
        ensure!(agent.metric(&series)? > 100.0, "{series}");
    }
    stage.expect_condition(FEATURES_HONOURED, "True")?;
    stage.expect_condition(IPTABLES_SPLIT, "False")?;
    Ok(())
}

/// Failure stories T4, T9 and T10 (talos#8928, kubernetes#75360, kubernetes#102314): no client
/// waits during a switch, connections survive, and nothing of the previous mode is left.
pub(crate) fn there_and_back(variant: Variant) -> Result<()> {
    let stage = Stage::start(variant, Mode::Nftables)?;
    let clients = Connections::start(&stage.ways()?, &[Kind::New, Kind::Kept], EVERY)?;
    let beside = Connections::start(&stage.ways_beside()?, &[Kind::Kept], EVERY)?;
    for _ in 0..2 {
        stage.set_mode(Mode::Iptables)?;
        stage.expect_mode(Mode::Iptables)?;
        stage.expect_only(Place::Iptables(variant))?;
        stage.expect_condition(IPTABLES_SPLIT, "False")?;
        stage.set_mode(Mode::Nftables)?;
        stage.expect_mode(Mode::Nftables)?;
        stage.expect_only(Place::Nftables)?;
        stage.agent()?.wait_for("the condition to go", |agent| {
            Ok(agent.condition(IPTABLES_SPLIT)?.is_none().then_some(()))
        })?;
        let status = stage.agent()?.status()?.unwrap_or_default();
        ensure!(status.iptables.is_none(), "{:?}", status.iptables);
    }
    clients.finish_unharmed_within(SILENCE, beside)
}

/// Failure story T175: while a switch is under way, each Service is in the old mode or in both.
pub(crate) fn in_parts(variant: Variant) -> Result<()> {
    let stage = Stage::build(variant)?;
    for (name, manifest) in manifests::crowd() {
        stage.apply(&name, &manifest)?;
    }
    let stage = stage.serve(Mode::Nftables)?;
    let clients = Connections::start(&stage.ways()?, &[Kind::New, Kind::Kept], EVERY)?;
    let beside = Connections::start(&stage.ways_beside()?, &[Kind::Kept], EVERY)?;
    for (mode, place) in [
        (Mode::Iptables, Place::Iptables(variant)),
        (Mode::Nftables, Place::Nftables),
    ] {
        let before = partial_syncs(&stage)?;
        stage.set_mode(mode)?;
        stage.expect_mode(mode)?;
        stage.expect_only(place)?;
        let parts = partial_syncs(&stage)? - before;
        // In variant legacy the kernel takes whole tables, so a part is larger than this crowd.
        let least = match place {
            Place::Iptables(Variant::Legacy) => 0.0,
            _ => 2.0,
        };
        ensure!(
            parts >= least,
            "{parts} parts in both families: {}",
            stage.agent()?.get("/debug/syncs")?
        );
    }
    clients.finish_unharmed_within(SILENCE, beside)
}

/// Returns how many syncs have programmed a part, in both families.
fn partial_syncs(stage: &Stage) -> Result<f64> {
    let of = |family| format!("signpost_syncs_total{{ip_family=\"{family}\",outcome=\"partial\"}}");
    let agent = stage.agent()?;
    Ok(agent.metric(&of("IPv4"))? + agent.metric(&of("IPv6"))?)
}
