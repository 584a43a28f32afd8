//! Finds the old rules of a chain among its new ones.

use std::collections::{HashMap, VecDeque};

use super::blob::Table;
use super::decode_entry;
use crate::{Family, Rule};

/// The old rules of a chain by their text, each with the number of its entry. Many endpoints make
/// long chains: searching all rules for each one would take seconds, with the lock held.
#[derive(Debug)]
pub(super) struct PreviousRules(HashMap<String, VecDeque<u32>>);

// === impl PreviousRules ===

impl PreviousRules {
    /// Indexes those of these entries that are rules as Signpost writes them.
    pub(super) fn of(table: &Table<'_>, numbers: &[usize], family: Family) -> PreviousRules {
        let mut rules: HashMap<String, VecDeque<u32>> = HashMap::with_capacity(numbers.len());
        for number in numbers {
            let rule = decode_entry(table, *number, family);
            if let (Some(rule), Ok(number)) = (rule, u32::try_from(*number)) {
                rules.entry(rule.to_string()).or_default().push_back(number);
            }
        }
        PreviousRules(rules)
    }

    /// The first rule equal to `rule` that has not been taken yet.
    pub(super) fn take(&mut self, rule: &Rule) -> Option<u32> {
        match self.0.is_empty() {
            true => None,
            false => self.0.get_mut(&rule.to_string())?.pop_front(),
        }
    }
}
