//! The objects of one kind, as far as a watch has told.

use std::collections::BTreeMap;

use crate::records::Record;

/// What a watch tells.
#[derive(Clone, Debug)]
pub(crate) enum Change<R> {
    /// The object is there, and this is how it is.
    Applied(Box<R>),
    /// The object of this name is gone.
    Deleted(String),
    /// These are all there are.
    Listed(Vec<R>),
}

/// What a change of the known objects means for what is decided by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Everything stays as it was decided.
    Nothing,
    /// It has to be decided again.
    Something,
}

/// Objects by name. Knows nothing at all before the first list: absence is not emptiness.
#[derive(Clone, Debug)]
pub(crate) struct Known<R>(Option<BTreeMap<String, R>>);

// === impl Known ===

impl<R: Record> Known<R> {
    /// What `change` means, before it is taken in.
    pub(crate) fn news(&self, change: &Change<R>) -> News {
        let Change::Applied(record) = change else {
            return News::Something;
        };
        let known = self.0.as_ref().and_then(|known| known.get(record.name()));
        match known {
            Some(known) if known.decides_as(record) => News::Nothing,
            _ => News::Something,
        }
    }

    /// Takes in what a watch, or the answer to a write, told; returns the objects that are gone. Never goes back to an
    /// older version of an object.
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
                // Before the first list there is nothing to put it beside, and the list will hold it.
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

    /// All of them; nothing before the first list.
    pub(crate) const fn listed(&self) -> Option<&BTreeMap<String, R>> {
        self.0.as_ref()
    }
}

impl<R> Default for Known<R> {
    fn default() -> Self {
        Self(None)
    }
}
