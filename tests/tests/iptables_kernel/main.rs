//! Services in the iptables tables of a real kernel, in both variants: iptables lists the committed
//! rules, changes by other programs to them are repaired, and other programs' rules stay.

mod damages;
mod depths;
mod ground;
mod liberal;
mod listings;
mod lock;
mod many;
mod neighbours;
mod refusals;

use anyhow::Result;
use ground::Ground;
use libtest_mimic::{Arguments, Trial};
use tests::network::enter_private_namespaces;
use tests::trial::trial;
use xtables::Variant;

type Test = fn(&Ground) -> Result<()>;

const TESTS: [(&str, Test); 12] = [
    (
        "every_law_of_backends_holds",
        listings::every_law_of_backends_holds,
    ),
    (
        "iptables_lists_what_was_rendered_and_nothing_else_of_signposts",
        listings::iptables_lists_what_was_rendered,
    ),
    (
        "whatever_a_name_has_iptables_reads_what_it_saves",
        listings::whatever_a_name_has,
    ),
    (
        "t18_removal_leaves_rules_of_other_programs_as_they_were",
        neighbours::removal_leaves_rules_of_other_programs,
    ),
    (
        "quiet_is_distinguished_from_change",
        neighbours::quiet_is_distinguished_from_change,
    ),
    (
        "t20_a_change_to_what_was_deleted_repairs_it",
        damages::a_change_to_what_was_deleted,
    ),
    (
        "t30_t32_whatever_was_damaged_is_repaired",
        damages::whatever_was_damaged,
    ),
    (
        "what_is_invalid_goes_through_from_the_check_after_conntrack_became_liberal",
        liberal::conntrack_that_is_made_liberal,
    ),
    (
        "t25_one_service_the_kernel_refuses_leaves_the_others_programmed",
        refusals::one_refused_service,
    ),
    (
        "however_addresses_lie_the_kernel_takes_the_rules",
        depths::however_addresses_lie,
    ),
    (
        "ten_thousand_services_go_in_bounded_steps_and_one_more_in_a_small_one",
        many::ten_thousand_services,
    ),
    (
        "one_replaced_endpoint_writes_the_same_among_100_and_2000_services",
        many::one_replaced_endpoint,
    ),
];

fn main() -> Result<()> {
    enter_private_namespaces()?;
    let mut trials: Vec<Trial> = Vec::new();
    for variant in [Variant::NfTables, Variant::Legacy] {
        for (name, test) in TESTS {
            let run = move || test(&Ground::new(variant)?);
            trials.push(trial(&format!("{variant}/{name}"), run));
        }
    }
    let run = || neighbours::what_others_do_elsewhere(&Ground::new(Variant::NfTables)?);
    let name = "nf_tables/t34_what_others_do_in_other_tables_is_no_reason_to_list_signposts_rules";
    trials.push(trial(name, run));
    let run = || lock::held_by_another_process(&Ground::new(Variant::Legacy)?);
    let name = "legacy/t37_a_lock_that_another_process_holds_is_waited_for_and_no_longer";
    trials.push(trial(name, run));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
