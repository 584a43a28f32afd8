//! Generates damage that another program does to a table of nf_tables.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// What another program removes from a table of nf_tables, if the kernel lets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableDamage {
    /// All rules of the table.
    AllRules,
    /// The rules of a chain.
    Rules,
    /// A chain, after its rules.
    Chain,
    /// All elements of a set or map.
    Elements,
    /// One element.
    Element,
    /// A set or map.
    Set,
}

/// Generates up to `most` of them, in order, each with the position of what is removed among
/// everything of its kind.
pub fn table_damages(most: usize) -> impl Strategy<Value = Vec<(TableDamage, Index)>> {
    let damage = prop_oneof![
        1 => Just(TableDamage::AllRules),
        4 => Just(TableDamage::Rules),
        2 => Just(TableDamage::Chain),
        4 => Just(TableDamage::Elements),
        4 => Just(TableDamage::Element),
        1 => Just(TableDamage::Set),
    ];
    vec((damage, any::<Index>()), 1..=most)
}
