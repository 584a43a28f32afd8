//! The agent and the conntrack table of a real kernel: clients that keep their source port while
//! endpoints change, a table that is nearly full, and sysctls that can or cannot be written.

mod clients;
mod interlude;
mod settings;
mod stage;
mod stale;
mod table;
mod tenant;

use anyhow::Result;
use crds::profile::mode::Mode;
use libtest_mimic::{Arguments, Trial};
use tests::ipvs_support::find_ipvs;
use tests::network::enter_private_namespaces;
use tests::trial::trial;
use xtables::Variant;

use crate::stage::Stage;

type Test = fn(&Stage) -> Result<()>;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let tests: [(&str, Test); 14] = [
        (
            "t39_a_client_that_keeps_its_port_is_answered_after_its_endpoint_died",
            stale::dead_endpoint,
        ),
        (
            "t40_a_client_that_was_there_before_the_endpoints_is_answered",
            stale::endpoints_come,
        ),
        (
            "t42_a_restart_with_nothing_changed_moves_no_flow",
            stale::restart,
        ),
        (
            "t43_what_died_while_the_agent_was_dead_is_removed_at_its_start",
            stale::dead_agent,
        ),
        (
            "t44_a_connection_that_was_never_answered_moves_and_one_that_was_stays",
            stale::unanswered_connection,
        ),
        (
            "t39_a_client_of_an_endpoint_that_came_and_went_between_two_passes_is_answered",
            interlude::change_taken_back,
        ),
        (
            "t30_t40_a_client_that_came_while_the_table_was_gone_is_answered",
            interlude::deleted_table,
        ),
        (
            "t355_a_client_that_came_while_the_table_was_gone_is_not_refused",
            interlude::unrefused,
        ),
        (
            "t76_who_claims_the_addresses_of_dns_gets_no_client_and_ends_no_flow",
            tenant::claims_addresses,
        ),
        (
            "a_service_that_is_removed_leaves_no_flow",
            stale::removed_service,
        ),
        (
            "t41_t46_a_table_that_is_nearly_full_is_reported_and_cleaned_in_bounded_memory",
            table::nearly_full,
        ),
        (
            "settings_follow_the_profile_without_a_restart",
            settings::follow_the_profile,
        ),
        (
            "t45_a_read_only_proc_sys_is_reported_and_services_are_served",
            settings::read_only,
        ),
        (
            "t150_the_one_directory_a_pod_mounts_is_enough_for_every_setting",
            settings::netfilter_mounted,
        ),
    ];
    // In mode ipvs, the kernel itself moves flows whose endpoint has left.
    let with_ipvs: [(&str, Test); 10] = [
        (
            "t39_a_client_that_keeps_its_port_is_answered_after_its_endpoint_died::ipvs",
            stale::dead_endpoint,
        ),
        (
            "t40_a_client_that_was_there_before_the_endpoints_is_answered::ipvs",
            stale::endpoints_come,
        ),
        (
            "t42_a_restart_with_nothing_changed_moves_no_flow::ipvs",
            stale::restart,
        ),
        (
            "t43_what_died_while_the_agent_was_dead_is_removed_at_its_start::ipvs",
            stale::dead_agent,
        ),
        (
            "t44_a_connection_that_was_never_answered_moves_and_one_that_was_stays::ipvs",
            stale::unanswered_connection,
        ),
        (
            "t39_a_client_of_an_endpoint_that_came_and_went_between_two_passes_is_answered::ipvs",
            interlude::change_taken_back,
        ),
        (
            "t30_t40_a_client_that_came_while_the_table_was_gone_is_answered::ipvs",
            interlude::deleted_table,
        ),
        (
            "t355_a_client_that_came_while_the_table_was_gone_is_not_refused::ipvs",
            interlude::unrefused,
        ),
        (
            "t76_who_claims_the_addresses_of_dns_gets_no_client_and_ends_no_flow::ipvs",
            tenant::claims_addresses,
        ),
        (
            "a_service_that_is_removed_leaves_no_flow::ipvs",
            stale::removed_service,
        ),
    ];
    let lacks_ipvs = find_ipvs(&["rr"])?;
    if let Some(why) = &lacks_ipvs {
        println!("SKIPPED: mode ipvs: {why}");
    }
    let trials =
        tests.map(|(name, test)| trial(name, move || test(&Stage::build(Mode::Nftables)?)));
    let with_ipvs = with_ipvs.map(|(name, test)| {
        let trial = trial(name, move || test(&Stage::build(Mode::Ipvs)?));
        trial.with_ignored_flag(lacks_ipvs.is_some())
    });
    let mut trials: Vec<Trial> = trials.into_iter().chain(with_ipvs).collect();
    let with_iptables: [(&str, Test); 2] = [
        (
            "t76_who_claims_the_addresses_of_dns_gets_no_client_and_ends_no_flow",
            tenant::claims_addresses,
        ),
        (
            "t355_a_client_that_came_while_the_table_was_gone_is_not_refused",
            interlude::unrefused,
        ),
    ];
    for variant in [Variant::NfTables, Variant::Legacy] {
        for (name, test) in with_iptables {
            let name = format!("{name}::iptables_{variant}");
            trials.push(trial(&name, move || test(&Stage::build_beside(variant)?)));
        }
    }
    let mut arguments = Arguments::from_args();
    // The tests measure figures and wait for silence.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit();
}
