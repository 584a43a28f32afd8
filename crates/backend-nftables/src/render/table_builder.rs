//! Collects the elements of a table.

use std::collections::BTreeMap;
use std::sync::Arc;

use dataplane::Family;
use netlink::nf_tables::{Bytes, ElementData};

use crate::layout::SetName;
use crate::table::{Elements, SetWithElements, Table};

/// A table whose elements are being changed. If it has none, as at a start, they are collected and
/// inserted together at the end: inserting so many one by one takes twice as long.
pub(super) struct TableBuilder {
    /// The table, without the elements collected so far.
    pub(super) table: Table,
    to_come: Option<BTreeMap<SetName, Vec<(Bytes, ElementData)>>>,
}

// === impl TableBuilder ===

impl TableBuilder {
    pub(super) fn of(table: Table) -> TableBuilder {
        TableBuilder {
            to_come: (table.elements() == 0).then(BTreeMap::new),
            table,
        }
    }

    /// Whether unchanged elements stay without being set again.
    pub(super) fn keeps_what_stays(&self) -> bool {
        self.to_come.is_none()
    }

    pub(super) fn add_set(&mut self, family: Family, name: SetName) {
        if !self.table.sets.contains_key(name.as_str()) {
            let set = SetWithElements {
                set: Arc::new(name.set(family)),
                elements: Elements::new(),
            };
            self.table.sets.insert(Arc::clone(&set.set.name), set);
        }
    }

    pub(super) fn set(&mut self, set: SetName, key: Bytes, data: ElementData) {
        match &mut self.to_come {
            Some(to_come) => to_come.entry(set).or_default().push((key, data)),
            None => self.table.set_element(set, key, data),
        }
    }

    /// Removes an element that existed before. Elements are never set and then removed.
    pub(super) fn remove(&mut self, set: SetName, key: &Bytes) {
        if self.to_come.is_none() {
            self.table.remove_element(set, key);
        }
    }

    /// Adds or removes an element.
    pub(super) fn member(&mut self, set: SetName, key: Bytes, is_member: bool) {
        if is_member {
            self.set(set, key, ElementData::None);
        } else {
            self.remove(set, &key);
        }
    }

    /// Returns the table with all elements.
    pub(super) fn finish(mut self) -> Table {
        for (set, to_come) in self.to_come.into_iter().flatten() {
            if let Some(elements) = self.table.elements_mut(set) {
                *elements = to_come.into_iter().collect();
            }
        }
        self.table
    }
}
