//! One allocation for each name that many objects repeat.

use std::collections::HashSet;
use std::sync::Arc;

/// Names of nodes, zones, namespaces and ports: a handful of texts that ten thousand slices say
/// over and over.
#[derive(Debug, Default)]
pub(crate) struct SharedNames {
    names: HashSet<Arc<str>>,
    sweep_at: usize,
}

/// Below this many names nobody looks for those that are no longer used.
const WORTH_SWEEPING: usize = 1024;

impl SharedNames {
    /// `name`, sharing its text with everyone who asked for the same.
    pub(crate) fn share(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        if self.names.len() >= self.sweep_at.max(WORTH_SWEEPING) {
            self.names.retain(|known| Arc::strong_count(known) > 1);
            // At twice what is in use, so that sweeping costs a constant per new name.
            self.sweep_at = self.names.len() * 2;
        }
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name));
        name
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
        assert!(names.names.len() <= 2 * WORTH_SWEEPING);
        assert!(Arc::ptr_eq(&kept, &names.share("kept")));
    }
}
