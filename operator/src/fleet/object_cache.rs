//! A cache of the objects of one kind, fed by a watch.

use std::collections::{BTreeMap, BTreeSet};

use crate::records::Record;

/// A change reported by a watch.
#[derive(Clone, Debug)]
pub(crate) enum ObjectChange<R> {
    /// The object exists with this content.
    Applied(Box<R>),
    /// The object of this name was deleted.
    Deleted(String),
    /// A list of all objects has been requested.
    ListRequested,
    /// The complete list of objects.
    Listed(Vec<R>),
}

/// Whether a change requires a new plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanImpact {
    /// The last plan remains valid.
    None,
    /// A new plan is required.
    Replan,
}

/// The last known objects of one kind.
#[derive(Clone, Debug)]
pub(crate) struct ObjectCache<R> {
    /// The objects by name; `None` before the first list, because absence is not emptiness.
    objects: Option<BTreeMap<String, R>>,
    /// The names of objects that were applied since the last list was requested. That list may have
    /// them in an older version.
    applied_since_request: BTreeSet<String>,
}

// === impl ObjectChange ===

impl<R> ObjectChange<R> {
    /// Returns the change with each of its objects changed by `change`.
    pub(crate) fn map_objects(mut self, mut change: impl FnMut(&mut R)) -> Self {
        match &mut self {
            Self::Applied(record) => change(record),
            Self::Listed(records) => records.iter_mut().for_each(change),
            Self::Deleted(_) | Self::ListRequested => {}
        }
        self
    }
}

// === impl ObjectCache ===

impl<R: Record> ObjectCache<R> {
    fn impact(&self, change: &ObjectChange<R>) -> PlanImpact {
        let record = match change {
            ObjectChange::Applied(record) => record,
            ObjectChange::ListRequested => return PlanImpact::None,
            ObjectChange::Deleted(_) | ObjectChange::Listed(_) => return PlanImpact::Replan,
        };
        let known = self.objects.as_ref();
        match known.and_then(|known| known.get(record.name())) {
            Some(known) if known.is_equivalent_to(record) => PlanImpact::None,
            _ => PlanImpact::Replan,
        }
    }

    /// Applies a change from a watch or from the answer to a write; returns whether it requires a
    /// new plan, and the objects that are gone. Never replaces an object with an older version of
    /// it, except by a list that was requested later: after a restore of etcd, the objects are
    /// older.
    pub(crate) fn apply(&mut self, change: ObjectChange<R>) -> (PlanImpact, Vec<R>) {
        let impact = self.impact(&change);
        (impact, self.replace(change))
    }

    fn replace(&mut self, change: ObjectChange<R>) -> Vec<R> {
        match change {
            ObjectChange::ListRequested => {
                self.applied_since_request.clear();
                Vec::new()
            }
            ObjectChange::Listed(records) => {
                let mut known = self.objects.take().unwrap_or_default();
                let newest = |record: R| match known.remove(record.name()) {
                    Some(newer)
                        if record.version().is_before(newer.version())
                            && self.applied_since_request.contains(record.name()) =>
                    {
                        newer
                    }
                    _ => record,
                };
                let records = records.into_iter().map(newest);
                self.objects = Some(
                    records
                        .map(|record| (record.name().to_owned(), record))
                        .collect(),
                );
                known.into_values().collect()
            }
            ObjectChange::Applied(record) => {
                // Before the first list there is nothing to compare with, and the list will include
                // the object.
                let Some(known) = &mut self.objects else {
                    return Vec::new();
                };
                let name = record.name().to_owned();
                match known.get(&name) {
                    Some(newer) if record.version().is_before(newer.version()) => {}
                    _ => {
                        self.applied_since_request.insert(name.clone());
                        known.insert(name, *record);
                    }
                }
                Vec::new()
            }
            ObjectChange::Deleted(name) => {
                let gone = self.objects.as_mut().and_then(|known| known.remove(&name));
                gone.into_iter().collect()
            }
        }
    }

    /// Returns an object as it was last known.
    pub(crate) fn get(&self, name: &str) -> Option<&R> {
        self.objects.as_ref()?.get(name)
    }

    /// Returns all objects; `None` before the first list.
    pub(crate) const fn listed(&self) -> Option<&BTreeMap<String, R>> {
        self.objects.as_ref()
    }
}

impl<R> Default for ObjectCache<R> {
    fn default() -> Self {
        Self {
            objects: None,
            applied_since_request: BTreeSet::new(),
        }
    }
}
