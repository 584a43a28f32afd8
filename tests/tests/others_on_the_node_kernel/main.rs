//! Other processes and rules on a node that handle the same packets.

mod affinity;
mod exhausted_affinity;
mod host_port;
mod local_cluster_ip;
mod stage;

use anyhow::Result;
use libtest_mimic::Arguments;
use tests::ipvs_support::find_ipvs;
use tests::network::enter_private_namespaces;
use tests::trial::trial;

use crate::host_port::{Written, services_come_first};

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let missing = find_ipvs(&["rr"])?;
    if let Some(why) = &missing {
        println!("SKIPPED: full affinity maps of mode ipvs: {why}");
    }
    let trials = vec![
        trial(
            "nftables/a_process_on_every_address_does_not_answer_on_a_cluster_ip",
            || local_cluster_ip::strangers_are_refused(stage::nftables),
        ),
        trial(
            "iptables/a_process_on_every_address_does_not_answer_on_a_cluster_ip",
            || local_cluster_ip::strangers_are_refused(stage::iptables),
        ),
        trial(
            "nftables/a_dns_cache_on_the_cluster_ip_of_dns_goes_on_answering",
            || local_cluster_ip::a_cache_answers(stage::nftables),
        ),
        trial(
            "iptables/a_dns_cache_on_the_cluster_ip_of_dns_goes_on_answering",
            || local_cluster_ip::a_cache_answers(stage::iptables),
        ),
        trial(
            "t77_a_service_that_is_flooded_takes_affinity_from_no_other",
            affinity::a_flood_of_clients,
        ),
        trial(
            "ipvs/t77_a_service_whose_maps_are_full_takes_affinity_from_no_other",
            affinity::full_maps_of_mode_ipvs,
        )
        .with_ignored_flag(missing.is_some()),
        trial(
            "t93_a_service_whose_affinity_is_exhausted_is_named_as_long_as_it_is",
            exhausted_affinity::it_is_reported_as_long_as_it_lasts,
        ),
        trial(
            "nftables/t92_a_service_comes_before_a_host_port_in_a_table_of_its_own",
            || services_come_first(stage::nftables, Written::TableOfItsOwn),
        ),
        trial(
            "nftables/t92_a_service_comes_before_a_host_port_of_iptables_nft",
            || services_come_first(stage::nftables, Written::With("iptables-nft")),
        ),
        trial(
            "nftables/t92_a_service_comes_before_a_host_port_of_iptables_legacy",
            || services_come_first(stage::nftables, Written::With("iptables-legacy")),
        ),
        trial(
            "iptables/t92_a_service_comes_before_a_host_port_of_iptables_nft",
            || services_come_first(stage::iptables, Written::With("iptables-nft")),
        ),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
