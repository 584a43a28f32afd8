//! The contents of table filter while table nat is changed.

mod refusals;

use std::sync::Arc;

use xtables::{BuiltIn, Rule, Target};

use self::refusals::keep_refusals;
use crate::fixed_chains::{ARRIVING, CLUSTER_IPS, FORWARD, INPUT, LEAVING, OUTPUT, UNREDIRECTED};
use crate::names::PREFIX;
use crate::rules::{Chain, Rank, Rules};
use crate::table_rules::TableRules;
use crate::trees::TreeName;

/// The intermediate states of table filter on the way from some rules to others.
pub(super) struct FilterStages {
    /// While table nat is changed: all desired refusals and all previous ones. Refusals of cluster
    /// IPs are the previous ones, for those hooks only that reached them before.
    pub(super) closed: TableRules,
    /// After that: the same with refusals of cluster IPs as desired.
    pub(super) claimed: TableRules,
}

// === impl FilterStages ===

impl FilterStages {
    /// The cost is proportional to the difference.
    pub(super) fn of(observed: &Rules, desired: &Rules) -> FilterStages {
        let mut claimed = desired.filter.clone();
        keep_refusals(observed, desired, &mut claimed);
        let mut closed = claimed.clone();
        let differences = observed
            .filter
            .chains()
            .differences(desired.filter.chains());
        for difference in differences {
            let name = difference.key;
            if !is_about_cluster_ips(name) {
                continue;
            }
            match difference.before {
                Some(before) => closed.insert(Arc::clone(name), Arc::clone(before)),
                None => drop(closed.remove(name)),
            }
        }
        for (chain, hooks) in LEADING {
            let leads = |hook: &&BuiltIn| leads_to(&observed.filter, **hook, CLUSTER_IPS);
            let (leading, damaged): (Vec<&BuiltIn>, Vec<&BuiltIn>) = hooks.iter().partition(leads);
            match leading.is_empty() {
                true => drop_jumps(&mut closed, chain, CLUSTER_IPS),
                false => {
                    keep_jumps(&observed.filter, &mut closed, chain, CLUSTER_IPS);
                    damaged
                        .into_iter()
                        .for_each(|hook| lead_past_cluster_ips(&mut closed, *hook, chain));
                }
            }
        }
        FilterStages { closed, claimed }
    }
}

fn is_about_cluster_ips(chain: &str) -> bool {
    chain == CLUSTER_IPS || chain == UNREDIRECTED || is_of(chain, TreeName::ClusterIps)
}

/// Whether `chain` belongs to `tree`.
pub(super) fn is_of(chain: &str, tree: TreeName) -> bool {
    let rest = chain.strip_prefix(PREFIX).unwrap_or_default();
    // The chain of all keys may have no further part in its name.
    rest.starts_with(tree.tag()) || *rest == *tree.tag().trim_end_matches('-')
}

/// The chains that lead to refusals, and the hooks that lead to these chains.
const LEADING: [(&str, &[BuiltIn]); 2] = [
    (ARRIVING, &[BuiltIn::Input]),
    (LEAVING, &[BuiltIn::Forward, BuiltIn::Output]),
];

/// Whether packets at `hook` reach `entrance`.
fn leads_to(filter: &TableRules, hook: BuiltIn, entrance: &str) -> bool {
    let leads = |rules: &[Rule], to: &str| {
        let mut targets = rules.iter().filter_map(Rule::leads_to);
        targets.any(|target| **target == *to)
    };
    let passes = |from: &str, to: &str| {
        let from = filter.chains().get(&Arc::from(from));
        from.is_some_and(|from| leads(&from.rules, to))
    };
    let Some(outer) = outer(hook) else {
        return false;
    };
    let entries = filter.entries.get(&hook);
    entries.is_some_and(|entries| leads(entries, outer))
        && LEADING.iter().any(|(chain, hooks)| {
            hooks.contains(&hook) && passes(outer, chain) && passes(chain, entrance)
        })
}

/// The chain that `hook` enters.
fn outer(hook: BuiltIn) -> Option<&'static str> {
    match hook {
        BuiltIn::Input => Some(INPUT),
        BuiltIn::Forward => Some(FORWARD),
        BuiltIn::Output => Some(OUTPUT),
        BuiltIn::Prerouting | BuiltIn::Postrouting => None,
    }
}

/// Has `hook` lead to a copy of `chain` without refusals of cluster IPs. Another program has damaged
/// this hook, and not another one of the same chain: refusals of cluster IPs go on there, and here they
/// might refuse packets that table nat is about to serve.
fn lead_past_cluster_ips(filter: &mut TableRules, hook: BuiltIn, chain: &str) {
    let Some(outer) = outer(hook).map(Arc::from) else {
        return;
    };
    let found = |name: &Arc<str>| filter.chains().get(name).cloned();
    let (Some(entering), Some(all)) = (found(&outer), found(&chain.into())) else {
        return;
    };
    let copy: Arc<str> = format!("{chain}-REPAIRED").into();
    filter.insert(Arc::clone(&copy), all);
    drop_jumps(filter, &copy, CLUSTER_IPS);
    let rules = entering.rules.iter().cloned().map(|mut rule| {
        if let Target::Jump(to) | Target::Goto(to) = &mut rule.target
            && **to == *chain
        {
            *to = Arc::clone(&copy);
        }
        rule
    });
    let entering = Chain {
        rules: rules.collect(),
        ..Chain::clone(&entering)
    };
    filter.put(outer, Some(entering));
}

/// If no rule of a chain of `filter` leads to `entrance`, adds those of `observed` that do, with the
/// exemptions before them: what was refused is refused until what refuses it from now on is reached at
/// every hook, which another program may have damaged.
fn keep_jumps(observed: &TableRules, filter: &mut TableRules, chain: &str, entrance: &str) {
    let name: Arc<str> = chain.into();
    let rules = |table: &TableRules| table.chains().get(&name).map(|chain| chain.rules.clone());
    let (Some(before), Some(after)) = (rules(observed), rules(filter)) else {
        return;
    };
    let leads = |rule: &Rule| rule.leads_to().is_some_and(|to| **to == *entrance);
    if after.iter().any(leads) {
        return;
    }
    let is_kept = |rule: &&Rule| leads(rule) || rule.target == Target::Return;
    let kept = before.iter().filter(is_kept);
    // Behind the rule that drops packets to an address without a Service they would refuse nothing,
    // and a process that continues from there could not tell.
    let drops = after.iter().position(|rule| rule.target == Target::Drop);
    let (first, last) = after.split_at(drops.unwrap_or(after.len()));
    let chain = Chain {
        rules: first.iter().chain(kept).chain(last).cloned().collect(),
        services: Vec::new(),
        rank: Rank::Inner,
    };
    filter.put(name, Some(chain));
}

/// Removes the rules of a chain that lead to `entrance`.
fn drop_jumps(filter: &mut TableRules, chain: &str, entrance: &str) {
    let name: Arc<str> = chain.into();
    let Some(chain) = filter.chains().get(&name) else {
        return;
    };
    let is_kept = |rule: &&Rule| rule.leads_to().is_none_or(|to| **to != *entrance);
    let rules = chain.rules.iter().filter(is_kept).cloned();
    let chain = Chain {
        rules: rules.collect(),
        ..Chain::clone(chain)
    };
    filter.put(name, Some(chain));
}

fn empty() -> Chain {
    Chain {
        rules: [].into(),
        services: Vec::new(),
        rank: Rank::Entrance,
    }
}
