//! Assigns endpoints to slots.

use dataplane::{Scheduler, Target, maglev};

use crate::chains::Counter;

/// How many slots `endpoints` have.
pub(crate) fn count(scheduler: Scheduler, endpoints: usize) -> u32 {
    u32::try_from(scheduler.slots(endpoints)).unwrap_or(u32::MAX)
}

/// Fills the slots of `desired`, from 0 without a gap. If a hash of the client's address chooses the
/// slot, the result depends only on `desired`, since every node must compute the same. So it does
/// if the frontends of a port share a round-robin counter: with different slots one endpoint could
/// get two turns and another none. Otherwise as few slots as possible differ from `before`.
pub(crate) fn fill(scheduler: Scheduler, before: &[Target], desired: &[Target]) -> Vec<Target> {
    match scheduler {
        Scheduler::SourceHash => arrange(&[], desired),
        Scheduler::RoundRobin if Counter::suits(desired.len()) => arrange(&[], desired),
        Scheduler::Maglev => maglev(desired),
        _ => arrange(before, desired),
    }
}

/// Places `desired` in slots from 0 without a gap, so that as few slots as possible differ from
/// `before`: an endpoint whose slot is below the new length keeps it; holes are filled from the
/// end, then with new endpoints, in order.
fn arrange(before: &[Target], desired: &[Target]) -> Vec<Target> {
    // The usual case at a start.
    if before.is_empty() && desired.is_sorted_by(|a, b| a < b) {
        return desired.to_vec();
    }
    // A frontend may have a quarter of a million endpoints, of which one has changed.
    let mut desired = desired.to_vec();
    desired.sort();
    desired.dedup();
    let mut is_placed = vec![false; desired.len()];
    // Endpoints that have never moved are in order: each directly follows the previous one.
    let mut behind_last = 0;
    let mut place = |target: &Target| {
        let at = match desired.get(behind_last) == Some(target) {
            true => Ok(behind_last),
            false => desired.binary_search(target),
        };
        at.is_ok_and(|at| {
            behind_last = at + 1;
            !std::mem::replace(&mut is_placed[at], true)
        })
    };
    let (within, behind) = before.split_at(before.len().min(desired.len()));
    let mut kept: Vec<Option<Target>> = within
        .iter()
        .map(|target| place(target).then_some(*target))
        .collect();
    let mut fill: Vec<Target> = behind.iter().copied().filter(|t| place(t)).collect();
    kept.resize(desired.len(), None);
    let missing = desired
        .iter()
        .zip(&is_placed)
        .filter(|(_, placed)| !**placed);
    fill.extend(missing.map(|(target, _)| *target));
    let mut fill = fill.into_iter();
    kept.into_iter()
        .filter_map(|target| target.or_else(|| fill.next()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::arrange;
    use dataplane::{Port, Target};
    use proptest::prelude::*;

    fn targets(letters: &str) -> Vec<Target> {
        let port = Port::new(80).expect("80 is a port");
        letters
            .bytes()
            .map(|letter| Target {
                address: [10, 0, 0, letter].into(),
                port,
            })
            .collect()
    }

    #[test]
    fn nothing_moves_when_nothing_changes() {
        assert_eq!(arrange(&targets("cab"), &targets("abc")), targets("cab"));
    }

    #[test]
    fn the_last_one_moves_into_the_hole() {
        assert_eq!(
            arrange(&targets("abcde"), &targets("acde")),
            targets("aecd")
        );
    }

    #[test]
    fn a_new_one_goes_to_the_end() {
        assert_eq!(arrange(&targets("cab"), &targets("abcd")), targets("cabd"));
    }

    #[test]
    fn a_new_one_takes_the_place_of_one_that_left() {
        assert_eq!(arrange(&targets("abc"), &targets("acd")), targets("adc"));
    }

    proptest! {
        #[test]
        fn every_desired_endpoint_has_one_slot_and_few_slots_change(
            before in "[a-m]{0,12}", desired in "[a-m]{0,12}",
        ) {
            let unique = |text: &str| {
                let mut seen = targets(text);
                seen.sort();
                seen.dedup();
                seen
            };
            let (before, desired) = (unique(&before), unique(&desired));
            let mut after = arrange(&before, &desired);
            let written = after.iter().zip(&before).filter(|(a, b)| a != b).count()
                + after.len().saturating_sub(before.len());
            let gone = before.iter().filter(|t| !desired.contains(t)).count();
            let new = desired.iter().filter(|t| !before.contains(t)).count();
            prop_assert!(written <= gone.max(new));
            after.sort();
            prop_assert_eq!(after, desired);
        }
    }
}
