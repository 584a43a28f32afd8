//! A digest of Signpost's rules in a table, small enough to be kept for each table.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::blob::{Chain, JumpTarget, Kind, Table};
use super::replacement::Plan;
use crate::Rule;

/// Signpost's chains by name, the number of rules in each and the chains they lead to, and the
/// rules of built-in chains that lead to them, in order. Matches and the parameters of targets are
/// not included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TableSummary {
    chains: u32,
    /// The sum of the digests of all chains. It does not depend on the order of the chains: not
    /// every program that writes a table keeps it.
    digest: u64,
}

// === impl TableSummary ===

impl TableSummary {
    /// The outline of a table without rules of Signpost.
    pub(super) const NOTHING: TableSummary = TableSummary {
        chains: 0,
        digest: 0,
    };

    /// The outline of `table`. Costs one scan of Signpost's chains.
    pub(super) fn of(table: &Table<'_>, prefix: &str) -> TableSummary {
        let mut table_summary = TableSummary::NOTHING;
        for chain in &table.chains {
            table_summary.add(digest_of(table, chain, prefix));
        }
        table_summary
    }

    /// The outline after `plan` is applied to `table`, whose outline this is. Costs one scan of
    /// each chain that changes, before and after.
    pub(super) fn after(
        mut self,
        table: &Table<'_>,
        plan: &Plan<'_>,
        prefix: &str,
    ) -> TableSummary {
        for chain in &table.chains {
            let changes = match chain.kind {
                Kind::Named(name) => plan.named.contains_key(name),
                Kind::Hook(hook) => plan.hooks.contains_key(&hook),
            };
            if changes {
                self.take_away(digest_of(table, chain, prefix));
            }
        }
        for (name, rules) in &plan.named {
            let rules = rules.filter(|_| name.starts_with(prefix.as_bytes()));
            self.add(rules.map(|rules| digest(name, rules.len(), jumps(rules))));
        }
        for (hook, rules) in &plan.hooks {
            let targets = rules.iter().filter_map(target_of);
            let own = targets.filter(|target| target.starts_with(prefix.as_bytes()));
            self.add(digest_of_entries(*hook, own.map(Some)));
        }
        self
    }

    /// `None` is a chain without rules of Signpost.
    fn add(&mut self, digest: Option<u64>) {
        self.chains += u32::from(digest.is_some());
        self.digest = self.digest.wrapping_add(digest.unwrap_or_default());
    }

    fn take_away(&mut self, digest: Option<u64>) {
        self.chains -= u32::from(digest.is_some());
        self.digest = self.digest.wrapping_sub(digest.unwrap_or_default());
    }
}

/// The digest of `chain`; `None` where it has no rules of Signpost.
fn digest_of(table: &Table<'_>, chain: &Chain<'_>, prefix: &str) -> Option<u64> {
    let (first, length) = (chain.rules.start, chain.rules.len());
    let leading = table.jumps(chain.rules.clone()).iter();
    match chain.kind {
        Kind::Named(name) if chain.begins_with(prefix) => {
            let jumps = leading.map(|jump| (jump.entry - first, target(table, jump.to)));
            Some(digest(name, length, jumps))
        }
        Kind::Named(_) => None,
        Kind::Hook(hook) => {
            let own = leading.filter(|jump| table.leads_to_prefix(jump.entry, prefix));
            digest_of_entries(hook, own.map(|jump| target(table, jump.to)))
        }
    }
}

/// The digest of a chain with `length` rules, of which those at the given places lead to the given
/// chains.
fn digest<'a>(
    name: &[u8],
    length: usize,
    jumps: impl Iterator<Item = (usize, Option<&'a [u8]>)>,
) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    length.hash(&mut hasher);
    for jump in jumps {
        jump.hash(&mut hasher);
    }
    hasher.finish()
}

/// The digest of a built-in chain whose rules lead to these chains of Signpost; `None` if there are
/// none.
fn digest_of_entries<'a>(
    hook: usize,
    targets: impl Iterator<Item = Option<&'a [u8]>>,
) -> Option<u64> {
    let mut targets = targets.peekable();
    targets.peek()?;
    let mut hasher = DefaultHasher::new();
    hook.hash(&mut hasher);
    for target in targets {
        target.hash(&mut hasher);
    }
    Some(hasher.finish())
}

fn jumps(rules: &[Rule]) -> impl Iterator<Item = (usize, Option<&[u8]>)> {
    let targets = rules.iter().map(target_of).enumerate();
    targets.filter(|(_, target)| target.is_some())
}

fn target_of(rule: &Rule) -> Option<&[u8]> {
    rule.leads_to().map(|chain| chain.as_bytes())
}

/// The name of the target chain.
fn target<'a>(table: &Table<'a>, to: JumpTarget) -> Option<&'a [u8]> {
    match to {
        JumpTarget::Next => None,
        JumpTarget::Chain(chain) => table.chains[chain].name(),
    }
}
