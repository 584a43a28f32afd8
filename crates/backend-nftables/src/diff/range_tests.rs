//! The source ranges of load balancers during a repair, failure story T361: another program removes rules,
//! and some of the ranges.

use super::*;

use std::sync::Arc;

use backend::Rendered;
use dataplane::Dataplane;
use nftables_model::{ALLOW_SOURCES, RESTRICT};
use testkit::laws::{balancers_with_source_ranges, source_ranges_hold_during_repair};

use super::prefix_tests::{prefixes, render, simulate_both};
use crate::chains::DISPATCH;

/// The states on the way as for a kernel that has memory for each transaction, or else in halves.
fn large_steps(found: &Table, desired: &Table, divides: bool) -> Vec<Table> {
    let mut held = found.clone();
    let mut states = Vec::new();
    let mut rest = vec![diff(Family::Ipv4, found, desired)];
    while let Some(change) = rest.pop() {
        if let Some([first, second]) = change.halves().filter(|_| divides) {
            rest.extend([second, first]);
            continue;
        }
        for transaction in change.transactions() {
            held.replay(transaction).expect("the kernel takes it");
            states.push(held.clone());
        }
    }
    states
}

/// Checks every step of the repair after a program has removed the rules of `chains` and the elements of
/// `sets`.
fn check_repair(dataplane: &Dataplane, chains: &[&str], sets: &[SetName]) {
    let mut rules = render(Family::Ipv4, dataplane, &Rendered::default());
    let mut damage = Transaction::new(Family::Ipv4, layout::name(TABLE));
    let flushed = chains.iter();
    let flushed = flushed.map(|chain| Operation::FlushChain(layout::name(chain)));
    damage.operations.extend(flushed);
    for set in sets {
        let held = &rules.sets[set.as_str()];
        let keys = held.elements.sorted().into_iter();
        let keys: Vec<_> = keys.map(|(key, _)| key.clone()).collect();
        assert!(!keys.is_empty(), "{} is empty", set.as_str());
        let set = Arc::clone(&held.set);
        let removed = Operation::DeleteElements { set, keys };
        damage.operations.push(removed);
    }
    rules.replay(&damage).expect("any program can do that");
    let found = Rendered {
        dataplane: Dataplane::default(),
        rules,
    };
    let desired = render(Family::Ipv4, dataplane, &found);
    let ways = [
        prefixes(Family::Ipv4, &found.rules, &desired),
        large_steps(&found.rules, &desired, true),
        large_steps(&found.rules, &desired, false),
    ];
    source_ranges_hold_during_repair(
        [&found.rules, &desired],
        &ways.concat(),
        |held, packet| simulate_both(held, dataplane.node(), packet),
        &format!("{chains:?} and {sets:?}"),
    );
}

#[test]
fn t361_source_ranges_are_back_before_the_rules_that_look_them_up() {
    let dataplane = balancers_with_source_ranges(2);
    let [some, more] = [24, 28].map(SetName::Sources);
    for chain in [ENTRANCES[0], ENTRANCES[1], RESTRICT, ALLOW_SOURCES] {
        check_repair(&dataplane, &[chain], &[some]);
        check_repair(&dataplane, &[chain], &[SetName::Restrictions, some, more]);
        check_repair(&dataplane, &[chain], &[some, SetName::Services]);
    }
}

#[test]
fn t361_frontends_have_source_ranges_before_rules_lead_to_them() {
    let dataplane = balancers_with_source_ranges(2);
    let some = SetName::Sources(24);
    for chain in [DISPATCH, "nat-prerouting"] {
        check_repair(&dataplane, &[chain], &[SetName::Restrictions]);
        check_repair(&dataplane, &[chain], &[SetName::Restrictions, some]);
        check_repair(&dataplane, &[chain], &[some]);
    }
    let all = [DISPATCH, "filter-prerouting", RESTRICT, ALLOW_SOURCES];
    check_repair(&dataplane, &all, &[SetName::Restrictions, some]);
}

/// More source ranges than one transaction holds.
#[test]
fn t361_rules_wait_for_every_transaction_of_source_ranges() {
    let dataplane = balancers_with_source_ranges(5_001);
    let all = [24, 28].map(SetName::Sources);
    check_repair(&dataplane, &[ALLOW_SOURCES], &all);
}
