//! Applies changes to a value instead of a kernel, with the same checks.

use std::sync::Arc;

use xtables::TableChange;

use crate::rules::Rules;
use crate::table_rules::{MOST_NESTED, TableRules};

/// Why a kernel would refuse a step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A rule leads to a chain that does not exist (ENOENT).
    #[error("chain {chain} jumps to {target}, which does not exist")]
    NoChain {
        /// The chain with the rule.
        chain: Arc<str>,
        /// The chain that it leads to.
        target: Arc<str>,
    },
    /// A chain to remove does not exist (ENOENT).
    #[error("the chain {0} to remove does not exist")]
    NotThere(Arc<str>),
    /// Chains are nested deeper than nf_tables accepts (EMLINK).
    #[error("{0} chains are nested below a built-in chain")]
    TooDeep(usize),
}

// === impl Rules ===

impl Rules {
    /// Applies `step`, or changes nothing.
    pub fn replay(&mut self, step: &TableChange) -> Result<(), Refused> {
        let mut table = self.of(step.table).clone();
        for (name, rules) in &step.chains {
            table.write(name, rules);
        }
        for (hook, rules) in &step.entries {
            match rules.is_empty() {
                true => drop(table.entries.remove(hook)),
                false => drop(table.entries.insert(*hook, rules.clone())),
            }
        }
        for name in &step.removed {
            if table.remove(name).is_none() {
                return Err(Refused::NotThere(Arc::clone(name)));
            }
        }
        table.check()?;
        *self.of_mut(step.table) = table;
        // They describe the previous state.
        self.trees = crate::trees::Trees::default();
        self.first = None;
        Ok(())
    }
}

impl TableRules {
    fn check(&self) -> Result<(), Refused> {
        let entries = self.entries.iter();
        let entries = entries.map(|(hook, rules)| (Arc::from(hook.to_string()), rules.as_slice()));
        let chains = self.chains().iter();
        let chains = chains.map(|(name, chain)| (Arc::clone(name), &*chain.rules));
        for (chain, rules) in entries.chain(chains) {
            for target in rules.iter().filter_map(|rule| rule.leads_to()) {
                if self.chains().get(target).is_none() {
                    let target = Arc::clone(target);
                    return Err(Refused::NoChain { chain, target });
                }
            }
        }
        match self.nesting() {
            depth if depth > MOST_NESTED => Err(Refused::TooDeep(depth)),
            _ => Ok(()),
        }
    }
}
