//! What of a table is ours, in so few bytes that it can be kept for each table.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::blob::{Chain, Kind, Table, To};

/// Our chains by name, how many rules each has and where these lead, and which rules of the kernel's
/// chains lead to them, in order. What rules ask, and what modules do with packets, is not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outline {
    chains: u32,
    /// The sum of what each chain says. No order of chains makes another: those who write tables do
    /// not all keep it.
    digest: u64,
}

// === impl Outline ===

impl Outline {
    /// That of a table in which nothing is ours.
    pub(super) const NOTHING: Outline = Outline {
        chains: 0,
        digest: 0,
    };

    /// That of `table`. Costs a look at each of our chains.
    pub(super) fn of(table: &Table<'_>, prefix: &str) -> Outline {
        let mut outline = Outline::NOTHING;
        for chain in &table.chains {
            let digest = match chain.kind {
                Kind::Named(name) if chain.begins_with(prefix) => Some(digest(table, chain, name)),
                Kind::Named(_) => None,
                Kind::Hook(hook) => digest_of_entries(table, chain, hook, prefix),
            };
            if let Some(digest) = digest {
                outline.chains += 1;
                outline.digest = outline.digest.wrapping_add(digest);
            }
        }
        outline
    }
}

fn digest(table: &Table<'_>, chain: &Chain<'_>, name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    chain.rules.len().hash(&mut hasher);
    for jump in table.jumps(chain.rules.clone()) {
        (jump.entry - chain.rules.start).hash(&mut hasher);
        target(table, jump.to).hash(&mut hasher);
    }
    hasher.finish()
}

/// Of a chain of the kernel; `None` where no rule in it is ours.
fn digest_of_entries(
    table: &Table<'_>,
    chain: &Chain<'_>,
    hook: usize,
    prefix: &str,
) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    let mut is_entered = false;
    hook.hash(&mut hasher);
    for jump in table.jumps(chain.rules.clone()) {
        if table.leads_to_prefix(jump.entry, prefix) {
            is_entered = true;
            target(table, jump.to).hash(&mut hasher);
        }
    }
    is_entered.then(|| hasher.finish())
}

/// The name of the chain that is meant.
fn target<'a>(table: &Table<'a>, to: To) -> Option<&'a [u8]> {
    match to {
        To::Next => None,
        To::Chain(chain) => table.chains[chain].name(),
    }
}
