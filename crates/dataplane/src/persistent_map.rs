//! A map whose copies share unchanged entries.
//!
//! The kernel's state is compared with the desired one after every change, and a change touches one
//! Service among tens of thousands. A copy of this map is one reference count; an insertion copies
//! one leaf of about `len / 4096` entries; a comparison skips whatever both sides share.
//!
//! The hash of a key is the same on every node and after every start, so that the order of entries is.
//! Users who write Services can therefore choose addresses that all belong to one leaf: the entries of a
//! large leaf are in parts, of which an insertion copies one.

mod leaf;

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use self::leaf::{Leaf, merged, sort_with_last};
use crate::shared_list::Entries;

/// Children of the root, and leaves of a child.
const FANOUT: usize = 64;
/// As many entries as are inserted one by one: for more, it pays to group them by leaf first.
const FEW: usize = 1024;

/// A child is `None` if nothing was ever inserted there.
type Node<T> = Arc<[Option<T>; FANOUT]>;
type Branch<K, V> = Node<Arc<Leaf<K, V>>>;

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
        // Most sets of a node are empty.
        if self.is_empty() {
            return None;
        }
        self.leaf(place(key))?.get(key)
    }

    /// The value at `key`, for a change: copies what other maps share of the way to it.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let place = self.place_of(key)?;
        self.leaf_mut(place).get_mut(key)
    }

    /// Sets `key` to `value`. Returns the previous value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let before = self.leaf_mut(place(&key)).insert(key, value);
        if before.is_none() {
            self.len += 1;
        }
        before
    }

    /// Sets `key` to `value`. Copies nothing if it has that value already.
    pub fn ensure(&mut self, key: K, value: V)
    where
        V: PartialEq,
    {
        if self.get(&key) != Some(&value) {
            self.insert(key, value);
        }
    }

    /// Sets keys to values; of a key that occurs twice the last entry counts. Of many entries, those of a
    /// leaf are set together: it is copied and allocated once, in its new size.
    pub fn ensure_all(&mut self, entries: Vec<(K, V)>)
    where
        V: PartialEq,
    {
        if entries.len() < FEW {
            for (key, value) in entries {
                self.ensure(key, value);
            }
            return;
        }
        self.merge(entries);
    }

    fn merge(&mut self, entries: Vec<(K, V)>)
    where
        V: PartialEq,
    {
        for (number, new) in by_leaf(entries).into_iter().enumerate() {
            if new.is_empty() {
                continue;
            }
            let place = LeafPosition::of(number);
            let leaf = match self.leaf(place).map(|leaf| &**leaf) {
                None => Some(Leaf::of(new)),
                Some(Leaf::Short(old)) => merged(old, new).map(Leaf::of),
                Some(Leaf::Long(_)) => {
                    for (key, value) in new {
                        self.ensure(key, value);
                    }
                    continue;
                }
            };
            if let Some(leaf) = leaf {
                let before = self.leaf(place).map_or(0, |leaf| leaf.iter().count());
                self.len += leaf.iter().count() - before;
                *self.place_mut(place) = Some(Arc::new(leaf));
            }
        }
    }

    /// Removes the entry at `key`. Returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let place = self.place_of(key)?;
        let before = self.leaf_mut(place).remove(key)?;
        self.len -= 1;
        if self.is_empty() {
            self.root = None;
        }
        Some(before)
    }

    /// Every entry, sorted by key. Costs a sort, so it is meant for output.
    pub fn sorted(&self) -> Vec<(&K, &V)> {
        let mut entries: Vec<_> = self.iter().collect();
        entries.sort_by(|a, b| a.0.cmp(b.0));
        entries
    }

    /// The leaf of an existing key.
    fn place_of(&self, key: &K) -> Option<LeafPosition> {
        if self.is_empty() {
            return None;
        }
        let place = place(key);
        self.leaf(place)?.get(key).map(|_| place)
    }

    fn leaf(&self, LeafPosition { branch, leaf }: LeafPosition) -> Option<&Arc<Leaf<K, V>>> {
        self.root.as_ref()?[branch].as_ref()?[leaf].as_ref()
    }

    fn leaf_mut(&mut self, place: LeafPosition) -> &mut Leaf<K, V> {
        Arc::make_mut(self.place_mut(place).get_or_insert_default())
    }

    fn place_mut(
        &mut self,
        LeafPosition { branch, leaf }: LeafPosition,
    ) -> &mut Option<Arc<Leaf<K, V>>> {
        let root = self.root.get_or_insert_with(empty);
        let branch = Arc::make_mut(root)[branch].get_or_insert_with(empty);
        &mut Arc::make_mut(branch)[leaf]
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
                let entries = |leaf: Option<&'a Arc<Leaf<K, V>>>| {
                    leaf.map_or(Entries::of(&[]), |leaf| leaf.iter())
                };
                let order = |a: &(K, V), b: &(K, V)| a.0.cmp(&b.0);
                let pairs = entries(old).unshared(entries(new), order);
                differences.extend(pairs.filter_map(|(old, new)| difference(old, new)));
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

fn difference<'a, K, V: PartialEq>(
    before: Option<&'a (K, V)>,
    after: Option<&'a (K, V)>,
) -> Option<Difference<'a, K, V>> {
    let (key, _) = before.or(after)?;
    let [before, after] = [before, after].map(|entry| entry.map(|(_, value)| value));
    (before != after).then_some(Difference { key, before, after })
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
        let mut len = 0;
        let mut leaves = by_leaf(entries).into_iter().map(|leaf| {
            len += leaf.len();
            (!leaf.is_empty()).then(|| Arc::new(Leaf::of(leaf)))
        });
        let root = Arc::new(std::array::from_fn(|_| {
            let branch: [Option<Arc<Leaf<K, V>>>; FANOUT] =
                std::array::from_fn(|_| leaves.next().flatten());
            branch.iter().any(Option::is_some).then(|| Arc::new(branch))
        }));
        PersistentMap {
            root: Some(root),
            len,
        }
    }
}

/// The entries of each leaf, sorted by key. Of entries with equal keys the last is kept.
fn by_leaf<K: Hash + Ord, V>(entries: Vec<(K, V)>) -> Vec<Vec<(K, V)>> {
    let places: Vec<usize> = entries.iter().map(|(key, _)| place(key).number()).collect();
    let mut lengths = vec![0; FANOUT * FANOUT];
    for place in &places {
        lengths[*place] += 1;
    }
    let mut leaves: Vec<Vec<(K, V)>> = lengths.into_iter().map(Vec::with_capacity).collect();
    for (entry, place) in entries.into_iter().zip(places) {
        leaves[place].push(entry);
    }
    for leaf in &mut leaves {
        sort_with_last(leaf);
    }
    leaves
}

// === impl LeafPosition ===

impl LeafPosition {
    /// The leaf with this many before it.
    fn of(number: usize) -> LeafPosition {
        LeafPosition {
            branch: number / FANOUT,
            leaf: number % FANOUT,
        }
    }

    /// The number of leaves before it.
    fn number(self) -> usize {
        self.branch * FANOUT + self.leaf
    }
}

#[cfg(test)]
mod tests;
