//! The real agent in mode iptables and during switches between modes, with continuous traffic.

mod changes_by_others;
mod departures;
mod drain_deadline;
mod every_write;
mod handback;
mod icmp_and_fragments;
mod interruptions;
mod ipvs;
mod leftovers;
mod manifests;
mod obstacles;
mod sctp;
mod settings;
mod shared_endpoint;
mod stage;
mod switches;

use anyhow::Result;
use crds::profile::mode::Mode;
use libtest_mimic::{Arguments, Trial};
use tests::agent_tracer;
use tests::network::enter_private_namespaces;
use tests::trial::trial;
use xtables::Variant;

use every_write::{After, start, switch};

type Test = fn(Variant) -> Result<()>;
type LoneTest = fn() -> Result<()>;

/// The tests for both variants of iptables.
const TESTS: [(&str, Test); 7] = [
    (
        "mode_iptables_serves_and_says_which_variant_it_uses",
        switches::serves,
    ),
    (
        "t04_t09_t10_a_switch_loses_nothing_and_leaves_nothing",
        switches::there_and_back,
    ),
    ("t175_a_switch_in_parts_loses_nothing", switches::in_parts),
    (
        "t11_a_switch_that_was_cut_short_is_completed",
        interruptions::killed_while_switching,
    ),
    (
        "t42_a_restart_in_mode_iptables_writes_nothing",
        interruptions::restarted,
    ),
    (
        "t18_what_was_handed_back_is_gone_until_it_is_taken_over",
        leftovers::handback,
    ),
    (
        "cleanup_removes_signposts_rules_of_every_mode",
        leftovers::cleanup,
    ),
];

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let mut trials = Vec::new();
    for (name, test) in TESTS {
        for variant in [Variant::NfTables, Variant::Legacy] {
            let name = format!("{name}::{variant}");
            trials.push(trial(&name, move || test(variant)));
        }
    }
    for (mode, variant) in [
        (Mode::Nftables, Variant::NfTables),
        (Mode::Iptables, Variant::NfTables),
        (Mode::Iptables, Variant::Legacy),
    ] {
        let of = match mode {
            Mode::Iptables => format!("{mode}-{variant}"),
            _ => mode.to_string(),
        };
        let name = format!("t178_connections_outlive_their_endpoint_and_service::{of}");
        let test = move || departures::connections_outlive(mode, variant);
        trials.push(trial(&name, test));
        let name = format!("t180_fragments_and_icmp_errors_pass::{of}");
        trials.push(trial(&name, move || {
            icmp_and_fragments::pass(mode, variant)
        }));
        let name = format!("t181_two_services_share_an_endpoint_and_a_clients_port::{of}");
        trials.push(trial(&name, move || {
            shared_endpoint::serves_both(mode, variant)
        }));
    }
    let others: [(&str, LoneTest); 6] = [
        (
            "t12_where_iptables_cannot_be_used_nftables_goes_on_and_that_is_reported",
            obstacles::lock_that_cannot_be_opened,
        ),
        (
            "t12_where_iptables_cannot_go_on_nftables_does_and_no_other_program_is_blamed",
            obstacles::lock_that_is_taken_away,
        ),
        (
            "t37_a_lock_that_another_process_holds_is_waited_for_and_reported",
            obstacles::lock_that_is_held,
        ),
        (
            "t30_a_flushed_chain_of_iptables_is_mended",
            obstacles::flushed_chain,
        ),
        (
            "t36_what_was_left_in_the_other_variant_goes_once_this_one_serves",
            leftovers::other_variant,
        ),
        (
            "a_restart_while_others_never_rest_stays_in_its_variant",
            interruptions::restarted_among_the_restless,
        ),
    ];
    for (mode, variant) in [
        (Mode::Nftables, Variant::NfTables),
        (Mode::Iptables, Variant::NfTables),
        (Mode::Iptables, Variant::Legacy),
    ] {
        let name = "t98_agents_that_are_killed_again_and_again_lose_no_connection";
        let test = move || interruptions::killed_again_and_again((mode, variant));
        trials.push(trial(&format!("{name}::{mode}::{variant}"), test));
    }
    let obstacle = agent_tracer::obstacle();
    if let Some(obstacle) = &obstacle {
        println!("SKIPPED: agents that are killed after every write: {obstacle}");
    }
    for variant in [Variant::NfTables, Variant::Legacy] {
        let name = "t285_a_switch_that_is_killed_after_any_write_is_completed";
        let modes = [Mode::Nftables, Mode::Iptables];
        let test = move || switch::is_completed(modes, variant, After::Every);
        let trial = trial(&format!("{name}::nftables_and_iptables_{variant}"), test);
        trials.push(trial.with_ignored_flag(obstacle.is_some()));
    }
    for (story, start) in start::STORIES {
        for (mode, variant) in [
            (Mode::Nftables, Variant::NfTables),
            (Mode::Iptables, Variant::NfTables),
            (Mode::Iptables, Variant::Legacy),
        ] {
            let test = move || start::is_completed(start, mode, variant);
            let trial = trial(&format!("{story}::{mode}::{variant}"), test);
            trials.push(trial.with_ignored_flag(obstacle.is_some()));
        }
    }
    trials.extend(ipvs::trials(obstacle.as_deref())?);
    trials.extend(sctp::trials()?);
    let others = others.map(|(name, test)| trial(name, test));
    trials.extend::<[Trial; 6]>(others);
    let mut arguments = Arguments::from_args();
    // The tests measure time.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit();
}
