//! A map whose copies share what they have in common.
//!
//! The kernel's state is compared with what is wanted after every change, and a change touches one
//! Service among tens of thousands. A copy of this map is one reference count; an insertion copies
//! one leaf of about `len / 4096` entries; a comparison skips whatever both sides share.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Children of the root, and leaves of a child.
const FANOUT: usize = 64;

type Leaf<K, V> = Arc<Vec<(K, V)>>;
type Branch<K, V> = Arc<[Leaf<K, V>; FANOUT]>;

/// A map in which untouched entries are shared between copies. Its order of iteration depends on
/// its keys alone.
pub struct PersistentMap<K, V> {
    root: Arc<[Branch<K, V>; FANOUT]>,
    len: usize,
}

/// One key at which two maps differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference<'a, K, V> {
    /// The key.
    pub key: &'a K,
    /// What the first map has.
    pub before: Option<&'a V>,
    /// What the second map has.
    pub after: Option<&'a V>,
}

// === impl PersistentMap ===

impl<K, V> PersistentMap<K, V> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Every entry, in an order that depends on the keys alone.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.root
            .iter()
            .flat_map(|branch| branch.iter())
            .flat_map(|leaf| leaf.iter())
            .map(|(key, value)| (key, value))
            // Behind the last one there may be thousands of empty leaves.
            .take(self.len)
    }
}

impl<K: Hash + Ord + Clone, V: Clone> PersistentMap<K, V> {
    /// The value at `key`.
    pub fn get(&self, key: &K) -> Option<&V> {
        let (branch, leaf) = place(key);
        let leaf = &self.root[branch][leaf];
        leaf.binary_search_by(|(other, _)| other.cmp(key))
            .ok()
            .map(|at| &leaf[at].1)
    }

    /// Puts `value` at `key`; returns what stood there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let leaf = self.leaf_mut(&key);
        match leaf.binary_search_by(|(other, _)| other.cmp(&key)) {
            Ok(at) => Some(std::mem::replace(&mut leaf[at].1, value)),
            Err(at) => {
                leaf.insert(at, (key, value));
                self.len += 1;
                None
            }
        }
    }

    /// Takes out the entry at `key`; returns what stood there.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        self.get(key)?;
        let leaf = self.leaf_mut(key);
        let at = leaf.binary_search_by(|(other, _)| other.cmp(key)).ok()?;
        let (_, value) = leaf.remove(at);
        self.len -= 1;
        Some(value)
    }

    /// Every entry, in the order of the keys. Costs a sort: for people's eyes.
    pub fn sorted(&self) -> Vec<(&K, &V)> {
        let mut entries: Vec<_> = self.iter().collect();
        entries.sort_by(|a, b| a.0.cmp(b.0));
        entries
    }

    fn leaf_mut(&mut self, key: &K) -> &mut Vec<(K, V)> {
        let (branch, leaf) = place(key);
        let branch = Arc::make_mut(&mut Arc::make_mut(&mut self.root)[branch]);
        Arc::make_mut(&mut branch[leaf])
    }
}

impl<K: Hash + Ord + Clone, V: PartialEq> PersistentMap<K, V> {
    /// Where `self` and `after` differ. Costs what they do not share.
    pub fn differences<'a>(&'a self, after: &'a PersistentMap<K, V>) -> Vec<Difference<'a, K, V>> {
        let mut differences = Vec::new();
        let both_empty = self.is_empty() && after.is_empty();
        if both_empty || Arc::ptr_eq(&self.root, &after.root) {
            return differences;
        }
        for (old_branch, new_branch) in self.root.iter().zip(after.root.iter()) {
            if Arc::ptr_eq(old_branch, new_branch) {
                continue;
            }
            for (old_leaf, new_leaf) in old_branch.iter().zip(new_branch.iter()) {
                if !Arc::ptr_eq(old_leaf, new_leaf) {
                    merge(old_leaf, new_leaf, &mut differences);
                }
            }
        }
        differences
    }
}

fn place<K: Hash>(key: &K) -> (usize, usize) {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let [low, high, ..] = hasher.finish().to_le_bytes();
    (usize::from(low) % FANOUT, usize::from(high) % FANOUT)
}

fn merge<'a, K: Ord, V: PartialEq>(
    before: &'a [(K, V)],
    after: &'a [(K, V)],
    differences: &mut Vec<Difference<'a, K, V>>,
) {
    let (mut old, mut new) = (before.iter().peekable(), after.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.cmp(b),
        };
        let before = if order.is_le() { old.next() } else { None };
        let after = if order.is_ge() { new.next() } else { None };
        let Some((key, _)) = before.or(after) else {
            return;
        };
        let (before, after) = (before.map(|(_, v)| v), after.map(|(_, v)| v));
        if before != after {
            differences.push(Difference { key, before, after });
        }
    }
}

impl<K, V> Clone for PersistentMap<K, V> {
    fn clone(&self) -> PersistentMap<K, V> {
        PersistentMap {
            root: Arc::clone(&self.root),
            len: self.len,
        }
    }
}

impl<K, V> Default for PersistentMap<K, V> {
    fn default() -> PersistentMap<K, V> {
        let leaf: Leaf<K, V> = Arc::new(Vec::new());
        let branch: Branch<K, V> = Arc::new(std::array::from_fn(|_| Arc::clone(&leaf)));
        PersistentMap {
            root: Arc::new(std::array::from_fn(|_| Arc::clone(&branch))),
            len: 0,
        }
    }
}

impl<K: Hash + Ord + Clone, V: PartialEq> PartialEq for PersistentMap<K, V> {
    fn eq(&self, other: &PersistentMap<K, V>) -> bool {
        self.len == other.len && self.differences(other).is_empty()
    }
}

impl<K: Hash + Ord + Clone, V: Eq> Eq for PersistentMap<K, V> {}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for PersistentMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Hash + Ord + Clone, V: Clone> FromIterator<(K, V)> for PersistentMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> PersistentMap<K, V> {
        let mut map = PersistentMap::default();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

#[cfg(test)]
mod tests;
