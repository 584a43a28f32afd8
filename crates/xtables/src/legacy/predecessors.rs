//! Which of the rules that a chain had are those that it comes to have.

use std::collections::{HashMap, VecDeque};

use super::blob::Table;
use super::decode_entry;
use crate::{Family, Rule};

/// Rules of a chain before it changes, by what they say, each with the number of its entry. Many
/// endpoints make long chains: to look through all of them for each rule would take seconds, with
/// the lock held.
#[derive(Debug)]
pub(super) struct Predecessors(HashMap<String, VecDeque<u32>>);

// === impl Predecessors ===

impl Predecessors {
    /// Those of these entries that are rules as Signpost writes them.
    pub(super) fn of(table: &Table<'_>, numbers: &[usize], family: Family) -> Predecessors {
        let mut rules: HashMap<String, VecDeque<u32>> = HashMap::with_capacity(numbers.len());
        for number in numbers {
            let rule = decode_entry(table, *number, family);
            if let (Some(rule), Ok(number)) = (rule, u32::try_from(*number)) {
                rules.entry(rule.to_string()).or_default().push_back(number);
            }
        }
        Predecessors(rules)
    }

    /// The first that says the same as `rule` and has not been taken yet.
    pub(super) fn take(&mut self, rule: &Rule) -> Option<u32> {
        match self.0.is_empty() {
            true => None,
            false => self.0.get_mut(&rule.to_string())?.pop_front(),
        }
    }
}
