//! Lists chains and rules of all programs in a table.

use super::blob::{Kind, Table};
use super::layout::VERDICT_DROP;
use super::replacement::hook_number;
use super::{BUILT_IN, entry, target_name};
use crate::{ChainKind, CountedRule, Family, ListedChain, Policy};

/// All chains.
pub(super) fn listed_chains(table: &Table<'_>) -> Vec<ListedChain> {
    let chains = table.chains.iter();
    let listed = chains.filter_map(|chain| {
        let kind = match chain.kind {
            Kind::Named(name) => ChainKind::Named(String::from_utf8_lossy(name).into()),
            Kind::Hook(hook) => {
                let built_in = BUILT_IN.into_iter().find(|c| hook_number(*c) == hook)?;
                ChainKind::BuiltIn(built_in, policy(table, chain.rules.end))
            }
        };
        let leading = chain.rules.clone();
        Some(ListedChain {
            kind,
            leads_to: leading.filter_map(|n| target_name(table, n)).collect(),
        })
    });
    listed.collect()
}

/// The policy that entry `number` is.
fn policy(table: &Table<'_>, number: usize) -> Policy {
    let entry = table.layout.entry(table.bytes, table.offset(number));
    match entry.and_then(|entry| entry.verdict()) {
        Some(VERDICT_DROP) => Policy::Drop,
        Some(_) | None => Policy::Accept,
    }
}

/// The rules of the chains whose names `is_chosen` accepts.
pub(super) fn counted_rules(
    table: &Table<'_>,
    family: Family,
    is_chosen: impl Fn(&str) -> bool,
) -> Vec<CountedRule> {
    let chosen = table.chains.iter().filter(|chain| {
        let name = chain.name().and_then(|name| str::from_utf8(name).ok());
        name.is_some_and(&is_chosen)
    });
    let numbers = chosen.flat_map(|chain| chain.rules.clone());
    let rules = numbers.filter_map(|number| {
        let entry = table.layout.entry(table.bytes, table.offset(number))?;
        entry::decode_counted(entry, table.layout, family, target_name(table, number))
    });
    rules.collect()
}
