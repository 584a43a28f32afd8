//! What is not supported or not valid.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use catalog::Faults;
use dataplane::{Disputes, Rejection, ServiceRules};

type List = Box<[Rejection]>;

/// The list of what is not supported or not valid, sorted. Its first reader puts it together, not
/// the engine: a few Services may dispute a million claims, or ten thousand have a hundred messages each,
/// and every change would wait for them.
pub(crate) struct Rejections(LazyLock<List, Box<dyn FnOnce() -> List + Send>>);

// === impl Rejections ===

impl Rejections {
    pub(super) fn new(
        of_objects: Vec<Arc<Faults>>,
        of_rules: Vec<Arc<ServiceRules>>,
        disputes: Disputes,
    ) -> Rejections {
        Rejections(LazyLock::new(Box::new(move || {
            let of_rules = of_rules.iter().flat_map(|rules| &rules.rejections).cloned();
            let of_objects = of_objects.iter().flat_map(|object| object.rejections());
            let objects = of_objects.cloned();
            let mut list: Vec<_> = objects
                .chain(of_rules)
                .chain(disputes.rejections())
                .collect();
            list.sort();
            list.into()
        })))
    }

    /// Whether it has had a reader.
    #[cfg(test)]
    pub(super) fn is_listed(&self) -> bool {
        LazyLock::get(&self.0).is_some()
    }
}

impl Default for Rejections {
    fn default() -> Rejections {
        Rejections::new(Vec::new(), Vec::new(), Disputes::default())
    }
}

impl Deref for Rejections {
    type Target = [Rejection];

    fn deref(&self) -> &[Rejection] {
        &self.0
    }
}

impl fmt::Debug for Rejections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
