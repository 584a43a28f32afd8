//! A map whose copies share unchanged entries.
//!
//! The kernel's state is compared with the desired one after every change, and a change touches one
//! Service among tens of thousands. A copy of this map is one reference count; an insertion copies
//! one leaf of about `len / 4096` entries; a comparison skips whatever both sides share.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Children of the root, and leaves of a child.
const FANOUT: usize = 64;
/// A full leaf grows by one entry plus its length divided by this.
const SLACK: usize = 8;

/// A child is `None` if nothing was ever inserted there.
type Node<T> = Arc<[Option<T>; FANOUT]>;
type Leaf<K, V> = Arc<Vec<(K, V)>>;
type Branch<K, V> = Node<Leaf<K, V>>;

/// A map in which unchanged entries are shared between copies. The iteration order depends only on
/// the keys. A map without entries allocates no memory.
pub struct PersistentMap<K, V> {
    root: Option<Node<Branch<K, V>>>,
    len: usize,
}

/// The leaf that a key belongs to.
#[derive(Clone, Copy)]
struct LeafPosition {
    /// The index of the child of the root.
    branch: usize,
    /// The index of the leaf in that child.
    leaf: usize,
}

/// A key at which two maps differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference<'a, K, V> {
    /// The key.
    pub key: &'a K,
    /// The first map's value.
    pub before: Option<&'a V>,
    /// The second map's value.
    pub after: Option<&'a V>,
}

// === impl PersistentMap ===

impl<K, V> PersistentMap<K, V> {
    /// A map without entries.
    pub const fn new() -> PersistentMap<K, V> {
        PersistentMap { root: None, len: 0 }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Every entry, in an order that depends only on the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let branches = self.root.iter().flat_map(|root| root.iter().flatten());
        let leaves = branches.flat_map(|branch| branch.iter().flatten());
        leaves
            .flat_map(|leaf| leaf.iter())
            .map(|(key, value)| (key, value))
            // After the last entry there may be thousands of empty places.
            .take(self.len)
    }
}

impl<K: Hash + Ord + Clone, V: Clone> PersistentMap<K, V> {
    /// The value at `key`.
    pub fn get(&self, key: &K) -> Option<&V> {
        let (place, at) = self.find_existing(key)?;
        self.leaf(place)?.get(at).map(|(_, value)| value)
    }

    /// Sets `key` to `value`. Returns the previous value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (place, at) = self.find(&key);
        self.insert_at(place, at, key, value)
    }

    /// Sets `key` to `value`. Copies nothing if it has that value already.
    pub fn ensure(&mut self, key: K, value: V)
    where
        V: PartialEq,
    {
        let (place, at) = self.find(&key);
        let stands = at.is_ok_and(|at| {
            let leaf = self.leaf(place);
            leaf.is_some_and(|leaf| leaf[at].1 == value)
        });
        if !stands {
            self.insert_at(place, at, key, value);
        }
    }

    /// Removes the entry at `key`. Returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (place, at) = self.find_existing(key)?;
        let (_, value) = self.leaf_mut(place).remove(at);
        self.len -= 1;
        if self.is_empty() {
            self.root = None;
        }
        Some(value)
    }

    /// Every entry, sorted by key. Costs a sort, so it is meant for output.
    pub fn sorted(&self) -> Vec<(&K, &V)> {
        let mut entries: Vec<_> = self.iter().collect();
        entries.sort_by(|a, b| a.0.cmp(b.0));
        entries
    }

    /// Finds the leaf of `key`, and its index in that leaf or where it would be inserted.
    fn find(&self, key: &K) -> (LeafPosition, Result<usize, usize>) {
        let place = place(key);
        let search = |leaf: &Leaf<K, V>| leaf.binary_search_by(|(other, _)| other.cmp(key));
        (place, self.leaf(place).map_or(Err(0), search))
    }

    /// The same for an existing key. Most sets of a node are empty, so that case is checked first.
    fn find_existing(&self, key: &K) -> Option<(LeafPosition, usize)> {
        if self.is_empty() {
            return None;
        }
        let (place, at) = self.find(key);
        Some((place, at.ok()?))
    }

    fn leaf(&self, LeafPosition { branch, leaf }: LeafPosition) -> Option<&Leaf<K, V>> {
        self.root.as_ref()?[branch].as_ref()?[leaf].as_ref()
    }

    /// Inserts at `at`, the result of [`PersistentMap::find`] for `key`.
    fn insert_at(
        &mut self,
        place: LeafPosition,
        at: Result<usize, usize>,
        key: K,
        value: V,
    ) -> Option<V> {
        let leaf = self.leaf_mut(place);
        match at {
            Ok(at) => Some(std::mem::replace(&mut leaf[at].1, value)),
            Err(at) => {
                if leaf.len() == leaf.capacity() {
                    // Does not double: there are thousands of leaves, and most never grow again.
                    leaf.reserve_exact(1 + leaf.len() / SLACK);
                }
                leaf.insert(at, (key, value));
                self.len += 1;
                None
            }
        }
    }

    fn leaf_mut(&mut self, LeafPosition { branch, leaf }: LeafPosition) -> &mut Vec<(K, V)> {
        let root = self.root.get_or_insert_with(empty);
        let branch = Arc::make_mut(root)[branch].get_or_insert_with(empty);
        Arc::make_mut(Arc::make_mut(branch)[leaf].get_or_insert_default())
    }
}

impl<K: Hash + Ord + Clone, V: PartialEq> PersistentMap<K, V> {
    /// The keys at which `self` and `after` differ. The cost is proportional to what they do not
    /// share.
    pub fn differences<'a>(&'a self, after: &'a PersistentMap<K, V>) -> Vec<Difference<'a, K, V>> {
        // A lower bound, which is exact at a start.
        let mut differences = Vec::with_capacity(self.len.abs_diff(after.len));
        for (old, new) in unshared(self.root.as_ref(), after.root.as_ref()) {
            for (old, new) in unshared(old, new) {
                let entries = |leaf: Option<&'a Leaf<K, V>>| leaf.map_or(&[][..], |leaf| leaf);
                merge(entries(old), entries(new), &mut differences);
            }
        }
        differences
    }
}

fn empty<T>() -> Node<T> {
    Arc::new(std::array::from_fn(|_| None))
}

/// The pairs of children of two nodes, without those that both share.
fn unshared<'a, T: ?Sized>(
    before: Option<&'a Node<Arc<T>>>,
    after: Option<&'a Node<Arc<T>>>,
) -> impl Iterator<Item = (Option<&'a Arc<T>>, Option<&'a Arc<T>>)> {
    let places = match is_shared(before, after) {
        true => 0..0,
        false => 0..FANOUT,
    };
    places
        .map(move |at| {
            let child = |node: Option<&'a Node<Arc<T>>>| node.and_then(|node| node[at].as_ref());
            (child(before), child(after))
        })
        .filter(|(before, after)| !is_shared(*before, *after))
}

fn is_shared<T: ?Sized>(before: Option<&Arc<T>>, after: Option<&Arc<T>>) -> bool {
    match (before, after) {
        (None, None) => true,
        (Some(before), Some(after)) => Arc::ptr_eq(before, after),
        (None, Some(_)) | (Some(_), None) => false,
    }
}

fn place<K: Hash>(key: &K) -> LeafPosition {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let [low, high, ..] = hasher.finish().to_le_bytes();
    LeafPosition {
        branch: usize::from(low) % FANOUT,
        leaf: usize::from(high) % FANOUT,
    }
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
            root: self.root.clone(),
            len: self.len,
        }
    }
}

impl<K, V> Default for PersistentMap<K, V> {
    fn default() -> PersistentMap<K, V> {
        PersistentMap::new()
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

impl<K: Hash + Ord, V> FromIterator<(K, V)> for PersistentMap<K, V> {
    /// If a key occurs twice, the last entry counts. Allocates each leaf once, in its final size,
    /// which takes half the time of individual insertions and does not fragment memory.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> PersistentMap<K, V> {
        let entries: Vec<(K, V)> = entries.into_iter().collect();
        if entries.is_empty() {
            return PersistentMap::new();
        }
        let places: Vec<usize> = entries.iter().map(|(key, _)| place(key).number()).collect();
        let mut lengths = vec![0; FANOUT * FANOUT];
        for place in &places {
            lengths[*place] += 1;
        }
        let mut leaves: Vec<Vec<(K, V)>> = lengths.into_iter().map(Vec::with_capacity).collect();
        for (entry, place) in entries.into_iter().zip(places) {
            leaves[place].push(entry);
        }
        let mut len = 0;
        let mut leaves = leaves.into_iter().map(|mut leaf| {
            sort_with_last(&mut leaf);
            len += leaf.len();
            (!leaf.is_empty()).then(|| Arc::new(leaf))
        });
        let root = Arc::new(std::array::from_fn(|_| {
            let branch: [Option<Leaf<K, V>>; FANOUT] =
                std::array::from_fn(|_| leaves.next().flatten());
            branch.iter().any(Option::is_some).then(|| Arc::new(branch))
        }));
        PersistentMap {
            root: Some(root),
            len,
        }
    }
}

/// Sorts by key, and keeps the last of entries with equal keys.
fn sort_with_last<K: Ord, V>(leaf: &mut Vec<(K, V)>) {
    leaf.sort_by(|a, b| a.0.cmp(&b.0));
    leaf.dedup_by(|later, kept| {
        let is_same = later.0 == kept.0;
        if is_same {
            std::mem::swap(later, kept);
        }
        is_same
    });
}

// === impl LeafPosition ===

impl LeafPosition {
    /// The number of leaves before it.
    fn number(self) -> usize {
        self.branch * FANOUT + self.leaf
    }
}

#[cfg(test)]
mod tests;
