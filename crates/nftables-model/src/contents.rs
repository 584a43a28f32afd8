//! What is in a table.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use dataplane::PersistentMap;
use netlink::nf_tables::{Bytes, Chain, ElementData, Rule, Set};

/// A table with its chains, sets and elements. Copies share what they have in common. Two are equal
/// when a kernel holding either would list the same.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Contents {
    /// Whether the table is there at all.
    pub exists: bool,
    /// Chains by name.
    pub chains: Arc<Chains>,
    /// Sets by name.
    pub sets: Sets,
}

/// Chains by name.
pub type Chains = BTreeMap<Arc<str>, Arc<ChainWithRules>>;

/// Sets by name.
pub type Sets = BTreeMap<Arc<str>, SetWithElements>;

/// A chain and what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainWithRules {
    /// The chain.
    pub chain: Chain,
    /// A rule that is not of our making is one without expressions: it equals none of ours.
    pub rules: Vec<Rule>,
}

/// A set and what is in it.
#[derive(Debug, Clone, PartialEq)]
pub struct SetWithElements {
    /// The set.
    pub set: Arc<Set>,
    /// What packets write is not among them.
    pub elements: Elements,
}

/// The elements of a set by key.
pub type Elements = PersistentMap<Bytes, ElementData>;

// === impl Contents ===

impl fmt::Display for Contents {
    /// Chains and sets by name, elements by key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.exists {
            return Ok(());
        }
        for chain in self.chains.values() {
            writeln!(f, "chain {}", chain.chain)?;
            for rule in &chain.rules {
                writeln!(f, "    {rule}")?;
            }
        }
        for set in self.sets.values() {
            writeln!(f, "set {}", set.set)?;
            for (key, data) in set.elements.sorted() {
                writeln!(f, "    {}", set.set.element(key, data))?;
            }
        }
        Ok(())
    }
}
