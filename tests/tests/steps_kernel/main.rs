//! Packets in a real kernel after every step of every transition: a start, a repair, a change, a
//! new table form and a switch of mechanisms, also after the agent was killed at that step or the
//! kernel had no memory for the next one. Failure stories T98, T163 and, for excluded sources, T52.

mod agent;
mod mechanism;
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

use mechanism::Mechanism;
use scenarios::Start;

const MECHANISMS: [Mechanism; 4] = [
    Mechanism::Nftables,
    Mechanism::Iptables(Variant::NfTables),
    Mechanism::Iptables(Variant::Legacy),
    Mechanism::Ipvs,
];

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let lacks_ipvs = find_ipvs(&["rr"])?;
    let mut trials = Vec::new();
    for mechanism in MECHANISMS {
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
        for other in MECHANISMS.into_iter().filter(|other| *other != mechanism) {
            // An agent uses only one variant of iptables.
            if !mechanism.is_iptables() || !other.is_iptables() {
                starts.push((
                    "t98_at_no_step_of_a_switch_is_a_healthy_service_refused",
                    Start::Other(other),
                ));
            }
        }
        // No earlier version has written mode ipvs in another form.
        starts.retain(|(_, start)| {
            mechanism != Mechanism::Ipvs || !matches!(start, Start::AnotherForm)
        });
        for (what, start) in starts {
            for family in Family::ALL {
                let from = match start {
                    Start::Other(other) => format!("{other}_to_"),
                    _ => String::new(),
                };
                let name = format!("{what}::{from}{mechanism}::{family}");
                let test = move || scenarios::run(mechanism, start, family);
                let needs_ipvs = [Some(mechanism), start.other()].contains(&Some(Mechanism::Ipvs));
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
    for mechanism in MECHANISMS {
        let name = "t163_a_kernel_without_memory_for_more_refuses_no_healthy_service";
        let test = move || starvation::run(mechanism);
        let trial = trial(&format!("{name}::{mechanism}"), test);
        let is_skipped = lacks || mechanism == Mechanism::Ipvs && lacks_ipvs.is_some();
        trials.push(trial.with_ignored_flag(is_skipped));
    }
    if lacks {
        println!("SKIPPED: a kernel without memory, for want of memory cgroups of version 1");
    }
    let obstacle = nth_allocation::obstacle();
    for mechanism in MECHANISMS {
        let name = "t327_whichever_allocation_of_the_kernel_fails_nobody_is_harmed";
        let test = move || nth_allocation::run(mechanism);
        let trial = trial(&format!("{name}::{mechanism}"), test);
        let is_skipped = mechanism == Mechanism::Ipvs && lacks_ipvs.is_some();
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
