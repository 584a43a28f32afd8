//! Somebody else changes our rules in a real kernel: it is heard, told and repaired.

mod agent;
mod families;
mod node;

use anyhow::Result;
use libtest_mimic::Arguments;
use tests::network::enter_private_namespaces;
use tests::trial::trial;

type Test = fn() -> Result<()>;

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let mut arguments = Arguments::from_args();
    // What is repaired within a second is measured; one test at a time leaves it that second.
    arguments.test_threads = Some(1);
    let tests: [(&str, Test); 9] = [
        ("others_are_told_from_us", families::others_are_told_from_us),
        (
            "changes_elsewhere_are_no_reason_to_look",
            families::changes_elsewhere_are_no_reason_to_look,
        ),
        (
            "missed_notifications_are_a_reason_to_look",
            families::missed_notifications_are_a_reason_to_look,
        ),
        (
            "t20_a_change_to_what_somebody_deleted_repairs_it",
            families::t20_a_change_to_what_somebody_deleted_repairs_it,
        ),
        (
            "t29_hundreds_of_cycles_leave_nothing_behind",
            families::t29_hundreds_of_cycles_leave_nothing_behind,
        ),
        (
            "t30_t31_a_flushed_ruleset_is_repaired_within_a_second_and_the_culprit_named",
            agent::flushed_rulesets_are_repaired,
        ),
        (
            "t32_every_damage_is_repaired_within_a_second",
            agent::every_damage_is_repaired_within_a_second,
        ),
        (
            "t38_somebody_who_does_not_stop_is_not_answered_every_time",
            agent::t38_somebody_who_does_not_stop_is_not_answered_every_time,
        ),
        (
            "changes_elsewhere_cause_no_round",
            agent::changes_elsewhere_cause_no_round,
        ),
    ];
    let trials = tests.map(|(name, test)| trial(name, test));
    libtest_mimic::run(&arguments, trials.into()).exit();
}
