//! A cache of the objects of one kind, fed by a watch.

use std::collections::BTreeMap;

use crate::records::Record;

/// A change reported by a watch.
#[derive(Clone, Debug)]
pub(crate) enum Change<R> {
    /// The object exists with this content.
    Applied(Box<R>),
    /// The object of this name was deleted.
    Deleted(String),
    /// The complete list of objects.
    Listed(Vec<R>),
}

/// Whether a change requires a new plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanImpact {
    /// The last plan remains valid.
    Nothing,
    /// A new plan is required.
    Something,
}

/// Objects by name; `None` before the first list, because absence is not emptiness.
#[derive(Clone, Debug)]
pub(crate) struct ObjectCache<R>(Option<BTreeMap<String, R>>);

// === impl ObjectCache ===

impl<R: Record> ObjectCache<R> {
    /// Returns whether `change` requires a new plan. Call it before [`ObjectCache::apply`].
    pub(crate) fn impact(&self, change: &Change<R>) -> PlanImpact {
        let Change::Applied(record) = change else {
            return PlanImpact::Something;
        };
        let known = self.0.as_ref().and_then(|known| known.get(record.name()));
        match known {
            Some(known) if known.decides_as(record) => PlanImpact::Nothing,
            _ => PlanImpact::Something,
        }
    }

    /// Applies a change from a watch or from the answer to a write; returns the objects that are
    /// gone. Never replaces an object with an older version of it.
    pub(crate) fn apply(&mut self, change: Change<R>) -> Vec<R> {
        match change {
            Change::Listed(records) => {
                let mut known = self.0.take().unwrap_or_default();
                let newest = |record: R| match known.remove(record.name()) {
                    Some(newer) if record.version().is_before(newer.version()) => newer,
                    _ => record,
                };
                let records = records.into_iter().map(newest);
                self.0 = Some(
                    records
                        .map(|record| (record.name().to_owned(), record))
                        .collect(),
                );
                known.into_values().collect()
            }
            Change::Applied(record) => {
                // Before the first list there is nothing to compare with, and the list will include
                // the object.
                let Some(known) = &mut self.0 else {
                    return Vec::new();
                };
                match known.get(record.name()) {
                    Some(newer) if record.version().is_before(newer.version()) => {}
                    _ => drop(known.insert(record.name().to_owned(), *record)),
                }
                Vec::new()
            }
            Change::Deleted(name) => {
                let gone = self.0.as_mut().and_then(|known| known.remove(&name));
                gone.into_iter().collect()
            }
        }
    }

    /// Returns all objects; `None` before the first list.
    pub(crate) const fn listed(&self) -> Option<&BTreeMap<String, R>> {
        self.0.as_ref()
    }
}

impl<R> Default for ObjectCache<R> {
    fn default() -> Self {
        Self(None)
    }
}
