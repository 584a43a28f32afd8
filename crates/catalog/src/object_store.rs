//! The objects of one kind, and the progress of their list.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use dataplane::{ObjectKind, Rejection};

use crate::parse::Parsed;
use crate::{Event, ObjectKey};

/// The parsed objects of one kind.
#[derive(Debug)]
pub(crate) struct ObjectStore<T> {
    kind: ObjectKind,
    listing: Listing,
    /// The number of the current list; an object with a lower number was not in it.
    round: u64,
    entries: BTreeMap<ObjectKey, Entry<T>>,
    /// The keys of the objects that have rejections, so that a query for rejections skips all other
    /// objects.
    rejected: BTreeSet<ObjectKey>,
}

/// The state of one object. An object without a value and without faults has no entry.
#[derive(Debug)]
struct Entry<T> {
    value: Option<T>,
    /// `None` for almost all objects.
    faults: Option<Arc<Faults>>,
    round: u64,
}

/// The errors in one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// The rejections in the version decoded last.
    rejections: Vec<Rejection>,
    /// Set if the object has since changed to a version that cannot be decoded.
    undecodable: Option<Rejection>,
}

/// The progress of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listing {
    /// No list has begun.
    Awaited,
    /// The first list has begun.
    First,
    /// The last list has ended.
    Complete,
    /// Another list has begun.
    Again,
}

/// What an event does to one object.
pub(crate) enum Step<O> {
    Put(O),
    Remove(ObjectKey),
}

/// The result of a step.
pub(crate) struct Replaced<T> {
    /// The previous value.
    pub(crate) before: Option<T>,
    /// Whether the object's rejections changed.
    pub(crate) rejections_changed: bool,
}

// === impl ObjectStore ===

impl<T> ObjectStore<T> {
    /// The bytes that one object takes, excluding its key and what its value points to.
    #[cfg(test)]
    pub(crate) const ENTRY: usize = size_of::<Entry<T>>();

    pub(crate) fn new(kind: ObjectKind) -> ObjectStore<T> {
        ObjectStore {
            kind,
            listing: Listing::Awaited,
            round: 0,
            entries: BTreeMap::new(),
            rejected: BTreeSet::new(),
        }
    }

    /// Whether at least one list has ended.
    pub(crate) fn synced(&self) -> bool {
        matches!(self.listing, Listing::Complete | Listing::Again)
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&T> {
        self.entries.get(key)?.value.as_ref()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries
            .values()
            .filter_map(|entry| entry.value.as_ref())
    }

    pub(crate) fn faults(&self) -> impl Iterator<Item = &Arc<Faults>> {
        self.rejected
            .iter()
            .filter_map(|key| self.entries.get(key)?.faults.as_ref())
    }

    /// Returns the steps for `event`, in order, and whether rejections changed: that is the only
    /// effect of an object that cannot be decoded.
    pub(crate) fn receive<O>(&mut self, event: Event<O>) -> (Vec<Step<O>>, bool) {
        match event {
            Event::Init => {
                self.begin();
                (Vec::new(), false)
            }
            Event::InitApply(object) | Event::Apply(object) => (vec![Step::Put(object)], false),
            Event::InitDone => (self.finish().into_iter().map(Step::Remove).collect(), false),
            Event::Delete(key) => (vec![Step::Remove(key)], false),
            Event::Undecodable {
                key,
                field,
                message,
            } => (Vec::new(), self.keep_as_it_was(key, field, message)),
        }
    }

    /// Replaces the state of an object.
    pub(crate) fn put(&mut self, key: ObjectKey, parsed: Parsed<T>) -> Replaced<T> {
        // The old key is inserted again with the new value: its text is shared.
        let (key, before) = match self.entries.remove_entry(&key) {
            Some((key, entry)) => (key, Some(entry)),
            None => (key, None),
        };
        let rejected = !parsed.rejections.is_empty();
        let faults = rejected.then(|| {
            Arc::new(Faults {
                rejections: parsed.rejections,
                undecodable: None,
            })
        });
        let known = before.as_ref().and_then(|entry| entry.faults.as_ref());
        let rejections_changed = known != faults.as_ref();
        if rejected {
            self.rejected.insert(key.clone());
        } else {
            self.rejected.remove(&key);
        }
        if parsed.value.is_some() || rejected {
            let entry = Entry {
                value: parsed.value,
                faults,
                round: self.round,
            };
            self.entries.insert(key, entry);
        }
        Replaced {
            before: before.and_then(|entry| entry.value),
            rejections_changed,
        }
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, key: &ObjectKey) -> Replaced<T> {
        Replaced {
            rejections_changed: self.rejected.remove(key),
            before: self.entries.remove(key).and_then(|entry| entry.value),
        }
    }

    fn begin(&mut self) {
        self.round += 1;
        self.listing = match self.listing {
            Listing::Awaited | Listing::First => Listing::First,
            Listing::Complete | Listing::Again => Listing::Again,
        };
    }

    /// The objects that the list did not contain. Empty if no list had begun.
    fn finish(&mut self) -> Vec<ObjectKey> {
        match self.listing {
            Listing::Awaited | Listing::Complete => Vec::new(),
            Listing::First | Listing::Again => {
                self.listing = Listing::Complete;
                repack(&mut self.entries);
                self.entries
                    .iter()
                    .filter(|(_, entry)| entry.round != self.round)
                    .map(|(key, _)| key.clone())
                    .collect()
            }
        }
    }

    fn keep_as_it_was(&mut self, key: ObjectKey, field: String, message: String) -> bool {
        let rejection = Rejection {
            object: key.of_kind(self.kind),
            field,
            message,
        };
        self.rejected.insert(key.clone());
        let entry = self.entries.entry(key).or_insert(Entry {
            value: None,
            faults: None,
            round: self.round,
        });
        entry.round = self.round;
        let faults = entry.faults.get_or_insert_default();
        let changed = faults.undecodable.as_ref() != Some(&rejection);
        if changed {
            Arc::make_mut(faults).undecodable = Some(rejection);
        }
        changed
    }
}

// === impl Faults ===

impl Faults {
    /// What is not honoured of the object.
    pub fn rejections(&self) -> impl Iterator<Item = &Rejection> {
        self.rejections.iter().chain(&self.undecodable)
    }
}

/// Frees the unused capacity of a B-tree: lists arrive in order, and insertion in order leaves
/// every node except the last half empty. Temporarily takes a second copy of the entries.
pub(crate) fn repack<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    *map = mem::take(map).into_iter().collect();
}
