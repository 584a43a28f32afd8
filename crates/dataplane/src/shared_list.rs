//! A sorted list in parts, which copies share as long as they are the same.
//!
//! Ten thousand Services may claim one address, and each change of one of them makes a version of
//! their list: a list that is copied as a whole costs the square of their number.

use std::cmp::Ordering;
use std::iter::FusedIterator;
use std::slice;
use std::sync::Arc;

/// The entries of a full part.
const LONGEST: usize = 64;

/// Sorted entries. A copy costs one reference for each part; a change copies one part of at most
/// [`LONGEST`] entries if another copy shares it, and nothing otherwise.
#[derive(Debug, Clone)]
pub(crate) struct SharedList<T>(Vec<Part<T>>);

/// Never empty.
type Part<T> = Arc<Vec<T>>;

/// The place of an entry, or where it would be inserted.
#[derive(Debug, Clone, Copy)]
struct Position {
    /// The index of the part; after the last part for an entry that would be the last one.
    part: usize,
    /// The index in that part.
    at: usize,
}

/// The entries of a list in order.
#[derive(Debug)]
pub(crate) struct Entries<'a, T> {
    /// What is left of the current part.
    current: &'a [T],
    rest: slice::Iter<'a, Part<T>>,
}

/// The entries of two lists side by side, without parts that both share.
pub(crate) struct Unshared<'a, T, F> {
    before: Entries<'a, T>,
    after: Entries<'a, T>,
    order: F,
}

// === impl SharedList ===

impl<T> SharedList<T> {
    /// These entries, which are sorted.
    pub(crate) fn of(sorted: Vec<T>) -> SharedList<T> {
        let mut sorted = sorted.into_iter().peekable();
        let mut parts = Vec::new();
        while sorted.peek().is_some() {
            let part: Vec<T> = sorted.by_ref().take(LONGEST).collect();
            parts.push(Arc::new(part));
        }
        SharedList(parts)
    }

    /// The entries in order.
    pub(crate) fn iter(&self) -> Entries<'_, T> {
        Entries {
            current: &[],
            rest: self.0.iter(),
        }
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.0.first()?.first()
    }

    pub(crate) fn last(&self) -> Option<&T> {
        self.0.last()?.last()
    }

    /// The first entry that does not come before what is searched for.
    pub(crate) fn first_from(&self, is_before: impl Fn(&T) -> bool) -> Option<&T> {
        self.at(self.search(is_before))
    }

    /// The entry that is equal in `order`, which compares an entry with what is searched for.
    pub(crate) fn get(&self, order: impl Fn(&T) -> Ordering) -> Option<&T> {
        self.at(self.find(order).ok()?)
    }

    /// The place of the entry that is equal in `order`, which compares an entry with what is searched
    /// for, or where it would be.
    fn find(&self, order: impl Fn(&T) -> Ordering) -> Result<Position, Position> {
        let place = self.search(|entry| order(entry).is_lt());
        match self.at(place).is_some_and(|entry| order(entry).is_eq()) {
            true => Ok(place),
            false => Err(place),
        }
    }

    fn search(&self, is_before: impl Fn(&T) -> bool) -> Position {
        let ends_before = |part: &Part<T>| part.last().is_some_and(&is_before);
        let part = self.0.partition_point(ends_before);
        let within = self.0.get(part);
        let at = within.map_or(0, |part| part.partition_point(is_before));
        Position { part, at }
    }

    fn at(&self, Position { part, at }: Position) -> Option<&T> {
        self.0.get(part)?.get(at)
    }
}

impl<T: Clone> SharedList<T> {
    /// The same, for a change that does not affect the order.
    pub(crate) fn get_mut(&mut self, order: impl Fn(&T) -> Ordering) -> Option<&mut T> {
        let Position { part, at } = self.find(order).ok()?;
        Arc::make_mut(self.0.get_mut(part)?).get_mut(at)
    }

    /// Inserts `entry`, or replaces the one that is equal in `order`, which compares an entry with
    /// `entry`. Returns the replaced one.
    pub(crate) fn put(&mut self, entry: T, order: impl Fn(&T) -> Ordering) -> Option<T> {
        match self.find(order) {
            Ok(Position { part, at }) => {
                let part = Arc::make_mut(&mut self.0[part]);
                Some(std::mem::replace(&mut part[at], entry))
            }
            Err(place) => {
                self.insert(place, entry);
                None
            }
        }
    }

    fn insert(&mut self, place: Position, entry: T) {
        let parts = &mut self.0;
        let is_last = place.part == parts.len();
        let (index, at) = match is_last.then(|| parts.len().checked_sub(1)).flatten() {
            Some(last) => (last, parts[last].len()),
            None => (place.part, place.at),
        };
        let Some(part) = parts.get_mut(index).map(Arc::make_mut) else {
            return parts.push(Arc::new(vec![entry]));
        };
        if part.len() < LONGEST {
            return part.insert(at, entry);
        }
        // What is inserted in order fills the parts.
        let middle = if is_last { part.len() } else { part.len() / 2 };
        let mut second = part.split_off(middle);
        match at.checked_sub(middle) {
            Some(at) => second.insert(at, entry),
            None => part.insert(at, entry),
        }
        parts.insert(index + 1, Arc::new(second));
    }

    /// Removes the entry that is equal in `order`.
    pub(crate) fn remove(&mut self, order: impl Fn(&T) -> Ordering) -> Option<T> {
        let place = self.find(order).ok()?;
        let parts = &mut self.0;
        let part = Arc::make_mut(&mut parts[place.part]);
        let removed = part.remove(place.at);
        if part.is_empty() {
            parts.remove(place.part);
            return Some(removed);
        }
        // Otherwise a list that was long once would stay in as many parts.
        for second in [place.part + 1, place.part] {
            let first = second.checked_sub(1);
            let Some((first, part)) = first.zip(parts.get(second)) else {
                continue;
            };
            if parts[first].len() + part.len() <= LONGEST / 2 {
                let part = parts.remove(second);
                Arc::make_mut(&mut parts[first]).extend(part.iter().cloned());
            }
        }
        Some(removed)
    }
}

// === impl Entries ===

impl<'a, T> Entries<'a, T> {
    /// Entries that are in no parts.
    pub(crate) fn of(entries: &'a [T]) -> Entries<'a, T> {
        Entries {
            current: entries,
            rest: [].iter(),
        }
    }

    /// Pairs these entries with `after` by `order`; those without a counterpart alone.
    pub(crate) fn unshared<F>(self, after: Entries<'a, T>, order: F) -> Unshared<'a, T, F> {
        Unshared {
            before: self,
            after,
            order,
        }
    }

    fn peek(&mut self) -> Option<&'a T> {
        while self.current.is_empty() {
            self.current = self.rest.next()?;
        }
        self.current.first()
    }

    /// Skips the parts that come next in both, as long as both share them.
    fn skip_shared(&mut self, other: &mut Entries<'a, T>) {
        while self.current.is_empty()
            && other.current.is_empty()
            && let (Some(part), Some(same)) =
                (self.rest.as_slice().first(), other.rest.as_slice().first())
            && Arc::ptr_eq(part, same)
        {
            self.rest.next();
            other.rest.next();
        }
    }
}

impl<'a, T> Iterator for Entries<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        let first = self.peek()?;
        self.current = &self.current[1..];
        Some(first)
    }
}

impl<T> FusedIterator for Entries<'_, T> {}

// === impl Unshared ===

impl<'a, T, F: Fn(&T, &T) -> Ordering> Iterator for Unshared<'a, T, F> {
    type Item = (Option<&'a T>, Option<&'a T>);

    fn next(&mut self) -> Option<Self::Item> {
        self.before.skip_shared(&mut self.after);
        let order = match (self.before.peek(), self.after.peek()) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(before), Some(after)) => (self.order)(before, after),
        };
        let before = order.is_le().then(|| self.before.next()).flatten();
        let after = order.is_ge().then(|| self.after.next()).flatten();
        Some((before, after))
    }
}

#[cfg(test)]
mod tests;
