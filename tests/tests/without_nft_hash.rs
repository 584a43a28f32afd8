//! A kernel without an expression that only some Services need (siderolabs/pkgs#951). Runs in the
//! rig of other kernels, where `kernel_rig` unloads `nft_hash`; elsewhere it is built in.

use std::collections::BTreeSet;
use std::env;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use backend::Backend;
use dataplane::{Dataplane, Mode, compile};
use libtest_mimic::Arguments;
use reconciler::{FamilyReconciler, FamilySync, Reason, SystemClock};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};
use tests::ipvs_support::find_ipvs;
use tests::network::{Network, enter_private_namespaces};
use tests::trial::trial;

/// The Services, of which every [`STICKY`]th has session affinity.
const SERVICES: u8 = 20;
const STICKY: u8 = 7;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let is_missing = env::var_os("SIGNPOST_TESTS_WITHOUT_NFT_HASH");
    let trials = vec![
        trial(
            "t26_without_an_expression_only_the_services_that_need_it_are_held_back",
            only_affinity_is_lost,
        )
        .with_ignored_flag(is_missing.is_none()),
        trial(
            "t316_in_mode_ipvs_without_an_expression_only_the_services_that_need_it_are_held_back",
            only_affinity_is_lost_in_mode_ipvs,
        )
        .with_ignored_flag(is_missing.is_none() || find_ipvs(&["rr"])?.is_some()),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn only_affinity_is_lost() -> Result<()> {
    let mut network = Network::new()?;
    let [namespace] = network.add_namespaces(["kernel"])?;
    let [ipv4, _] = namespace.enter(backend_nftables::open)??;
    let mut family = FamilyReconciler::new(ipv4);
    let sync = sync_all(&mut family, &desired(Mode::Nftables), Reason::Startup);
    expect_those_with_affinity(&sync)?;
    let listed = namespace.nft(&["list", "map", "ip", "signpost", "services"])?;
    for number in without_affinity() {
        let element = format!("10.96.0.{number} . tcp . 80 : 1 . 0x03000001");
        ensure!(listed.contains(&element), "no {element} in:\n{listed}");
    }
    Ok(())
}

/// The routing rule and the virtual servers come before the table: nothing of a Service that the
/// table cannot serve may be left of them, nor may the kernel be read again and again for its sake.
fn only_affinity_is_lost_in_mode_ipvs() -> Result<()> {
    let mut network = Network::new()?;
    let [namespace] = network.add_namespaces(["kernel"])?;
    // Settings are those of the namespace of the thread that writes them.
    namespace.enter(|| -> Result<()> {
        let [ipv4, _] = backend_ipvs::open(Path::new("/proc/sys"))?;
        let mut family = FamilyReconciler::with_modes((Mode::Ipvs, ipv4), Vec::new());
        let desired = desired(Mode::Ipvs);
        for reason in [Reason::Startup, Reason::Timer] {
            expect_those_with_affinity(&sync_all(&mut family, &desired, reason))?;
        }
        Ok(())
    })??;
    let listed = namespace.nft(&["list", "map", "ip", "signpost-ipvs", "services"])?;
    for number in 1..=SERVICES {
        let is_listed = listed.contains(&format!("10.96.0.{number} . tcp . 80 "));
        ensure!(
            is_listed == (number % STICKY != 0),
            "Service {number} is wrong in:\n{listed}"
        );
    }
    Ok(())
}

/// The last of the syncs that it takes.
fn sync_all<B: Backend>(
    family: &mut FamilyReconciler<B>,
    desired: &Dataplane,
    reason: Reason,
) -> Arc<FamilySync> {
    let mut sync = family.sync(desired, reason, &SystemClock);
    while family.is_unfinished() {
        sync = family.sync(desired, Reason::Continued, &SystemClock);
    }
    sync
}

fn without_affinity() -> impl Iterator<Item = u8> {
    (1..=SERVICES).filter(|number| number % STICKY != 0)
}

fn desired(mode: Mode) -> Dataplane {
    let config = mk_config().mode(mode);
    let mut dataplane = Dataplane::new(mk_node(1).build(), config.build());
    for number in 1..=SERVICES {
        let mut service = mk_service(&format!("shop/service-{number}"))
            .cluster_ip(&format!("10.96.0.{number}"))
            .port("http", 80);
        if number % STICKY == 0 {
            service = service.client_ip_affinity(Duration::from_secs(600));
        }
        let endpoints = mk_endpoints().tcp("http").ready("10.0.1.5:8080", "node-1");
        let (node, config) = (dataplane.node(), dataplane.config());
        let rules = compile(&service.build(), &endpoints.build(), node, config);
        dataplane.set(rules.into());
    }
    dataplane
}

fn expect_those_with_affinity(sync: &FamilySync) -> Result<()> {
    let quarantined = sync.quarantined.iter();
    let held_back: BTreeSet<String> = quarantined.map(|one| one.service.to_string()).collect();
    let expected = ["shop/service-14", "shop/service-7"].map(str::to_owned);
    ensure!(held_back == expected.into(), "{held_back:?} in {sync}");
    Ok(())
}
