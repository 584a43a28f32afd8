//! The entries of one leaf.

use std::cmp::Ordering;

use crate::shared_list::{Entries, SharedList};

/// A full leaf grows by one entry plus its length divided by this.
const SLACK: usize = 8;

/// The entries of the longest leaf that is not divided into parts: as many as a leaf of a map of half a
/// million entries has.
pub(super) const LONGEST_SHORT: usize = 256;

/// Entries sorted by key.
#[derive(Clone)]
pub(super) enum Leaf<K, V> {
    Short(Vec<(K, V)>),
    /// Boxed, so that other leaves take no more memory than their list.
    Long(Box<SharedList<(K, V)>>),
}

// === impl Leaf ===

impl<K, V> Leaf<K, V> {
    /// These entries, which are sorted.
    pub(super) fn of(sorted: Vec<(K, V)>) -> Leaf<K, V> {
        match sorted.len() <= LONGEST_SHORT {
            true => Leaf::Short(sorted),
            false => Leaf::Long(Box::new(SharedList::of(sorted))),
        }
    }

    pub(super) fn iter(&self) -> Entries<'_, (K, V)> {
        match self {
            Leaf::Short(entries) => Entries::of(entries),
            Leaf::Long(parts) => parts.iter(),
        }
    }
}

impl<K: Ord + Clone, V: Clone> Leaf<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        let (_, value) = match self {
            Leaf::Short(entries) => entries.get(search(entries, key).ok()?)?,
            Leaf::Long(parts) => parts.get(by_key(key))?,
        };
        Some(value)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (_, value) = match self {
            Leaf::Short(entries) => {
                let at = search(entries, key).ok()?;
                entries.get_mut(at)?
            }
            Leaf::Long(parts) => parts.get_mut(by_key(key))?,
        };
        Some(value)
    }

    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let entries = match self {
            Leaf::Short(entries) => entries,
            Leaf::Long(parts) => {
                let before = parts.put((key.clone(), value), by_key(&key));
                return before.map(|(_, value)| value);
            }
        };
        match search(entries, &key) {
            Ok(at) => return Some(std::mem::replace(&mut entries[at].1, value)),
            Err(at) => {
                if entries.len() == entries.capacity() {
                    // Does not double: there are thousands of leaves, and most never grow again.
                    entries.reserve_exact(1 + entries.len() / SLACK);
                }
                entries.insert(at, (key, value));
            }
        }
        if entries.len() > LONGEST_SHORT {
            *self = Leaf::of(std::mem::take(entries));
        }
        None
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let (_, value) = match self {
            Leaf::Short(entries) => entries.remove(search(entries, key).ok()?),
            Leaf::Long(parts) => parts.remove(by_key(key))?,
        };
        Some(value)
    }
}

impl<K, V> Default for Leaf<K, V> {
    fn default() -> Leaf<K, V> {
        Leaf::Short(Vec::new())
    }
}

fn search<K: Ord, V>(entries: &[(K, V)], key: &K) -> Result<usize, usize> {
    entries.binary_search_by(by_key(key))
}

fn by_key<K: Ord, V>(key: &K) -> impl Fn(&(K, V)) -> Ordering {
    move |(other, _)| other.cmp(key)
}

/// The entries of both, sorted as these are; where both have a key, that of `new` counts. Returns `None` if
/// `old` has all of `new`.
pub(super) fn merged<K: Ord + Clone, V: PartialEq + Clone>(
    old: &[(K, V)],
    new: Vec<(K, V)>,
) -> Option<Vec<(K, V)>> {
    let found = |(key, _): &(K, V)| search(old, key);
    let added = new.iter().filter(|entry| found(entry).is_err()).count();
    let is_there = |entry: &(K, V)| found(entry).is_ok_and(|at| old[at].1 == entry.1);
    if added == 0 && new.iter().all(is_there) {
        return None;
    }
    let mut all = Vec::with_capacity(old.len() + added);
    let mut rest = old;
    for entry in new {
        let before = rest.partition_point(|(key, _)| *key < entry.0);
        all.extend_from_slice(&rest[..before]);
        rest = &rest[before..];
        if rest.first().is_some_and(|(key, _)| *key == entry.0) {
            rest = &rest[1..];
        }
        all.push(entry);
    }
    all.extend_from_slice(rest);
    Some(all)
}

/// Sorts by key, and keeps the last of entries with equal keys.
pub(super) fn sort_with_last<K: Ord, V>(leaf: &mut Vec<(K, V)>) {
    leaf.sort_by(|a, b| a.0.cmp(&b.0));
    leaf.dedup_by(|later, kept| {
        let is_same = later.0 == kept.0;
        if is_same {
            std::mem::swap(later, kept);
        }
        is_same
    });
}
