//! Packets in a real kernel after every step of every transition: a start, a repair, a change, a
//! new table form and a switch of modes, also after the agent was killed at that step or the
//! kernel had no memory for the next one. Failure stories T98, T163 and, for excluded sources, T52.

mod agent;
mod mode;
mod nth_allocation;
mod scenarios;
mod services;
mod stage;
mod starvation;
mod witness;

use anyhow::Result;
use dataplane::Family;
use libtest_mimic::Arguments;
use tests::ipvs_support::find_ipvs;
use tests::network::enter_private_namespaces;
use tests::trial::trial;
use xtables::Variant;

use mode::Mode;
use scenarios::Start;

const MECHANISMS: [Mode; 4] = [
    Mode::Nftables,
    Mode::Iptables(Variant::NfTables),
    Mode::Iptables(Variant::Legacy),
    Mode::Ipvs,
];

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let lacks_ipvs = find_ipvs(&["rr"])?;
    let mut trials = Vec::new();
    for mode in MECHANISMS {
        let mut starts = vec![
            (
                "t98_at_no_step_of_a_cold_start_is_a_healthy_service_refused",
                Start::Nothing,
            ),
            (
                "t98_at_no_step_of_a_start_over_another_form_is_a_healthy_service_refused",
                Start::AnotherForm,
            ),
            (
                "t98_at_no_step_of_a_repair_is_a_healthy_service_refused",
                Start::Damaged,
            ),
            (
                "t98_at_no_step_of_a_change_is_a_healthy_service_refused",
                Start::Earlier,
            ),
            (
                "t52_at_no_step_of_a_cold_start_does_an_excluded_source_pass",
                Start::NothingGuarded,
            ),
            (
                "t52_at_no_step_of_closing_does_an_excluded_source_pass",
                Start::Unguarded,
            ),
            (
                "t52_at_no_step_from_one_range_to_another_does_an_excluded_source_pass",
                Start::OtherRanges,
            ),
        ];
        for other in MECHANISMS.into_iter().filter(|other| *other != mode) {
            // An agent uses only one variant of iptables.
            if !mode.is_iptables() || !other.is_iptables() {
                starts.push((
                    "t98_at_no_step_of_a_switch_is_a_healthy_service_refused",
                    Start::Other(other),
                ));
            }
        }
        // No earlier version has written mode ipvs in another form.
        starts.retain(|(_, start)| mode != Mode::Ipvs || !matches!(start, Start::AnotherForm));
        for (what, start) in starts {
            for family in Family::ALL {
                let from = match start {
                    Start::Other(other) => format!("{other}_to_"),
                    _ => String::new(),
                };
                let name = format!("{what}::{from}{mode}::{family}");
                let test = move || scenarios::run(mode, start, family);
                let needs_ipvs = [Some(mode), start.other()].contains(&Some(Mode::Ipvs));
                let is_skipped = needs_ipvs && lacks_ipvs.is_some();
                trials.push(trial(&name, test).with_ignored_flag(is_skipped));
            }
        }
    }
    if let Some(why) = &lacks_ipvs {
        println!("SKIPPED: every step of mode ipvs: {why}");
    }
    trials.push(trial(
        "a_refusal_or_a_wrong_answer_at_a_step_is_noticed",
        witness::notices,
    ));
    let lacks = !starvation::is_offered();
    for mode in MECHANISMS {
        let name = "t163_a_kernel_without_memory_for_more_refuses_no_healthy_service";
        let test = move || starvation::run(mode);
        let trial = trial(&format!("{name}::{mode}"), test);
        let is_skipped = lacks || mode == Mode::Ipvs && lacks_ipvs.is_some();
        trials.push(trial.with_ignored_flag(is_skipped));
    }
    if lacks {
        println!("SKIPPED: a kernel without memory, for want of memory cgroups of version 1");
    }
    let obstacle = nth_allocation::obstacle();
    for mode in MECHANISMS {
        let name = "t327_whichever_allocation_of_the_kernel_fails_nobody_is_harmed";
        let test = move || nth_allocation::run(mode);
        let trial = trial(&format!("{name}::{mode}"), test);
        let is_skipped = mode == Mode::Ipvs && lacks_ipvs.is_some();
        trials.push(trial.with_ignored_flag(obstacle.is_some() || is_skipped));
    }
    if let Some(why) = &obstacle {
        println!("SKIPPED: allocations of the kernel that fail: {why}");
    }
    let mut arguments = Arguments::from_args();
    // The tests mostly wait for unanswered packets.
    arguments.test_threads = arguments.test_threads.or(Some(8));
    libtest_mimic::run(&arguments, trials).exit();
}
