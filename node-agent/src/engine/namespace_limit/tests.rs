use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const MOST: usize = 10;

fn shop(name: &str) -> ServiceKey {
    ServiceKey::new("shop", name)
}

fn moved(limit: &mut NamespaceLimit, name: &str, elements: usize) -> [Vec<String>; 2] {
    let Moved {
        evicted,
        candidates,
    } = limit.record(&shop(name), Some(elements));
    let names = |keys: Vec<ServiceKey>| keys.iter().map(|key| key.name.to_string()).collect();
    [evicted, candidates].map(names)
}

#[test]
fn the_first_by_name_are_served_whatever_came_first() {
    let mut limit = NamespaceLimit::new(MOST);
    let nobody: [Vec<String>; 2] = [vec![], vec![]];
    assert_eq!(moved(&mut limit, "c", 5), nobody);
    assert_eq!(moved(&mut limit, "b", 5), nobody);
    assert_eq!(moved(&mut limit, "a", 5), [vec!["c".to_owned()], vec![]]);
    // It may be as small as it likes.
    assert!(limit.cannot_fit(&shop("d")) && !limit.cannot_fit(&shop("c")));
    assert!(limit.serves(&shop("b")) && !limit.serves(&shop("c")) && !limit.serves(&shop("d")));
    assert_eq!(moved(&mut limit, "a", 0), [vec![], vec!["c".to_owned()]]);
    assert!(limit.serves(&shop("d")));
}

#[test]
fn one_that_was_not_compiled_is_counted_when_its_turn_comes() {
    let mut limit = NamespaceLimit::new(MOST);
    moved(&mut limit, "a", MOST);
    moved(&mut limit, "b", 1);
    assert_eq!(limit.record(&shop("c"), None), Moved::default());
    let names = vec!["b".to_owned(), "c".to_owned()];
    assert_eq!(moved(&mut limit, "a", 1), [vec![], names]);
    assert!(limit.serves(&shop("b")) && !limit.serves(&shop("c")));
    moved(&mut limit, "c", 1);
    assert!(limit.serves(&shop("c")));
}

#[test]
fn one_namespace_takes_nothing_from_another() {
    let mut limit = NamespaceLimit::new(MOST);
    moved(&mut limit, "a", MOST + 1);
    let other = ServiceKey::new("garage", "z");
    assert_eq!(limit.record(&other, Some(MOST)), Moved::default());
    assert!(limit.serves(&other) && !limit.serves(&shop("a")));
}

proptest! {
    /// Whatever the order of changes, what is served is the longest list of the first Services that
    /// fits, once those whose turn it is are counted. Each Service whose answer changes is returned.
    #[test]
    fn what_is_served_follows_from_what_there_is(
        changes in vec((0..8_u8, 0..=MOST + 1), 0..40),
    ) {
        let mut limit = NamespaceLimit::new(MOST);
        let mut elements: BTreeMap<ServiceKey, usize> = BTreeMap::new();
        let mut served: BTreeMap<ServiceKey, bool> = BTreeMap::new();
        for (number, change) in changes {
            let changed = shop(&number.to_string());
            match change {
                0 => drop(elements.remove(&changed)),
                _ => drop(elements.insert(changed.clone(), change)),
            }
            let mut waiting = vec![changed];
            while let Some(key) = waiting.pop() {
                let known = match limit.cannot_fit(&key) && elements.contains_key(&key) {
                    true => None,
                    false => Some(elements.get(&key).copied().unwrap_or_default()),
                };
                let Moved { evicted, candidates } = limit.record(&key, known);
                served.extend(evicted.into_iter().map(|key| (key, false)));
                waiting.extend(candidates);
                let answer = elements.contains_key(&key) && limit.serves(&key);
                served.insert(key, answer);
            }
            let mut sum = 0;
            for (key, of_key) in &elements {
                sum += of_key;
                prop_assert_eq!(limit.serves(key), sum <= MOST);
                prop_assert_eq!(served.get(key), Some(&(sum <= MOST)));
            }
        }
        for number in 0..8_u8 {
            limit.record(&shop(&number.to_string()), Some(0));
        }
        prop_assert!(limit.namespaces.is_empty());
    }
}
