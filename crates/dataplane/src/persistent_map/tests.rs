use std::cell::Cell;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::leaf::{LONGEST_SHORT, Leaf};
use super::{Difference, PersistentMap, is_shared, unshared};

/// A key whose hash equals that of every fourth one, so that leaves fill up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CollidingKey(u8);

impl Hash for CollidingKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0 % 4).hash(state);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Insert(CollidingKey, u8),
    Ensure(CollidingKey, u8),
    Remove(CollidingKey),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || (0..24u8).prop_map(CollidingKey);
    let insert = (key(), 0..4u8).prop_map(|(key, value)| Step::Insert(key, value));
    let ensure = (key(), 0..4u8).prop_map(|(key, value)| Step::Ensure(key, value));
    vec(
        prop_oneof![2 => insert, 2 => ensure, 1 => key().prop_map(Step::Remove)],
        0..60,
    )
}

fn take(
    steps: &[Step],
    map: &mut PersistentMap<CollidingKey, u8>,
    model: &mut BTreeMap<CollidingKey, u8>,
) {
    for step in steps {
        match step {
            Step::Insert(key, value) => {
                assert_eq!(map.insert(*key, *value), model.insert(*key, *value));
            }
            Step::Ensure(key, value) => {
                map.ensure(*key, *value);
                model.insert(*key, *value);
            }
            Step::Remove(key) => assert_eq!(map.remove(key), model.remove(key)),
        }
    }
}

fn assert_same(map: &PersistentMap<CollidingKey, u8>, model: &BTreeMap<CollidingKey, u8>) {
    assert_eq!(map.len(), model.len());
    assert_eq!(map.is_empty(), model.is_empty());
    assert_eq!(map.sorted(), model.iter().collect::<Vec<_>>());
    for key in (0..24).map(CollidingKey) {
        assert_eq!(map.get(&key), model.get(&key));
    }
}

fn naive_differences<'a>(
    before: &'a BTreeMap<CollidingKey, u8>,
    after: &'a BTreeMap<CollidingKey, u8>,
) -> Vec<Difference<'a, CollidingKey, u8>> {
    let mut keys: Vec<_> = before.keys().chain(after.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.into_iter()
        .map(|key| Difference {
            key,
            before: before.get(key),
            after: after.get(key),
        })
        .filter(|difference| difference.before != difference.after)
        .collect()
}

proptest! {
    #[test]
    fn it_answers_like_an_ordinary_map(steps in steps()) {
        let (mut map, mut model) = (PersistentMap::default(), BTreeMap::new());
        take(&steps, &mut map, &mut model);
        assert_same(&map, &model);
    }

    #[test]
    fn a_copy_is_not_changed_by_what_happens_to_the_original(first in steps(), then in steps()) {
        let (mut map, mut model) = (PersistentMap::default(), BTreeMap::new());
        take(&first, &mut map, &mut model);
        let (copy, copied_model) = (map.clone(), model.clone());
        take(&then, &mut map, &mut model);
        assert_same(&copy, &copied_model);
        assert_same(&map, &model);
    }

    #[test]
    fn differences_are_those_of_ordinary_maps(first in steps(), then in steps()) {
        let (mut before, mut before_model) = (PersistentMap::default(), BTreeMap::new());
        take(&first, &mut before, &mut before_model);
        let (mut after, mut after_model) = (before.clone(), before_model.clone());
        take(&then, &mut after, &mut after_model);

        let mut differences = before.differences(&after);
        differences.sort_by_key(|difference| difference.key);
        prop_assert_eq!(&differences, &naive_differences(&before_model, &after_model));
        prop_assert_eq!(before == after, before_model == after_model);
    }

    #[test]
    fn made_at_once_it_is_as_if_made_one_by_one(
        entries in vec(((0..24u8).prop_map(CollidingKey), 0..4u8), 0..60), then in steps(),
    ) {
        let (mut one_by_one, mut model) = (PersistentMap::default(), BTreeMap::new());
        for (key, value) in &entries {
            one_by_one.insert(*key, *value);
            model.insert(*key, *value);
        }
        let mut at_once: PersistentMap<_, _> = entries.into_iter().collect();
        prop_assert!(at_once.iter().eq(one_by_one.iter()));
        prop_assert_eq!(&at_once, &one_by_one);
        assert_same(&at_once, &model);
        take(&then, &mut at_once, &mut model);
        assert_same(&at_once, &model);
    }

    #[test]
    fn many_entries_are_set_as_if_one_by_one(
        first in steps(),
        entries in vec(((0..24u8).prop_map(CollidingKey), 0..4u8), 0..60),
        then in steps(),
    ) {
        let (mut map, mut model) = (PersistentMap::default(), BTreeMap::new());
        take(&first, &mut map, &mut model);
        let (before, model_before) = (map.clone(), model.clone());
        map.merge(entries.clone());
        model.extend(entries);
        assert_same(&map, &model);
        assert_same(&before, &model_before);
        take(&then, &mut map, &mut model);
        assert_same(&map, &model);
    }

    #[test]
    fn the_order_of_iteration_depends_on_the_keys_alone(
        (entries, shuffled) in btree_map((0..24u8).prop_map(CollidingKey), 0..4u8, 0..24)
            .prop_map(Vec::from_iter)
            .prop_flat_map(|entries| (Just(entries.clone()), Just(entries).prop_shuffle())),
    ) {
        let sorted: PersistentMap<_, _> = entries.into_iter().collect();
        let shuffled: PersistentMap<_, _> = shuffled.into_iter().collect();
        prop_assert!(sorted.iter().eq(shuffled.iter()));
    }
}

#[test]
fn a_change_copies_one_leaf_and_shares_all_others() {
    let before: PersistentMap<u32, u32> = (0..10_000).map(|n| (n, n)).collect();
    let mut after = before.clone();
    assert!(is_shared(before.root.as_ref(), after.root.as_ref()));
    after.insert(77, 0);

    let branches: Vec<_> = unshared(before.root.as_ref(), after.root.as_ref()).collect();
    assert_eq!(branches.len(), 1);
    let leaves = branches
        .into_iter()
        .flat_map(|(old, new)| unshared(old, new));
    assert_eq!(leaves.count(), 1);
}

#[test]
fn many_entries_that_are_there_already_copy_nothing() {
    let before: PersistentMap<u32, u32> = (0..10_000).map(|n| (n, n)).collect();
    let mut after = before.clone();
    after.ensure_all((0..5_000).map(|n| (n, n)).collect());
    assert!(is_shared(before.root.as_ref(), after.root.as_ref()));

    after.ensure_all((5_000..20_000).map(|n| (n, n)).collect());
    let all: PersistentMap<u32, u32> = (0..20_000).map(|n| (n, n)).collect();
    assert_eq!(after, all);
}

#[test]
fn what_has_no_entries_has_no_memory_either() {
    let mut map: PersistentMap<u32, u32> = PersistentMap::default();
    assert!(map.root.is_none());
    map.insert(1, 1);
    assert_eq!(map.remove(&1), Some(1));
    assert!(map.root.is_none());
}

fn capacity<K, V>(leaf: &Leaf<K, V>) -> usize {
    match leaf {
        Leaf::Short(entries) => entries.capacity(),
        Leaf::Long(_) => panic!("it is longer than {LONGEST_SHORT}"),
    }
}

/// With doubling leaves, the table of 10,000 Services takes two fifths more memory.
#[test]
fn leaves_that_were_filled_one_by_one_have_little_room_to_spare() {
    let map: PersistentMap<u32, u32> = (0..70_000).map(|n| (n, n)).collect();
    let branches = map.root.iter().flat_map(|root| root.iter().flatten());
    let leaves = branches.flat_map(|branch| branch.iter().flatten());
    let room: usize = leaves.map(|leaf| capacity(leaf)).sum();
    assert!(room <= 70_000 * 9 / 8, "room for {room}");
    assert_eq!(size_of::<Leaf<u32, u32>>(), size_of::<Vec<(u32, u32)>>());
}

#[test]
fn removing_what_is_not_there_copies_nothing() {
    let before: PersistentMap<u32, u32> = (0..100).map(|n| (n, n)).collect();
    let mut after = before.clone();
    assert_eq!(after.remove(&100), None);
    assert!(is_shared(before.root.as_ref(), after.root.as_ref()));
}

#[test]
fn ensuring_what_stands_copies_nothing() {
    let before: PersistentMap<u32, u32> = (0..100).map(|n| (n, n)).collect();
    let mut after = before.clone();
    after.ensure(77, 77);
    assert!(is_shared(before.root.as_ref(), after.root.as_ref()));
    after.ensure(77, 0);
    assert_eq!(after.get(&77), Some(&0));
    assert_eq!(before.get(&77), Some(&77));
}

/// A key that belongs to the same leaf as all others, and counts its copies.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flooding(usize);

impl Hash for Flooding {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Clone for Flooding {
    fn clone(&self) -> Flooding {
        COPIED.set(COPIED.get() + 1);
        Flooding(self.0)
    }
}

/// T413: each insertion copied all entries of its leaf, and a user who chooses addresses can have all in one.
#[test]
fn t413_an_insertion_into_a_flooded_leaf_copies_a_part_of_it() {
    let keys = 20_000;
    let mut map = PersistentMap::default();
    let mut kept: PersistentMap<Flooding, usize>;
    COPIED.set(0);
    for n in (0..keys).map(|n| n * 7 % keys) {
        kept = map.clone();
        map.insert(Flooding(n), n);
        assert_eq!(kept.len() + 1, map.len());
    }
    // A leaf that is not yet long is copied as a whole.
    let short = LONGEST_SHORT * LONGEST_SHORT;
    assert!(COPIED.get() <= short + keys * 66, "{} copies", COPIED.get());

    kept = map.clone();
    map.insert(Flooding(77), 0);
    let counted = |map: &PersistentMap<Flooding, usize>| -> PersistentMap<Flooding, Counted> {
        map.iter()
            .map(|(key, n)| (Flooding(key.0), Counted(u32::try_from(*n).expect("few"))))
            .collect()
    };
    assert_eq!(kept.differences(&map).len(), 1);
    let before = counted(&kept);
    let mut after = before.clone();
    after.insert(Flooding(77), Counted(1));
    COMPARED.set(0);
    assert_eq!(before.differences(&after).len(), 1);
    assert!(COMPARED.get() <= 64, "{} comparisons", COMPARED.get());

    for n in (0..keys).map(|n| n * 11 % keys) {
        kept = map.clone();
        COPIED.set(0);
        assert!(map.remove(&Flooding(n)).is_some());
        assert!(COPIED.get() <= 3 * 64, "{} copies", COPIED.get());
        assert_eq!(kept.len(), map.len() + 1);
    }
    assert!(map.root.is_none());
}

proptest! {
    /// Leaves that become long and short again.
    #[test]
    fn a_flooded_map_answers_like_an_ordinary_one(
        steps in vec((0..600_usize, any::<bool>(), 0..300_usize), 0..12),
        then in vec((0..600_usize, any::<bool>(), 0..300_usize), 0..4),
    ) {
        let take = |steps: &[(usize, bool, usize)], map: &mut PersistentMap<_, _>, model: &mut BTreeMap<_, _>| {
            for (from, inserts, count) in steps {
                for n in *from..from + count {
                    let (before, expected) = match inserts {
                        true => (map.insert(Flooding(n), *count), model.insert(Flooding(n), *count)),
                        false => (map.remove(&Flooding(n)), model.remove(&Flooding(n))),
                    };
                    assert_eq!(before, expected);
                }
            }
        };
        let (mut map, mut model) = (PersistentMap::default(), BTreeMap::new());
        take(&steps, &mut map, &mut model);
        let (before, before_model) = (map.clone(), model.clone());
        take(&then, &mut map, &mut model);
        prop_assert!(map.iter().eq(model.iter()) && map.len() == model.len());
        prop_assert!(before.iter().eq(before_model.iter()));
        let at_once: PersistentMap<_, _> = model.clone().into_iter().collect();
        prop_assert_eq!(&at_once, &map);
        let changed: Vec<usize> = before.differences(&map).iter().map(|d| d.key.0).collect();
        let expected = (0..900).filter(|n| before_model.get(&Flooding(*n)) != model.get(&Flooding(*n)));
        prop_assert_eq!(changed, expected.collect::<Vec<_>>());
        for n in 0..900 {
            prop_assert_eq!(map.get(&Flooding(n)), model.get(&Flooding(n)));
            prop_assert_eq!(map.get_mut(&Flooding(n)).copied(), model.get(&Flooding(n)).copied());
        }
    }
}

thread_local! {
    static COPIED: Cell<usize> = const { Cell::new(0) };
    static COMPARED: Cell<usize> = const { Cell::new(0) };
}

/// A value that counts its comparisons.
#[derive(Debug, Clone)]
struct Counted(u32);

impl PartialEq for Counted {
    fn eq(&self, other: &Counted) -> bool {
        COMPARED.set(COMPARED.get() + 1);
        self.0 == other.0
    }
}

#[test]
fn a_comparison_looks_only_at_what_is_not_shared() {
    let before: PersistentMap<u32, Counted> = (0..10_000).map(|n| (n, Counted(n))).collect();
    let mut after = before.clone();
    after.insert(77, Counted(0));

    COMPARED.set(0);
    let differences = before.differences(&after);
    assert_eq!(differences.len(), 1);
    assert_eq!(differences[0].key, &77);
    // 10,000 entries in 4,096 leaves: the fullest leaf has about a dozen.
    assert!(COMPARED.get() <= 20, "{} comparisons", COMPARED.get());
}
