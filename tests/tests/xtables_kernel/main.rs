//! The iptables tables: iptables lists what Signpost writes, Signpost reads what iptables writes,
//! and other programs' rules stay unchanged, in both variants and both families.

mod detection;
mod ground;
mod legacy;
mod legacy_races;
mod lists;
mod neighbours;
mod nf_tables;
mod refusals;
mod samples;

use anyhow::Result;
use ground::Ground;
use libtest_mimic::{Arguments, Trial};
use tests::network::{Namespace, Network, enter_private_namespaces};
use tests::trial::trial;
use xtables::{Family, Variant};

type Test = fn(&Ground) -> Result<()>;
type DetectionTest = fn(&Namespace) -> Result<()>;

const TESTS: [(&str, Test); 12] = [
    (
        "iptables_lists_every_rule_as_it_prints",
        lists::iptables_lists_every_rule_as_it_prints,
    ),
    (
        "iptables_deletes_every_rule_by_its_words",
        lists::iptables_deletes_every_rule_by_its_words,
    ),
    (
        "rules_of_iptables_read_as_the_same",
        lists::rules_of_iptables_read_as_the_same,
    ),
    (
        "what_signposts_rules_never_ask_reads_as_nothing",
        lists::what_signposts_rules_never_ask_reads_as_nothing,
    ),
    (
        "rules_of_other_programs_stay_as_they_are",
        neighbours::rules_of_other_programs_stay_as_they_are,
    ),
    (
        "others_go_on_working_with_the_same_tables",
        neighbours::others_go_on_working_with_the_same_tables,
    ),
    (
        "entries_come_before_rules_of_other_programs",
        neighbours::entries_come_before_rules_of_other_programs,
    ),
    (
        "chains_are_replaced_and_go_together",
        neighbours::chains_are_replaced_and_go_together,
    ),
    (
        "quiet_is_distinguished_from_change",
        neighbours::quiet_is_distinguished_from_change,
    ),
    (
        "what_one_family_does_is_no_drift_of_the_other",
        neighbours::what_one_family_does_is_no_drift_of_the_other,
    ),
    (
        "what_the_kernel_lacks_is_distinguished_from_what_was_changed",
        refusals::what_the_kernel_lacks_is_distinguished_from_what_was_changed,
    ),
    (
        "a_refused_step_changes_nothing_and_the_steps_before_it_stand",
        refusals::a_refused_step_changes_nothing_and_the_steps_before_it_stand,
    ),
];

/// The tests of variant nf_tables.
const NF_TABLES_TESTS: [(&str, Test); 7] = [
    (
        "a_name_that_is_not_utf_8_hides_nothing",
        nf_tables::a_name_that_is_not_utf_8_hides_nothing,
    ),
    (
        "a_chain_that_is_not_as_iptables_makes_it_is_named",
        nf_tables::a_chain_that_is_not_as_iptables_makes_it_is_named,
    ),
    (
        "a_table_that_sleeps_is_named_and_can_be_left",
        nf_tables::a_table_that_sleeps_is_named_and_can_be_left,
    ),
    (
        "a_step_that_is_too_long_is_refused_and_the_next_is_not",
        nf_tables::a_step_that_is_too_long_is_refused_and_the_next_is_not,
    ),
    (
        "what_was_read_before_others_wrote_removes_nothing",
        nf_tables::what_was_read_before_others_wrote_removes_nothing,
    ),
    (
        "busy_neighbours_fail_no_change",
        nf_tables::busy_neighbours_fail_no_change,
    ),
    (
        "matches_and_targets_of_the_kernel_are_known",
        nf_tables::matches_and_targets_of_the_kernel_are_known,
    ),
];

/// The tests of the legacy variant, whose tables are replaced as a whole.
const LEGACY_TESTS: [(&str, Test); 8] = [
    (
        "others_keep_everything_at_every_step",
        legacy::others_keep_everything_at_every_step,
    ),
    (
        "a_rule_that_stays_goes_on_counting",
        legacy::a_rule_that_stays_goes_on_counting,
    ),
    (
        "what_the_kernel_refuses_changes_nothing",
        legacy::what_the_kernel_refuses_changes_nothing,
    ),
    ("two_writers_lose_nothing", legacy::two_writers_lose_nothing),
    (
        "t37_a_held_lock_is_not_waited_for_without_end",
        legacy::a_held_lock_is_not_waited_for_without_end,
    ),
    ("a_look_makes_no_table", legacy::a_look_makes_no_table),
    (
        "damage_before_a_change_is_not_hidden_by_it",
        legacy_races::damage_before_a_change_is_not_hidden_by_it,
    ),
    (
        "a_rule_that_cannot_be_carried_over_is_reported",
        legacy_races::a_rule_that_cannot_be_carried_over_is_reported,
    ),
];

/// The tests of both variants together.
const DETECTION_TESTS: [(&str, DetectionTest); 3] = [
    (
        "t36_the_variant_of_the_others_is_chosen",
        detection::the_variant_of_the_others_is_chosen,
    ),
    (
        "signposts_rules_are_distinguished_from_others",
        detection::signposts_rules_are_distinguished_from_others,
    ),
    (
        "signposts_rules_are_found_while_others_never_rest",
        detection::signposts_rules_are_found_while_others_never_rest,
    ),
];

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let mut trials: Vec<Trial> = Vec::new();
    for variant in [Variant::NfTables, Variant::Legacy] {
        for family in [Family::Ipv4, Family::Ipv6] {
            trials.extend(TESTS.map(|(name, test)| {
                let name = format!("{name}::{variant}::{family}");
                trial(&name, move || test(&Ground::new(variant, family)?))
            }));
        }
    }
    for family in [Family::Ipv4, Family::Ipv6] {
        trials.extend(NF_TABLES_TESTS.map(|(name, test)| {
            let name = format!("{name}::{}::{family}", Variant::NfTables);
            trial(&name, move || {
                test(&Ground::new(Variant::NfTables, family)?)
            })
        }));
        trials.extend(LEGACY_TESTS.map(|(name, test)| {
            let name = format!("{name}::{}::{family}", Variant::Legacy);
            trial(&name, move || test(&Ground::new(Variant::Legacy, family)?))
        }));
    }
    trials.extend(DETECTION_TESTS.map(|(name, test)| {
        trial(name, move || {
            let mut network = Network::new()?;
            let [namespace] = network.add_namespaces(["both"])?;
            test(&namespace)
        })
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
