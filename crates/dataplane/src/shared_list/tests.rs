use std::cmp::Ordering;
use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{LONGEST, SharedList};

/// A key and a value.
type Entry = (u16, u8);

#[derive(Debug, Clone)]
enum Step {
    Put(u16, u8),
    /// Many, so that parts fill up.
    PutFrom(u16, u8),
    Remove(u16),
    RemoveFrom(u16),
}

/// How many entries steps of several put or remove.
const MANY: u16 = 128;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0..600_u16;
    let step = prop_oneof![
        4 => (key(), any::<u8>()).prop_map(|(key, value)| Step::Put(key, value)),
        2 => (key(), any::<u8>()).prop_map(|(key, value)| Step::PutFrom(key, value)),
        4 => key().prop_map(Step::Remove),
        1 => key().prop_map(Step::RemoveFrom),
    ];
    vec(step, 0..40)
}

fn compare(entry: &Entry, key: u16) -> Ordering {
    entry.0.cmp(&key)
}

fn by_key(one: &Entry, other: &Entry) -> Ordering {
    one.0.cmp(&other.0)
}

fn take(steps: &[Step], list: &mut SharedList<Entry>, model: &mut BTreeMap<u16, u8>) {
    for step in steps {
        let (keys, value) = match step {
            Step::Put(key, value) => (*key..*key + 1, Some(*value)),
            Step::PutFrom(key, value) => (*key..*key + MANY, Some(*value)),
            Step::Remove(key) => (*key..*key + 1, None),
            Step::RemoveFrom(key) => (*key..*key + MANY, None),
        };
        for key in keys {
            match value {
                Some(value) => {
                    let replaced = list.put((key, value), |other| compare(other, key));
                    assert_eq!(replaced.map(|(_, value)| value), model.insert(key, value));
                }
                None => {
                    let was_there = list.remove(|other| compare(other, key));
                    assert_eq!(was_there.map(|(_, value)| value), model.remove(&key));
                }
            }
        }
    }
}

fn assert_same(list: &SharedList<Entry>, model: &BTreeMap<u16, u8>) {
    let entries: Vec<Entry> = list.iter().copied().collect();
    let expected: Vec<Entry> = model.iter().map(|(key, value)| (*key, *value)).collect();
    assert_eq!(entries, expected);
    assert_eq!(list.first(), expected.first());
    assert_eq!(list.last(), expected.last());
    for key in (0..800).step_by(7) {
        let from = list.first_from(|other| other.0 < key);
        let expected = model.range(key..).next();
        assert_eq!(from.copied(), expected.map(|(key, value)| (*key, *value)));
    }
    let parts = list.0.iter().map(|part| part.len());
    assert!(parts.clone().all(|len| (1..=LONGEST).contains(&len)));
    // Two neighbours together are more than half as long as one may be.
    assert!(parts.len() <= 2 + 4 * model.len() / LONGEST, "{parts:?}");
}

fn two() -> (SharedList<Entry>, BTreeMap<u16, u8>) {
    let list = SharedList::of(vec![(700, 0), (701, 1)]);
    (list, BTreeMap::from([(700, 0), (701, 1)]))
}

proptest! {
    #[test]
    fn it_answers_like_a_map_and_so_do_its_copies(first in steps(), then in steps()) {
        let (mut list, mut model) = two();
        take(&first, &mut list, &mut model);
        let (copy, copied_model) = (list.clone(), model.clone());
        take(&then, &mut list, &mut model);
        assert_same(&copy, &copied_model);
        assert_same(&list, &model);

        let pairs = copy.iter().unshared(list.iter(), by_key);
        let differing: Vec<_> = pairs.filter(|(before, after)| before != after).collect();
        let mut keys: Vec<u16> = copied_model.keys().chain(model.keys()).copied().collect();
        keys.sort_unstable();
        keys.dedup();
        let entry = |model: &BTreeMap<u16, u8>, key| model.get(&key).map(|value| (key, *value));
        let expected = keys.into_iter().map(|key| (entry(&copied_model, key), entry(&model, key)));
        let expected: Vec<_> = expected.filter(|(before, after)| before != after).collect();
        let differing: Vec<_> = differing.into_iter().map(|(a, b)| (a.copied(), b.copied())).collect();
        prop_assert_eq!(differing, expected);
    }
}

#[test]
fn a_comparison_with_a_copy_looks_at_the_changed_part() {
    let (mut before, mut model) = two();
    take(
        &[
            Step::PutFrom(0, 0),
            Step::PutFrom(MANY, 0),
            Step::PutFrom(2 * MANY, 0),
        ],
        &mut before,
        &mut model,
    );
    for key in [0, MANY + 1, 3 * MANY - 1] {
        let mut after = before.clone();
        after.put((key, 9), |other| compare(other, key));
        let pairs = before.iter().unshared(after.iter(), by_key);
        assert!(pairs.count() <= LONGEST);
        after.remove(|other| compare(other, key));
        let pairs = before.iter().unshared(after.iter(), by_key);
        assert!(pairs.count() <= 2 * LONGEST);
    }
}
