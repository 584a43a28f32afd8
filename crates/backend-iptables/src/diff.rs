//! How to get from some rules to others.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use backend::Size;
use dataplane::ServiceKey;
use xtables::{Rule, TableChange, TableName};

use crate::rules::{Chain, Rank, Rules};
use crate::table_rules::TableRules;

/// How many rules one step writes at most: nobody else on the node waits for the kernel's lock
/// longer than some 35 ms, as measured on Linux 6.18.
const RULES_AT_ONCE: usize = 1_000;
/// How many chains one step removes at most.
const CHAINS_AT_ONCE: usize = 2_000;

/// Steps in order. After each of them every frontend is served that is the same before and after.
#[derive(Debug, Clone, Default)]
pub struct Change {
    pub(crate) steps: Vec<TableChange>,
    /// Whose rules it writes.
    pub(crate) services: BTreeSet<ServiceKey>,
}

/// How to get from `believed` to `wanted`.
pub(crate) fn diff(believed: &Rules, wanted: &Rules) -> Change {
    let mut change = Change::default();
    // A node that has just started, or lost its rules, serves the API server and DNS before all
    // others (kubernetes#133773).
    let is_cold = believed.nat.entries.is_empty();
    match &wanted.first {
        Some(first) if is_cold => {
            change.append(believed, first);
            change.append(first, wanted);
        }
        _ => change.append(believed, wanted),
    }
    change
}

// === impl Change ===

impl Change {
    /// The steps, in order.
    pub fn steps(&self) -> &[TableChange] {
        &self.steps
    }

    fn append(&mut self, believed: &Rules, wanted: &Rules) {
        for table in TableName::ALL {
            self.append_table(table, believed.of(table), wanted.of(table));
        }
    }

    fn append_table(&mut self, table: TableName, believed: &TableRules, wanted: &TableRules) {
        let mut written: Vec<(Rank, &Arc<str>, &Arc<Chain>)> = Vec::new();
        let mut removed: Vec<Arc<str>> = Vec::new();
        for difference in believed.chains().differences(wanted.chains()) {
            match difference.after {
                Some(chain) => written.push((chain.rank, difference.key, chain)),
                None => removed.push(Arc::clone(difference.key)),
            }
        }
        // What a chain leads to is there before it does.
        written.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
        removed.sort();
        let mut step = TableChange::new(table);
        for (_, name, chain) in written {
            if step.rules() + chain.rules.len() > RULES_AT_ONCE && !step.is_empty() {
                self.push(&mut step);
            }
            self.services.extend(chain.services.iter().cloned());
            step.chains
                .push((Arc::clone(name), Arc::clone(&chain.rules)));
        }
        let nothing: Vec<Rule> = Vec::new();
        let hooks: BTreeSet<_> = believed
            .entries
            .keys()
            .chain(wanted.entries.keys())
            .collect();
        for hook in hooks {
            let of = |rules: &TableRules| rules.entries.get(hook).unwrap_or(&nothing).clone();
            if of(believed) != of(wanted) {
                step.entries.push((*hook, of(wanted)));
            }
        }
        if removed.len() <= CHAINS_AT_ONCE {
            step.removed = removed;
            self.push(&mut step);
            return;
        }
        self.push(&mut step);
        // They lead to one another: all are emptied before the first goes.
        for some in removed.chunks(CHAINS_AT_ONCE) {
            step.chains = some
                .iter()
                .map(|name| (Arc::clone(name), [].into()))
                .collect();
            self.push(&mut step);
        }
        for some in removed.chunks(CHAINS_AT_ONCE) {
            step.removed = some.to_vec();
            self.push(&mut step);
        }
    }

    fn push(&mut self, step: &mut TableChange) {
        let empty = TableChange::new(step.table);
        let step = std::mem::replace(step, empty);
        if !step.is_empty() {
            self.steps.push(step);
        }
    }
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
    /// As input for `iptables-restore --noflush`, one part a step; a chain that goes is `-X`. A
    /// chain of the kernel is emptied of our rules only.
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
                    writeln!(f, "# {hook}: our rules go")?;
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
