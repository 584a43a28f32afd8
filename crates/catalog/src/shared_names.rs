//! One allocation for each name, and for each set of hints, that many objects repeat.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use dataplane::Hints;

/// Names of nodes, zones, namespaces and ports, and hints: a handful of values that ten thousand
/// slices say over and over.
#[derive(Debug, Default)]
pub(crate) struct SharedNames {
    names: Shared<str>,
    hints: Shared<Hints>,
}

/// Values of one type, each once.
#[derive(Debug)]
struct Shared<T: ?Sized> {
    values: HashSet<Arc<T>>,
    sweep_at: usize,
}

/// Below this many values nobody looks for those that are no longer used.
const WORTH_SWEEPING: usize = 1024;

// === impl SharedNames ===

impl SharedNames {
    /// `name`, sharing its text with everyone who asked for the same.
    pub(crate) fn share(&mut self, name: &str) -> Arc<str> {
        self.names.share(name, |name| name.into())
    }

    /// `hints`, shared likewise; `None` where there are none, as nearly everywhere.
    pub(crate) fn share_hints(&mut self, hints: &Hints) -> Option<Arc<Hints>> {
        let some = *hints != Hints::default();
        some.then(|| self.hints.share(hints, |hints| Arc::new(hints.clone())))
    }
}

// === impl Shared ===

impl<T: ?Sized + Eq + Hash> Shared<T> {
    fn share(&mut self, value: &T, copy: impl FnOnce(&T) -> Arc<T>) -> Arc<T> {
        if let Some(known) = self.values.get(value) {
            return Arc::clone(known);
        }
        if self.values.len() >= self.sweep_at.max(WORTH_SWEEPING) {
            self.values.retain(|known| Arc::strong_count(known) > 1);
            // At twice what is in use, so that sweeping costs a constant per new value.
            self.sweep_at = self.values.len() * 2;
        }
        let value = copy(value);
        self.values.insert(Arc::clone(&value));
        value
    }
}

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared {
            values: HashSet::new(),
            sweep_at: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_share_their_text() {
        let mut names = SharedNames::default();
        let first = names.share("node-1");
        assert!(Arc::ptr_eq(&first, &names.share("node-1")));
    }

    #[test]
    fn names_that_nobody_uses_any_more_are_let_go() {
        let mut names = SharedNames::default();
        let kept = names.share("kept");
        for n in 0..100 * WORTH_SWEEPING {
            names.share(&format!("passing-{n}"));
        }
        assert!(names.names.values.len() <= 2 * WORTH_SWEEPING);
        assert!(Arc::ptr_eq(&kept, &names.share("kept")));
    }

    #[test]
    fn equal_hints_are_shared_and_none_cost_nothing() {
        let mut names = SharedNames::default();
        let zone = |name: &str| Hints {
            zones: [Arc::from(name)].into(),
            ..Hints::default()
        };
        let first = names.share_hints(&zone("a")).expect("there is a hint");
        let second = names.share_hints(&zone("a")).expect("there is a hint");
        assert!(Arc::ptr_eq(&first, &second));
        assert_ne!(Some(first), names.share_hints(&zone("b")));
        assert_eq!(names.share_hints(&Hints::default()), None);
    }
}
