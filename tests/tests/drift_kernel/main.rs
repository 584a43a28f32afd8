//! Another program changes Signpost's rules in a real kernel: the change is noticed, reported and
//! repaired.

mod agent;
mod families;
mod iptables;
mod lacking;
mod lock;
mod manifests;
mod node;
mod pushed;
mod second_agent;

use anyhow::Result;
use libtest_mimic::Arguments;
use node::Place;
use tests::ipvs_support::find_ipvs;
use tests::network::enter_private_namespaces;
use tests::trial::trial;
use xtables::Variant;

type Test = fn() -> Result<()>;
type TestOfVariant = fn(Variant) -> Result<()>;

/// The tests of mode iptables, for each variant.
const OF_VARIANTS: [(&str, TestOfVariant); 9] = [
    (
        "t30_a_flushed_ruleset_is_repaired_at_once",
        iptables::flushed_rulesets_are_repaired,
    ),
    (
        "t31_a_firewalls_reload_is_repaired_at_once",
        iptables::a_firewalls_reload_is_repaired,
    ),
    (
        "t32_every_damage_is_repaired_at_once",
        iptables::every_damage_is_repaired_at_once,
    ),
    (
        "t36_rules_of_others_in_both_variants_are_reported",
        iptables::rules_of_others_in_both_variants_are_reported,
    ),
    (
        "t38_a_program_that_does_not_stop_is_not_answered_every_time",
        |variant| {
            let place = Place::Iptables(variant);
            agent::t38_a_program_that_does_not_stop_is_not_answered_every_time(place)
        },
    ),
    (
        "changes_of_others_in_the_same_tables_cause_no_repair",
        iptables::changes_of_others_cause_no_repair,
    ),
    ("an_agent_that_hears_nothing_ends_when_asked", |variant| {
        agent::it_ends_at_once(Place::Iptables(variant))
    }),
    (
        "t83_a_second_agent_waits_and_goes_on_when_the_first_has_ended",
        |variant| second_agent::it_waits_and_takes_over(Place::Iptables(variant)),
    ),
    ("a_node_with_ipv6_switched_off_is_served", |variant| {
        lacking::ipv6_switched_off(Place::Iptables(variant))
    }),
];

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let mut arguments = Arguments::from_args();
    // The tests check that repairs take less than a second, which requires a serial run, and one of
    // them the memory of this process.
    arguments.test_threads = Some(1);
    let tests: [(&str, Test); 21] = [
        (
            "others_are_distinguished_from_signpost",
            families::others_are_distinguished_from_signpost,
        ),
        (
            "changes_elsewhere_are_no_reason_to_look",
            families::changes_elsewhere_are_no_reason_to_look,
        ),
        (
            "missed_notifications_are_a_reason_to_look",
            families::missed_notifications_are_a_reason_to_look,
        ),
        (
            "t20_a_change_to_what_was_deleted_repairs_it",
            families::t20_a_change_to_what_was_deleted_repairs_it,
        ),
        (
            "t29_hundreds_of_cycles_leave_nothing_behind",
            families::t29_hundreds_of_cycles_leave_nothing_behind,
        ),
        (
            "t30_t31_a_flushed_ruleset_is_repaired_at_once_and_the_culprit_named",
            agent::flushed_rulesets_are_repaired,
        ),
        (
            "t32_every_damage_is_repaired_at_once",
            agent::every_damage_is_repaired_at_once,
        ),
        (
            "t38_a_program_that_does_not_stop_is_not_answered_every_time",
            || agent::t38_a_program_that_does_not_stop_is_not_answered_every_time(Place::Nftables),
        ),
        (
            "changes_elsewhere_cause_no_round",
            agent::changes_elsewhere_cause_no_sync,
        ),
        ("an_agent_that_hears_nothing_ends_when_asked", || {
            agent::it_ends_at_once(Place::Nftables)
        }),
        (
            "t83_a_second_agent_waits_and_goes_on_when_the_first_has_ended",
            || second_agent::it_waits_and_takes_over(Place::Nftables),
        ),
        (
            "t84_where_one_family_cannot_be_had_the_other_is_served_and_the_node_healthy",
            || lacking::the_other_family_is_served_and_the_node_healthy(Place::Nftables),
        ),
        (
            "nf_tables/t84_where_one_family_cannot_be_had_the_other_is_served_and_the_node_healthy",
            || {
                let place = Place::Iptables(Variant::NfTables);
                lacking::the_other_family_is_served_and_the_node_healthy(place)
            },
        ),
        ("a_node_with_ipv6_switched_off_is_served", || {
            lacking::ipv6_switched_off(Place::Nftables)
        }),
        (
            "a_socket_of_another_user_keeps_no_agent_waiting",
            second_agent::another_programs_socket,
        ),
        (
            "t83_a_thread_that_changes_signposts_rules_is_named_by_its_program",
            second_agent::a_thread_is_named_by_its_program,
        ),
        (
            "nf_tables/who_comes_back_is_listened_for_again",
            iptables::who_comes_back_is_listened_for_again,
        ),
        (
            "legacy/t19_a_commit_that_fails_once_leaves_no_connection_behind",
            lock::one_commit_that_fails,
        ),
        (
            "legacy/t32_what_does_not_show_is_found_every_sync_period",
            iptables::what_does_not_show_is_found_every_sync_period,
        ),
        (
            "legacy/t37_a_lock_that_is_held_for_long_is_reported_and_harms_no_client",
            lock::a_lock_held_for_long,
        ),
        (
            "legacy/t37_a_lock_that_is_free_again_is_noticed",
            lock::a_release_is_noticed,
        ),
    ];
    let mut trials: Vec<_> = tests.map(|(name, test)| trial(name, test)).into();
    for variant in [Variant::NfTables, Variant::Legacy] {
        for (name, test) in OF_VARIANTS {
            let name = format!("{variant}/{name}");
            trials.push(trial(&name, move || test(variant)));
        }
    }
    let missing = find_ipvs(&["rr"])?;
    let of_ipvs: [(&str, Test); 6] = [
        (
            "ipvs/t32_damage_to_the_table_is_repaired_without_a_periodic_check",
            agent::damage_in_mode_ipvs_is_repaired,
        ),
        (
            "ipvs/t38_a_program_that_does_not_stop_is_reported_and_its_flushes_repaired",
            agent::flushes_in_mode_ipvs_are_reported_and_repaired,
        ),
        (
            "ipvs/t83_a_second_agent_waits_and_goes_on_when_the_first_has_ended",
            || second_agent::it_waits_and_takes_over(Place::Ipvs),
        ),
        (
            "ipvs/t84_where_one_family_cannot_be_had_the_other_is_served_and_the_node_healthy",
            || lacking::the_other_family_is_served_and_the_node_healthy(Place::Ipvs),
        ),
        ("ipvs/a_node_with_ipv6_switched_off_is_served", || {
            lacking::ipv6_switched_off(Place::Ipvs)
        }),
        (
            "ipvs/t366_connections_outlive_a_flush_while_no_agent_runs",
            pushed::connections_outlive_a_flush_while_no_agent_runs,
        ),
    ];
    // A flush of nf_tables leaves the hooks of variant legacy.
    let places = [
        ("", Place::Nftables),
        ("nf_tables/", Place::Iptables(Variant::NfTables)),
        ("ipvs/", Place::Ipvs),
    ];
    let unable = pushed::find_unable();
    for (prefix, place) in places {
        let name =
            format!("{prefix}t356_connections_of_endpoints_that_send_outlive_a_flushed_ruleset");
        let test = move || pushed::connections_outlive_a_flushed_ruleset(place);
        let is_unable = unable.is_some() || place == Place::Ipvs && missing.is_some();
        trials.push(trial(&name, test).with_ignored_flag(is_unable));
    }
    let name = "t357_a_saved_ruleset_can_be_loaded_again";
    let test = pushed::a_saved_ruleset_can_be_loaded_again;
    trials.push(trial(name, test).with_ignored_flag(unable.is_some()));
    let name = "t330_kept_hooks_are_no_change_of_another_program";
    let test = families::t330_kept_hooks_are_no_change_of_another_program;
    trials.push(trial(name, test).with_ignored_flag(unable.is_some()));
    if let Some(why) = unable {
        println!("SKIPPED: connections that outlive a flushed ruleset: {why}");
    }
    for (name, test) in of_ipvs {
        trials.push(trial(name, test).with_ignored_flag(missing.is_some()));
    }
    if let Some(why) = missing {
        println!("SKIPPED: mode ipvs: {why}");
    }
    libtest_mimic::run(&arguments, trials).exit();
}
