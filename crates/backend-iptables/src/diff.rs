//! Computes the change from some rules to others.

mod between;
mod retained;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use backend::Size;
use dataplane::ServiceKey;
use xtables::{Rule, TableChange, TableName};

use crate::rules::{Chain, Rank, Rules};
use crate::table_rules::{MOST_NESTED, TableRules};
use between::FilterStages;

/// The most rules that one step writes. For each step that writes a rule the kernel walks the whole
/// table, 70 ms with 20,000 frontends, and takes some 15 µs more for each rule written, as measured
/// on Linux 6.18 (`cargo bench --package tests --bench iptables`). For that time no other process
/// can change nf_tables. Smaller steps take longer together, and larger ones block others for
/// longer than the walk itself. A chain with more rules is still written in one step, because a
/// part of it would leave endpoints out.
const RULES_AT_ONCE: usize = 5_000;
/// The most chains that one step removes.
const CHAINS_AT_ONCE: usize = 2_000;
/// The most rules that one step removes together with their chains: the kernel takes 14 to 35 ms
/// for them, as measured on Linux 6.18. A chain with more rules is flushed in one step.
const RULES_REMOVED_AT_ONCE: usize = 20_000;

/// Steps in order. After each of them, every frontend that is the same before and after is served.
#[derive(Debug, Clone, Default)]
pub struct Change {
    pub(crate) steps: Vec<TableChange>,
    /// The table of each step before it, as far as it decides how deep chains are nested.
    before: Vec<TableRules>,
    /// The Services whose rules it writes.
    pub(crate) services: BTreeSet<ServiceKey>,
}

/// Computes the steps from `observed` to `desired`. Table filter refuses packets that table nat
/// leaves alone. Therefore refusals are added before table nat is changed and removed after it: in
/// between, packets that either state refuses are refused. Unserved ports of new cluster IPs are
/// refused last, when their served ports exist.
pub(crate) fn diff(observed: &Rules, desired: &Rules) -> Change {
    diff_in_steps(observed, desired, RULES_AT_ONCE)
}

/// The same with steps that write `most` rules.
fn diff_in_steps(observed: &Rules, desired: &Rules, most: usize) -> Change {
    let mut change = Change::default();
    let between = FilterStages::of(observed, desired);
    let mut nat = &observed.nat;
    // A node that has just started, or lost its rules, serves the API server and DNS before all
    // other Services (kubernetes#133773).
    if let Some(first) = desired.first.as_deref().filter(|_| nat.entries.is_empty()) {
        change.append(TableName::Nat, nat, &first.nat, most);
        nat = &first.nat;
    }
    change.append(TableName::Filter, &observed.filter, &between.closed, most);
    let retained = retained::retain(nat, &desired.nat, &desired.trees);
    change.append(TableName::Nat, nat, &retained, most);
    change.append(TableName::Nat, &retained, &desired.nat, most);
    change.append(TableName::Filter, &between.closed, &between.claimed, most);
    change.append(TableName::Filter, &between.claimed, &desired.filter, most);
    change
}

// === impl Change ===

impl Change {
    /// The steps, in order.
    pub fn steps(&self) -> &[TableChange] {
        &self.steps
    }

    /// Splits the change in two, to be committed in order. A single step is split as
    /// [`commit`](backend::Backend::commit) splits one that is too large for the kernel. Returns
    /// `None` if it writes a single chain, or may end nowhere. Pure.
    pub fn halves(&self) -> Option<[Change; 2]> {
        let halves = match (&self.steps[..], &self.before[..]) {
            ([one], [before]) => {
                let [first, second] = one.halves(|chains| self.may_end(0, chains))?;
                let between = written(before, &first.chains);
                [
                    (vec![first], vec![before.clone()]),
                    (vec![second], vec![between]),
                ]
            }
            ([], _) => return None,
            (steps, before) => {
                let half = steps.len() / 2;
                let (first, second) = (&steps[..half], &steps[half..]);
                [
                    (first.to_vec(), before[..half].to_vec()),
                    (second.to_vec(), before[half..].to_vec()),
                ]
            }
        };
        Some(halves.map(|(steps, before)| Change {
            steps,
            before,
            services: self.services.clone(),
        }))
    }

    /// Whether the step of this number may end after so many of its chains: the kernel refuses a part
    /// that leaves chains nested too deep. The cost is proportional to the rules of the table.
    pub(crate) fn may_end(&self, step: usize, chains: usize) -> bool {
        let part = &self.steps[step].chains[..chains];
        written(&self.before[step], part).nesting() <= MOST_NESTED
    }

    /// Adds the steps from `observed` to `desired`, each of which writes `most` rules, or more where chains
    /// would be nested too deep after fewer: an old chain of a tree may have led there by other chains than
    /// the new one does.
    fn append(
        &mut self,
        table: TableName,
        observed: &TableRules,
        desired: &TableRules,
        most: usize,
    ) {
        let mut written: Vec<(Rank, &Arc<str>, &Arc<Chain>)> = Vec::new();
        let mut removed: Vec<(Arc<str>, usize)> = Vec::new();
        for difference in observed.chains().differences(desired.chains()) {
            match (difference.before, difference.after) {
                (_, Some(chain)) => written.push((chain.rank, difference.key, chain)),
                (Some(chain), None) => {
                    removed.push((Arc::clone(difference.key), chain.rules.len()));
                }
                (None, None) => {}
            }
        }
        // A chain is written before the chains that lead to it.
        written.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
        removed.sort();
        let mut step = TableChange::new(table);
        let (mut held, mut room) = (observed.clone(), most);
        let mut before = held.clone();
        for (_, name, chain) in written {
            if step.rules() + chain.rules.len() > room && !step.is_empty() {
                // Each look costs as much as the table is large.
                room = match held.nesting() > MOST_NESTED {
                    true => step.rules() + most,
                    false => most,
                };
                if room == most {
                    self.push(&mut step, &before);
                    before = held.clone();
                }
            }
            held.insert(Arc::clone(name), Arc::clone(chain));
            self.services.extend(chain.services.iter().cloned());
            step.chains
                .push((Arc::clone(name), Arc::clone(&chain.rules)));
        }
        let nothing: Vec<Rule> = Vec::new();
        let hooks: BTreeSet<_> = observed
            .entries
            .keys()
            .chain(desired.entries.keys())
            .collect();
        for hook in hooks {
            let of = |rules: &TableRules| rules.entries.get(hook).unwrap_or(&nothing).clone();
            if of(observed) != of(desired) {
                step.entries.push((*hook, of(desired)));
            }
        }
        let mut together = chunks(&removed);
        if let (Some(all), None) = (together.next(), together.next()) {
            step.removed = names(all).collect();
            self.push(&mut step, &before);
            return;
        }
        self.push(&mut step, &before);
        held.entries.clone_from(&desired.entries);
        // Removed chains may refer to one another: all are flushed before the first is deleted.
        for some in chunks(&removed) {
            step.chains = names(some).map(|name| (name, [].into())).collect();
            self.push(&mut step, &held);
        }
        for some in removed.chunks(CHAINS_AT_ONCE) {
            step.removed = names(some).collect();
            self.push(&mut step, &held);
        }
    }

    fn push(&mut self, step: &mut TableChange, before: &TableRules) {
        let empty = TableChange::new(step.table);
        let step = std::mem::replace(step, empty);
        if !step.is_empty() {
            self.steps.push(step);
            self.before.push(before.clone());
        }
    }
}

/// The table with these chains written.
fn written(before: &TableRules, chains: &[(Arc<str>, Arc<[Rule]>)]) -> TableRules {
    let mut table = before.clone();
    for (name, rules) in chains {
        table.write(name, rules);
    }
    table
}

/// Splits chains, given with their numbers of rules, into groups that one step flushes.
fn chunks(removed: &[(Arc<str>, usize)]) -> impl Iterator<Item = &[(Arc<str>, usize)]> {
    let (mut chains, mut all) = (0, 0);
    removed.chunk_by(move |(_, before), (_, rules)| {
        chains += 1;
        all += before;
        let fits = chains < CHAINS_AT_ONCE && all + rules <= RULES_REMOVED_AT_ONCE;
        if !fits {
            (chains, all) = (0, 0);
        }
        fits
    })
}

fn names(chains: &[(Arc<str>, usize)]) -> impl Iterator<Item = Arc<str>> {
    chains.iter().map(|(name, _)| Arc::clone(name))
}

impl backend::Change for Change {
    fn size(&self) -> Size {
        let mut size = Size::default();
        for step in &self.steps {
            size.elements += step.rules();
            size.objects += step.chains.len() + step.entries.len() + step.removed.len();
        }
        size
    }
}

impl fmt::Display for Change {
    /// Prints the input of `iptables-restore --noflush`, one block for each step; a removed chain
    /// is `-X`. Only Signpost's rules are flushed from a built-in chain.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            writeln!(f, "*{}", step.table)?;
            for (name, rules) in &step.chains {
                writeln!(f, ":{name} - [0:0]")?;
                for rule in rules.iter() {
                    writeln!(f, "-A {name} {rule}")?;
                }
            }
            for (hook, rules) in &step.entries {
                if rules.is_empty() {
                    writeln!(f, "# {hook}: Signpost's rules go")?;
                }
                for (at, rule) in rules.iter().enumerate() {
                    writeln!(f, "-I {hook} {} {rule}", at + 1)?;
                }
            }
            for name in &step.removed {
                writeln!(f, "-X {name}")?;
            }
            writeln!(f, "COMMIT")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod nesting_tests;
#[cfg(test)]
mod tests {
    use xtables::Target;

    use super::*;

    /// Chains of table nat with these numbers of rules.
    fn held(chains: &[usize]) -> Rules {
        let mut rules = Rules::default();
        for (number, length) in chains.iter().enumerate() {
            let chain = Chain {
                rules: vec![Rule::always(Target::Return); *length].into(),
                services: Vec::new(),
                rank: Rank::Inner,
            };
            let name = format!("SIGNPOST-{number:05}");
            rules.nat.insert(name.into(), Arc::new(chain));
        }
        rules
    }

    /// How many rules and chains each step removes until nothing is left.
    fn removals(chains: &[usize]) -> Vec<(usize, usize)> {
        let mut rules = held(chains);
        let count = |rules: &Rules| (rules.count(TableName::Nat), rules.nat.chains().len());
        let steps = diff(&rules, &Rules::default()).steps;
        let removals = steps.iter().map(|step| {
            let before = count(&rules);
            rules.replay(step).expect("the kernel takes it");
            let after = count(&rules);
            (before.0 - after.0, before.1 - after.1)
        });
        let removals = removals.collect();
        assert_eq!(rules, Rules::default());
        removals
    }

    #[test]
    fn what_goes_goes_in_bounded_steps() {
        assert_eq!(removals(&[]), []);
        assert_eq!(removals(&[0, 50, 19_950]), [(20_000, 3)]);
        assert_eq!(removals(&[1; 2_000]), [(2_000, 2_000)]);
        assert_eq!(
            removals(&[1; 2_001]),
            [(2_000, 0), (1, 0), (0, 2_000), (0, 1)]
        );
        // A thousand Services with fifty endpoints each.
        assert_eq!(
            removals(&[50; 1_000]),
            [(20_000, 0), (20_000, 0), (10_000, 0), (0, 1_000)]
        );
        assert_eq!(
            removals(&[7, 50_000, 7, 7]),
            [(7, 0), (50_000, 0), (14, 0), (0, 4)]
        );
    }
}
