use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const MOST: usize = 10;

fn shop(name: &str) -> ServiceKey {
    ServiceKey::new("shop", name)
}

fn moved(limit: &mut NamespaceLimit, name: &str, elements: usize) -> Vec<String> {
    let moved = limit.record(&shop(name), elements).into_iter();
    moved.map(|key| key.name.to_string()).collect()
}

#[test]
fn the_first_by_name_are_served_whatever_came_first() {
    let mut limit = NamespaceLimit::new(MOST);
    assert_eq!(moved(&mut limit, "c", 5), [""; 0]);
    assert_eq!(moved(&mut limit, "b", 5), [""; 0]);
    assert_eq!(moved(&mut limit, "a", 5), ["c"]);
    // It would fit in the place of "c", and comes after it.
    assert_eq!(moved(&mut limit, "d", 0), [""; 0]);
    assert!(limit.serves(&shop("b")) && !limit.serves(&shop("c")) && !limit.serves(&shop("d")));
    assert_eq!(moved(&mut limit, "a", 0), ["c"]);
    assert!(limit.serves(&shop("d")));
}

#[test]
fn one_namespace_takes_nothing_from_another() {
    let mut limit = NamespaceLimit::new(MOST);
    moved(&mut limit, "a", MOST + 1);
    let other = ServiceKey::new("garage", "z");
    assert_eq!(limit.record(&other, MOST), []);
    assert!(limit.serves(&other) && !limit.serves(&shop("a")));
}

proptest! {
    /// Whatever the order of changes, what is served is the longest list of the first Services that
    /// fits, and each Service whose answer changes is returned by the change that causes it.
    #[test]
    fn what_is_served_follows_from_what_there_is(
        changes in vec((0..8_u8, 0..=MOST + 1), 0..40),
    ) {
        let mut limit = NamespaceLimit::new(MOST);
        let mut elements: BTreeMap<u8, usize> = BTreeMap::new();
        let mut answers: BTreeMap<u8, bool> = BTreeMap::new();
        for (number, change) in changes {
            let moved = limit.record(&shop(&number.to_string()), change);
            elements.insert(number, change);
            let mut sum = 0;
            for (other, of_other) in elements.iter().filter(|(_, elements)| **elements > 0) {
                sum += of_other;
                let key = shop(&other.to_string());
                prop_assert_eq!(limit.serves(&key), sum <= MOST);
                let before = answers.insert(*other, sum <= MOST);
                let changed = before.is_some_and(|before| before != (sum <= MOST));
                prop_assert_eq!(moved.contains(&key), changed && *other != number);
            }
            if change == 0 {
                answers.remove(&number);
            }
        }
        for number in 0..8_u8 {
            limit.record(&shop(&number.to_string()), 0);
        }
        prop_assert!(limit.namespaces.is_empty());
    }
}
