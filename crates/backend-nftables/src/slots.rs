//! Which endpoint lies in which slot.

use std::collections::BTreeSet;

use dataplane::Target;

/// Places `wanted` in slots 0 and up without a gap, so that as few slots as possible differ from
/// `before`: an endpoint that stays within the new length stays where it is; holes are filled from
/// the end, then with what is new, in order.
pub(crate) fn arrange(before: &[Target], wanted: &[Target]) -> Vec<Target> {
    // All there is to do at a start.
    if before.is_empty() && wanted.is_sorted_by(|a, b| a < b) {
        return wanted.to_vec();
    }
    let mut missing: BTreeSet<Target> = wanted.iter().copied().collect();
    let length = missing.len();
    let kept: Vec<Option<Target>> = (0..length)
        .map(|slot| before.get(slot).copied().filter(|t| missing.remove(t)))
        .collect();
    let mut fill: Vec<Target> = before
        .iter()
        .skip(length)
        .copied()
        .filter(|target| missing.remove(target))
        .collect();
    fill.extend(missing);
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
        fn every_wanted_endpoint_has_one_slot_and_few_slots_change(
            before in "[a-m]{0,12}", wanted in "[a-m]{0,12}",
        ) {
            let unique = |text: &str| {
                let mut seen = targets(text);
                seen.sort();
                seen.dedup();
                seen
            };
            let (before, wanted) = (unique(&before), unique(&wanted));
            let mut after = arrange(&before, &wanted);
            let written = after.iter().zip(&before).filter(|(a, b)| a != b).count()
                + after.len().saturating_sub(before.len());
            let gone = before.iter().filter(|t| !wanted.contains(t)).count();
            let new = wanted.iter().filter(|t| !before.contains(t)).count();
            prop_assert!(written <= gone.max(new));
            after.sort();
            prop_assert_eq!(after, wanted);
        }
    }
}
