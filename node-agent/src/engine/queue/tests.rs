use std::time::{Duration, SystemTime};

use super::*;

fn pending(since: Instant) -> Pending {
    let trigger = Trigger::Untimed;
    Pending { since, trigger }
}

fn names(queue: &mut Queue, size: Size) -> Vec<String> {
    let next = || queue.pop(size).map(|(key, _)| key.to_string());
    std::iter::from_fn(next).collect()
}

#[test]
fn namespaces_take_turns_and_within_one_the_first_comes_first() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    for (namespace, name) in [("a", "3"), ("a", "1"), ("a", "2"), ("b", "1"), ("c", "1")] {
        queue.push(ServiceKey::new(namespace, name), pending(now), 1);
    }
    let expected = ["a/3", "b/1", "c/1", "a/1", "a/2"];
    assert_eq!(names(&mut queue, Size::Small), expected);
    assert!(queue.is_empty());
}

#[test]
fn a_service_that_changes_again_keeps_its_place_and_the_oldest_stamps() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    let first = ServiceKey::new("shop", "cart");
    queue.push(first.clone(), pending(now), 1);
    queue.push(ServiceKey::new("shop", "till"), pending(now), 1);
    let trigger = Trigger::At(SystemTime::UNIX_EPOCH);
    let since = now + Duration::from_secs(1);
    queue.push(first.clone(), Pending { since, trigger }, 1);
    assert_eq!(queue.len(), 2);
    let (key, pending) = queue.pop(Size::Small).expect("it waits");
    assert_eq!((key, pending.since), (first, now));
    assert_eq!(pending.trigger, trigger);
}

#[test]
fn a_service_that_grows_while_it_waits_does_not_stay_among_the_small_ones() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    let cart = ServiceKey::new("shop", "cart");
    queue.push(cart.clone(), pending(now), MOST_SMALL);
    queue.push(cart.clone(), pending(now), MOST_SMALL + 1);
    queue.push(cart, pending(now), 1);
    assert_eq!(names(&mut queue, Size::Small), [""; 0]);
    assert_eq!(names(&mut queue, Size::Large), ["shop/cart"]);
}

#[test]
fn passes_alternate_only_while_there_are_both_sizes() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    let mut pass = |small: &[&str], large: &[&str]| {
        for (names, work) in [(small, 1), (large, MOST_SMALL + 1)] {
            for name in names {
                queue.push(ServiceKey::new("shop", *name), pending(now), work);
            }
        }
        let size = queue.begin();
        queue.pop(size).map(|(key, _)| key.name.to_string())
    };
    assert_eq!(pass(&["1", "2", "3"], &[]).as_deref(), Some("1"));
    assert_eq!(pass(&[], &[]).as_deref(), Some("2"));
    assert_eq!(pass(&[], &["A", "B"]).as_deref(), Some("A"));
    assert_eq!(pass(&[], &[]).as_deref(), Some("3"));
    assert_eq!(pass(&[], &[]).as_deref(), Some("B"));
    assert_eq!(pass(&[], &[]), None);
}
