//! Other processes and rules on a node that handle the same packets.

mod affinity;
mod exhausted_affinity;
mod firewall;
mod host_port;
mod local_cluster_ip;
mod source_ranges;
mod stage;

use anyhow::Result;
use backend::Backend;
use libtest_mimic::{Arguments, Trial};
use tests::ipvs_support::find_ipvs;
use tests::network::enter_private_namespaces;
use tests::scenario::{RealKernel, Script};
use tests::trial::trial;
use xtables::Variant;

use crate::host_port::{Written, services_come_first};
use crate::local_cluster_ip::{a_cache_answers, strangers_are_refused};

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let locks = tempfile::tempdir()?;
    let lock = locks.path().join("xtables.lock");
    let of_iptables_nft = Written::With(Variant::NfTables);
    let of_iptables_legacy = Written::With(Variant::Legacy);
    let all = [Written::InItsOwnTable, of_iptables_nft, of_iptables_legacy];
    let nft = stage::iptables(Variant::NfTables, &lock);
    let legacy = stage::iptables(Variant::Legacy, &lock);
    let mut trials = [
        in_mode("nftables", stage::nftables, &all),
        in_mode("iptables-nft", nft.clone(), &[of_iptables_nft]),
        in_mode("iptables-legacy", legacy.clone(), &[of_iptables_legacy]),
    ]
    .into_iter()
    .flatten()
    .collect::<Vec<_>>();
    let name = "t77_a_service_that_is_flooded_takes_affinity_from_no_other";
    trials.extend([
        trial(&format!("iptables-nft/{name}"), || {
            affinity::a_flood_in_mode_iptables(nft)
        }),
        trial(&format!("iptables-legacy/{name}"), || {
            affinity::a_flood_in_mode_iptables(legacy)
        }),
    ]);
    let missing = find_ipvs(&["rr"])?;
    if let Some(why) = &missing {
        println!("SKIPPED: the tests of mode ipvs: {why}");
    }
    let mut of_ipvs = in_mode("ipvs", stage::ipvs, &all);
    of_ipvs.push(trial(
        "ipvs/t77_a_service_whose_maps_are_full_takes_affinity_from_no_other",
        affinity::full_maps_of_mode_ipvs,
    ));
    of_ipvs.push(trial(
        "ipvs/t430_services_pass_a_firewall_with_the_rule_that_is_printed",
        firewall::services_pass_with_the_printed_rule,
    ));
    let of_ipvs = of_ipvs.into_iter();
    trials.extend(of_ipvs.map(|trial| trial.with_ignored_flag(missing.is_some())));
    trials.extend([
        trial(name, affinity::a_flood_of_clients),
        trial(
            "t93_a_service_whose_affinity_is_exhausted_is_named_as_long_as_it_is",
            exhausted_affinity::it_is_reported_as_long_as_it_lasts,
        ),
    ]);
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    drop(locks);
    conclusion.exit();
}

/// The tests of every mode; `host_ports` are those that must give way to its Services.
fn in_mode<B: Backend + Send + 'static>(
    mode: &str,
    build: impl Fn(&Script) -> Result<RealKernel<B>> + Clone + Send + 'static,
    host_ports: &[Written],
) -> Vec<Trial> {
    let (strangers, cache, ranges) = (build.clone(), build.clone(), build.clone());
    let mut trials = vec![
        trial(
            &format!("{mode}/a_process_on_every_address_does_not_answer_on_a_cluster_ip"),
            || strangers_are_refused(strangers),
        ),
        trial(
            &format!("{mode}/a_dns_cache_on_the_cluster_ip_of_dns_goes_on_answering"),
            || a_cache_answers(cache),
        ),
        trial(
            &format!("{mode}/t276_clients_in_source_ranges_connect_beside_kube_proxy"),
            || source_ranges::clients_may_connect_beside_kube_proxy(ranges),
        ),
    ];
    for &written in host_ports {
        let build = build.clone();
        trials.push(trial(&format!("{mode}/{}", written.test()), move || {
            services_come_first(build, written)
        }));
    }
    trials
}
