//! The source ranges of load balancers during a repair, failure story T361: another program removes rules,
//! and some of the ranges.

use backend::Rendered;
use dataplane::Dataplane;
use nftables_model::{ALLOW_SOURCES, RESTRICT};
use testkit::laws::{balancers_with_source_ranges, source_ranges_hold_during_repair};

use super::tests::{empty, prefixes};
use super::*;
use crate::diff::{Step, diff as diff_rules};
use crate::missing_schedulers::MissingSchedulers;
use crate::render::render;
use crate::rules::Rules;
use crate::simulate::simulate;

/// The states on the way as for a kernel that has memory for each transaction.
fn large_steps(mut held: Rules, desired: &Rules) -> Vec<Rules> {
    let change = diff_rules(Family::Ipv4, &held, desired);
    let states = change.steps().iter().map(|step| {
        held.replay(step).expect("the kernel takes it");
        held.clone()
    });
    states.collect()
}

/// Checks every step of the repair after a program has removed the rules of `chains` and the elements of
/// `sets`.
fn check_repair(dataplane: &Dataplane, chains: &[&str], sets: &[SetName]) {
    let schedulers = MissingSchedulers::default();
    let render = |from: &Rendered<Rules>| render(Family::Ipv4, dataplane, from, &schedulers);
    let mut rules = render(&Rendered::default());
    chains.iter().for_each(|chain| empty(&mut rules, chain));
    for set in sets {
        let held = &rules.table.sets[set.as_str()];
        let keys = held.elements.sorted().into_iter();
        let keys: Vec<_> = keys.map(|(key, _)| key.clone()).collect();
        assert!(!keys.is_empty(), "{} is empty", set.as_str());
        let mut transaction = Transaction::new(Family::Ipv4, name(TABLE));
        let set = Arc::clone(&held.set);
        let removed = Operation::DeleteElements { set, keys };
        transaction.operations.push(removed);
        let damage = rules.replay(&Step::Table(transaction));
        damage.expect("any program can do that");
    }
    let found = Rendered {
        dataplane: Dataplane::default(),
        rules,
    };
    let desired = render(&found);
    let ways = [
        prefixes(Family::Ipv4, found.rules.clone(), &desired),
        large_steps(found.rules.clone(), &desired),
    ];
    source_ranges_hold_during_repair(
        [&found.rules, &desired],
        &ways.concat(),
        |held, packet| simulate(held, dataplane.node(), packet),
        &format!("{chains:?} and {sets:?}"),
    );
}

#[test]
fn t361_source_ranges_are_back_before_the_rules_that_look_them_up() {
    let dataplane = balancers_with_source_ranges(2);
    let [some, more] = [24, 28].map(SetName::Sources);
    for chain in [ENTRANCES[0], RESTRICT, ALLOW_SOURCES] {
        check_repair(&dataplane, &[chain], &[some]);
        check_repair(&dataplane, &[chain], &[SetName::Restrictions, some, more]);
        check_repair(&dataplane, &[chain], &[some, SetName::Externals]);
    }
}

#[test]
fn t361_frontends_have_source_ranges_before_rules_lead_to_them() {
    let dataplane = balancers_with_source_ranges(2);
    let some = SetName::Sources(24);
    for chain in [DISPATCH, "filter-prerouting"] {
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
