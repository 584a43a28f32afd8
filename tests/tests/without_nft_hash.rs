//! A kernel without an expression that only some Services need (siderolabs/pkgs#951). Runs in the
//! rig of other kernels, where `kernel_rig` unloads `nft_hash`; elsewhere it is built in.

use std::collections::BTreeSet;
use std::env;
use std::time::Duration;

use anyhow::{Result, ensure};
use backend_nftables::open;
use dataplane::{Dataplane, compile};
use libtest_mimic::Arguments;
use reconciler::{FamilyReconciler, Reason, SystemClock};
use testkit::{mk_endpoints, mk_service};
use tests::network::{Network, enter_private_namespaces};
use tests::trial::trial;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let is_missing = env::var_os("SIGNPOST_TESTS_WITHOUT_NFT_HASH").is_some();
    let test = trial(
        "t26_without_an_expression_only_the_services_that_need_it_are_held_back",
        only_affinity_is_lost,
    );
    let trials = vec![test.with_ignored_flag(!is_missing)];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn only_affinity_is_lost() -> Result<()> {
    let mut network = Network::new()?;
    let [namespace] = network.add_namespaces(["kernel"])?;
    let mut dataplane = Dataplane::default();
    for number in 1..=20 {
        let mut service = mk_service(&format!("shop/service-{number}"))
            .cluster_ip(&format!("10.96.0.{number}"))
            .port("http", 80);
        if number % 7 == 0 {
            service = service.client_ip_affinity(Duration::from_secs(600));
        }
        let endpoints = mk_endpoints().tcp("http").ready("10.0.1.5:8080", "node-1");
        let (node, config) = (dataplane.node(), dataplane.config());
        let rules = compile(&service.build(), &endpoints.build(), node, config);
        dataplane.set(rules.into());
    }
    let [ipv4, _] = namespace.enter(open)??;
    let mut family = FamilyReconciler::new(ipv4);
    let sync = family.sync(&dataplane, Reason::Startup, &SystemClock);
    let held_back: BTreeSet<String> = sync
        .quarantined
        .iter()
        .map(|quarantined| quarantined.service.to_string())
        .collect();
    let expected = ["shop/service-14", "shop/service-7"].map(str::to_owned);
    ensure!(held_back == expected.into(), "{held_back:?} in {sync}");
    let listed = namespace.nft(&["list", "map", "ip", "signpost", "services"])?;
    for number in (1..=20).filter(|number| number % 7 != 0) {
        let element = format!("10.96.0.{number} . tcp . 80 : 1 . 0x03000001");
        ensure!(listed.contains(&element), "no {element} in:\n{listed}");
    }
    Ok(())
}
