//! kube-proxy and Signpost's agent on one node: detection, and handovers in both directions with
//! continuous traffic.

mod by_profile;
mod conversation;
mod crowd;
mod detection;
mod every_write;
mod handovers;
mod host_ports;
mod interruptions;
mod ipvs;
mod stage;
mod virtual_servers;

use std::env;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use libtest_mimic::{Arguments, Trial};
use tests::agent_tracer;
use tests::control_plane::build_programs;
use tests::extent::is_exhaustive;
use tests::ipvs_support::find_ipvs;
use tests::network::enter_private_namespaces;
use tests::trial::trial;
use xtables::Variant;

use stage::{Mode, Stage};

/// The tests that take a kernel with IPVS.
const OF_MODE_IPVS: [&str; 7] = [
    "t177_virtual_servers_of_kube_proxy_in_mode_ipvs_end_with_their_connections_after_a_takeover",
    "nothing_is_lost_from_kube_proxy_in_mode_ipvs_to_signpost_and_back",
    "nothing_is_lost_from_mode_ipvs_of_kube_proxy_to_that_of_signpost",
    "t324_hits_where_node_ports_would_close_stop_a_takeover_from_mode_ipvs",
    "a_handback_from_mode_ipvs_that_was_cut_short_is_completed",
    "t317_t318_from_mode_ipvs_a_port_changes_hands_where_signposts_rules_are_not_there",
    "t363_a_takeover_that_is_killed_after_any_write_is_completed::from_ipvs",
];

/// The tests that take a kernel with the legacy variant of iptables.
const OF_LEGACY_IPTABLES: [&str; 5] = [
    "t171_services_change_hands_from_legacy_iptables_as_the_profile_says",
    "nothing_is_lost_from_kube_proxy_in_mode_iptables_of_the_legacy_variant_to_signpost",
    "t319_a_host_port_in_legacy_iptables_that_goes_to_a_pod_is_named",
    "t363_a_takeover_that_is_killed_after_any_write_is_completed::from_legacy_iptables",
    "t392_a_handback_waits_until_kube_proxy_has_filled_its_chains::legacy",
];

/// The tests that stop an agent after each write, and those of them that `make test` leaves out: a takeover takes
/// half a minute.
const OF_EVERY_WRITE: [&str; 4] = [
    "t363_a_takeover_that_is_killed_after_any_write_is_completed::from_iptables",
    OF_MODE_IPVS[6],
    OF_EXHAUSTION[0],
    OF_EXHAUSTION[1],
];
const OF_EXHAUSTION: [&str; 2] = [
    "t363_a_takeover_that_is_killed_after_any_write_is_completed::from_nftables",
    OF_LEGACY_IPTABLES[3],
];

/// The tests that take the real CNI plugin portmap.
const OF_PORTMAP: [&str; 3] = [
    "t317_t318_a_profile_does_not_give_a_port_of_a_service_to_a_pod",
    OF_LEGACY_IPTABLES[2],
    OF_MODE_IPVS[5],
];

type Test = fn(&mut Stage) -> Result<()>;

fn main() -> Result<()> {
    build_programs()?;
    enter_private_namespaces()?;
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let assets = env::var_os("KUBEBUILDER_ASSETS");
    if assets.is_some_and(|folder| !Path::new(&folder).join("kube-proxy").exists()) {
        let name = "SKIPPED_all_handovers_for_want_of_kube-proxy_in_KUBEBUILDER_ASSETS";
        let skipped = Trial::test(name, || Ok(())).with_ignored_flag(true);
        libtest_mimic::run(&arguments, vec![skipped]).exit();
    }
    let missing = find_ipvs(&["rr"])?;
    if let Some(why) = &missing {
        println!("SKIPPED: takeovers from kube-proxy's mode ipvs: {why}");
    }
    let has_legacy = Path::new("/proc/net/ip_tables_names").exists();
    if !has_legacy {
        println!("SKIPPED: takeovers from legacy iptables: this kernel has none");
    }
    let missing_plugin = host_ports::missing();
    if let Some(why) = &missing_plugin {
        println!("SKIPPED: host ports of plugin portmap: {why}");
    }
    let untraceable = agent_tracer::obstacle();
    if let Some(why) = &untraceable {
        println!("SKIPPED: takeovers that are killed after every write: {why}");
    }
    let tests: [(&str, Test); 31] = [
        (
            "t17_a_kube_proxy_beside_signpost_is_named_and_neither_fights",
            detection::kube_proxy_beside_signpost,
        ),
        (
            "the_chains_of_a_kubelet_are_no_proxy",
            detection::kubelet_chains,
        ),
        (
            "t18_nothing_is_lost_from_kube_proxy_to_signpost_and_back",
            handovers::there_and_back,
        ),
        (
            "nothing_is_lost_from_kube_proxy_in_mode_iptables_to_signpost",
            handovers::from_iptables,
        ),
        (
            "a_takeover_beside_a_running_kube_proxy_is_refused_and_what_comes_back_is_reported",
            handovers::kube_proxy_still_runs,
        ),
        (
            "t171_services_change_hands_as_the_profile_says_and_no_connection_is_lost",
            by_profile::from_nftables,
        ),
        (
            "t171_services_change_hands_from_mode_iptables_as_the_profile_says",
            by_profile::from_iptables,
        ),
        (
            "t330_rules_of_a_kube_proxy_that_was_started_again_stay",
            by_profile::kube_proxy_started_again,
        ),
        (
            "t197_a_profile_does_not_take_over_where_pods_are_outside_of_the_pod_cidrs",
            by_profile::pods_outside_of_pod_cidrs,
        ),
        (
            "a_handback_without_kube_proxy_is_refused",
            handovers::no_kube_proxy_to_hand_back_to,
        ),
        (
            "a_takeover_that_was_cut_short_is_completed",
            interruptions::takeover_cut_short,
        ),
        (
            "a_handback_that_was_cut_short_is_completed",
            interruptions::handback_cut_short,
        ),
        (
            "t392_a_handback_waits_until_kube_proxy_has_filled_its_chains::nf_tables",
            |stage| interruptions::kube_proxy_with_empty_chains(stage, Variant::NfTables),
        ),
        (
            "t69_what_a_takeover_would_close_is_named_with_who_uses_it",
            handovers::node_ports_that_close,
        ),
        (OF_PORTMAP[0], host_ports::by_profile),
        (
            "t320_a_host_port_that_may_go_to_a_pod_is_named_and_stops_nothing",
            host_ports::in_a_table_of_its_own,
        ),
        (OF_EXHAUSTION[0], |stage| {
            every_write::is_completed(stage, Mode::Nftables)
        }),
        (OF_EVERY_WRITE[0], |stage| {
            every_write::is_completed(stage, Mode::Iptables)
        }),
        (OF_MODE_IPVS[0], ipvs::ended_with_their_connections),
        (OF_MODE_IPVS[1], ipvs::there_and_back),
        (OF_MODE_IPVS[2], ipvs::into_mode_ipvs),
        (OF_MODE_IPVS[3], ipvs::hits_where_node_ports_close),
        (OF_MODE_IPVS[4], ipvs::handback_cut_short),
        (OF_MODE_IPVS[5], host_ports::from_ipvs),
        (OF_MODE_IPVS[6], |stage| {
            every_write::is_completed(stage, Mode::Ipvs)
        }),
        // Last, because tables of legacy iptables stay in a network namespace.
        (OF_LEGACY_IPTABLES[0], by_profile::from_legacy_iptables),
        (OF_LEGACY_IPTABLES[1], handovers::from_legacy_iptables),
        (OF_LEGACY_IPTABLES[2], host_ports::in_legacy_iptables),
        (OF_LEGACY_IPTABLES[3], |stage| {
            every_write::is_completed(stage, Mode::LegacyIptables)
        }),
        (OF_LEGACY_IPTABLES[4], |stage| {
            interruptions::kube_proxy_with_empty_chains(stage, Variant::Legacy)
        }),
        (
            "what_signpost_may_not_remove_is_named_with_what_removes_it",
            detection::what_signpost_may_not_remove,
        ),
    ];
    let shared: Arc<Mutex<Option<Stage>>> = Arc::default();
    let trials = tests.map(|(name, test)| {
        let shared = Arc::clone(&shared);
        trial(name, move || {
            let mut stage = shared.lock().unwrap_or_else(PoisonError::into_inner);
            if stage.is_none() {
                *stage = Some(Stage::start()?);
            }
            let stage = stage.as_mut().context("it was just made")?;
            stage.clear()?;
            test(stage)
        })
        .with_ignored_flag(
            OF_MODE_IPVS.contains(&name) && missing.is_some()
                || OF_LEGACY_IPTABLES.contains(&name) && !has_legacy
                || OF_EVERY_WRITE.contains(&name) && untraceable.is_some()
                || OF_EXHAUSTION.contains(&name) && !is_exhaustive()
                || OF_PORTMAP.contains(&name) && missing_plugin.is_some(),
        )
    });
    let conclusion = libtest_mimic::run(&arguments, trials.into());
    // `exit` drops nothing.
    *shared.lock().unwrap_or_else(PoisonError::into_inner) = None;
    conclusion.exit();
}
