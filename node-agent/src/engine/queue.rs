//! The Services that wait to be compiled, and the order in which they are. Pure.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use catalog::Trigger;
use dataplane::ServiceKey;

/// The most work of a small Service. 2,000 uses of an address take some 3 ms, a tenth of what a pass
/// has time for, and as many pairs of an endpoint and a port 0.1 ms.
const MOST_SMALL: usize = 2_000;

/// The changed Services. Small ones do not wait for large ones and large ones not for ever: passes
/// alternate between the two while there are both. Within each, namespaces take turns, so that one
/// with thousands of changes does not delay the first change of another.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: BTreeMap<ServiceKey, Waiting>,
    small: SizeClass,
    large: SizeClass,
    /// The size of the last pass.
    last: Option<Size>,
}

/// The changes of one Service that are not compiled yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    /// When the first of them was received.
    pub(super) since: Instant,
    /// The start of their latency.
    pub(super) trigger: Trigger,
}

/// How much work a Service is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Size {
    Small,
    Large,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    pending: Pending,
    size: Size,
}

/// Services of one size by namespace, in each the first that came first. May have Services that no
/// longer wait, or have become large.
#[derive(Debug, Default)]
struct SizeClass {
    namespaces: BTreeMap<Arc<str>, VecDeque<ServiceKey>>,
    /// The namespace whose turn was last.
    last: Option<Arc<str>>,
}

// === impl Queue ===

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a Service, which keeps its place if it waits already. One that grows while it waits
    /// goes to the large ones.
    pub(super) fn push(&mut self, key: ServiceKey, pending: Pending, work: usize) {
        let size = Size::of(work);
        match self.waiting.entry(key.clone()) {
            Entry::Vacant(vacant) => drop(vacant.insert(Waiting { pending, size })),
            Entry::Occupied(mut occupied) => {
                let known = occupied.get_mut();
                known.pending = known.pending.joined(pending);
                if size <= known.size {
                    return;
                }
                known.size = size;
            }
        }
        self.lane(size).push(key);
    }

    /// The size of the Services of the next pass. Called once for each pass.
    pub(super) fn begin(&mut self) -> Size {
        let size = match (self.small.is_empty(), self.large.is_empty(), self.last) {
            (false, false, Some(Size::Small)) | (true, _, _) => Size::Large,
            (false, _, _) => Size::Small,
        };
        self.last = Some(size);
        size
    }

    /// Removes and returns the next Service of this size.
    pub(super) fn pop(&mut self, size: Size) -> Option<(ServiceKey, Pending)> {
        loop {
            let key = self.lane(size).pop()?;
            if let Entry::Occupied(waiting) = self.waiting.entry(key)
                && waiting.get().size == size
            {
                let (key, waiting) = waiting.remove_entry();
                return Some((key, waiting.pending));
            }
        }
    }

    /// Puts a Service back that was of this size, before the others of its namespace.
    pub(super) fn put_back(&mut self, key: ServiceKey, pending: Pending, size: Size) {
        self.lane(size).put_back(key.clone());
        self.waiting.insert(key, Waiting { pending, size });
    }

    /// Removes and returns all Services, in order of name.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (ServiceKey, Pending)> {
        let all = std::mem::take(self).waiting.into_iter();
        all.map(|(key, waiting)| (key, waiting.pending))
    }

    fn lane(&mut self, size: Size) -> &mut SizeClass {
        match size {
            Size::Small => &mut self.small,
            Size::Large => &mut self.large,
        }
    }
}

// === impl Pending ===

impl Pending {
    fn joined(self, other: Pending) -> Pending {
        Pending {
            since: self.since.min(other.since),
            trigger: self.trigger.joined(other.trigger),
        }
    }
}

// === impl Size ===

impl Size {
    fn of(work: usize) -> Size {
        match work <= MOST_SMALL {
            true => Size::Small,
            false => Size::Large,
        }
    }
}

// === impl SizeClass ===

impl SizeClass {
    fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }

    fn push(&mut self, key: ServiceKey) {
        let namespace = Arc::clone(&key.namespace);
        self.namespaces.entry(namespace).or_default().push_back(key);
    }

    fn put_back(&mut self, key: ServiceKey) {
        let namespace = Arc::clone(&key.namespace);
        let services = self.namespaces.entry(namespace).or_default();
        services.push_front(key);
    }

    /// Removes the first Service of the namespace after the last one.
    fn pop(&mut self) -> Option<ServiceKey> {
        let after = match self.last.take() {
            Some(last) => (Bound::Excluded(last), Bound::Unbounded),
            None => (Bound::Unbounded, Bound::Unbounded),
        };
        let next = self.namespaces.range::<Arc<str>, _>(after).next();
        let (namespace, _) = next.or_else(|| self.namespaces.first_key_value())?;
        let namespace = Arc::clone(namespace);
        let services = self.namespaces.get_mut(&namespace)?;
        let key = services.pop_front();
        if services.is_empty() {
            self.namespaces.remove(&namespace);
        }
        self.last = Some(namespace);
        key
    }
}

#[cfg(test)]
mod tests;
