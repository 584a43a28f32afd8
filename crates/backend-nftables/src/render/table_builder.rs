//! Collects the elements of a table.

use std::collections::BTreeMap;
use std::sync::Arc;

use dataplane::Family;
use netlink::nf_tables::{Bytes, ElementData};

use crate::layout::SetName;
use crate::table::{Elements, SetWithElements, Table};

/// A table whose elements are being changed. New ones are collected and inserted together at the
/// end: inserting the many of a start one by one takes twice as long.
pub(super) struct TableBuilder {
    /// The table, without the elements collected so far.
    pub(super) table: Table,
    to_come: BTreeMap<SetName, Vec<(Bytes, ElementData)>>,
    /// Whether there were elements before.
    has_elements: bool,
}

// === impl TableBuilder ===

impl TableBuilder {
    pub(super) fn of(table: Table) -> TableBuilder {
        TableBuilder {
            to_come: BTreeMap::new(),
            has_elements: table.elements() > 0,
            table,
        }
    }

    /// Whether unchanged elements stay without being set again.
    pub(super) fn keeps_what_stays(&self) -> bool {
        self.has_elements
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
        self.to_come.entry(set).or_default().push((key, data));
    }

    /// Removes an element that existed before. Elements are never set and then removed.
    pub(super) fn remove(&mut self, set: SetName, key: &Bytes) {
        if self.has_elements {
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
        for (set, to_come) in self.to_come {
            if let Some(elements) = self.table.elements_mut(set) {
                elements.ensure_all(to_come);
            }
        }
        self.table
    }
}
