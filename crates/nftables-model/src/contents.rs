//! The content of a table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use dataplane::PersistentMap;
use netlink::nf_tables::{Bytes, Chain, ElementData, Flowtable, Rule, Set};

/// A table with its chains, sets and elements. Copies share equal parts. Two values are equal if
/// the listings of kernels that hold them are equal.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Contents {
    /// Whether the table exists.
    pub exists: bool,
    /// Chains by name.
    pub chains: Arc<Chains>,
    /// Sets by name.
    pub sets: Sets,
    /// Flowtables by name.
    pub flowtables: Flowtables,
}

/// Chains by name.
pub type Chains = BTreeMap<Arc<str>, Arc<ChainWithRules>>;

/// Sets by name.
pub type Sets = BTreeMap<Arc<str>, SetWithElements>;

/// Flowtables by name.
pub type Flowtables = BTreeMap<Arc<str>, FlowtableWithDevices>;

/// A flowtable and its devices, without its connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowtableWithDevices {
    /// The flowtable; `None` for one that Signpost did not write.
    pub flowtable: Option<Flowtable>,
    /// The names of its devices. The kernel removes one that ceases to exist.
    pub devices: BTreeSet<Arc<str>>,
}

/// A chain and its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainWithRules {
    /// The chain.
    pub chain: Chain,
    /// The rules in order. A rule that Signpost did not write has no expressions here, so it equals
    /// none of Signpost's.
    pub rules: Vec<Rule>,
}

/// A set and its elements.
#[derive(Debug, Clone, PartialEq)]
pub struct SetWithElements {
    /// The set.
    pub set: Arc<Set>,
    /// The elements, without those that packets write.
    pub elements: Elements,
}

/// The elements of a set by key.
pub type Elements = PersistentMap<Bytes, ElementData>;

// === impl Contents ===

impl fmt::Display for Contents {
    /// Chains, sets and flowtables by name, elements by key.
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
        for (name, flowtable) in &self.flowtables {
            match &flowtable.flowtable {
                Some(flowtable) => writeln!(f, "flowtable {flowtable}")?,
                None => writeln!(f, "flowtable {name}, which Signpost did not write")?,
            }
            for device in &flowtable.devices {
                writeln!(f, "    {device}")?;
            }
        }
        Ok(())
    }
}
