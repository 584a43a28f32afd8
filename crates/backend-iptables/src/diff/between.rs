//! What table filter holds while table nat is changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use xtables::{BuiltIn, Rule, Target};

use crate::fixed_chains::{
    ARRIVING, CLUSTER_IPS, FORWARD, INPUT, LEAVING, NODE_PORT_REFUSALS, OUTPUT, REFUSALS,
    refusals_entrance,
};
use crate::names::PREFIX;
use crate::rules::{Chain, Rank, Rules};
use crate::table_rules::TableRules;
use crate::tree::Entry;
use crate::trees::TreeName;

/// Table filter on the way from some rules to others.
pub(super) struct Between {
    /// While table nat is changed: all that is wanted, what was refused before as well, and of cluster
    /// IPs those of before.
    pub(super) closed: TableRules,
    /// Behind it: cluster IPs as they are wanted.
    pub(super) claimed: TableRules,
}

/// A key that was refused and is not to be any more.
struct Refused {
    tree: TreeName,
    entry: Entry,
}

// === impl Between ===

impl Between {
    /// Costs what differs.
    pub(super) fn of(believed: &Rules, wanted: &Rules) -> Between {
        let mut claimed = wanted.filter.clone();
        keep_refusals(believed, wanted, &mut claimed);
        let mut closed = claimed.clone();
        let differences = believed.filter.chains().differences(wanted.filter.chains());
        for difference in differences {
            let name = difference.key;
            if !is_about_cluster_ips(name) {
                continue;
            }
            match (difference.before, &**name == CLUSTER_IPS) {
                (Some(before), _) => closed.insert(Arc::clone(name), Arc::clone(before)),
                // Others lead there.
                (None, true) => closed.insert(Arc::clone(name), Arc::new(empty())),
                (None, false) => drop(closed.remove(name)),
            }
        }
        Between { closed, claimed }
    }
}

fn is_about_cluster_ips(chain: &str) -> bool {
    chain == CLUSTER_IPS || is_of(chain, TreeName::ClusterIps)
}

/// Whether a chain belongs to a tree.
fn is_of(chain: &str, tree: TreeName) -> bool {
    let rest = chain.strip_prefix(PREFIX).unwrap_or_default();
    // The chain of all of its keys may have no name of its own.
    rest.starts_with(tree.tag()) || *rest == *tree.tag().trim_end_matches('-')
}

/// Whether packets come to what `believed` refuses at every hook, or there is nothing of ours. If not,
/// somebody has changed it: what it refuses is not refused now, and would be as soon as its chains are
/// mended, before table nat is.
pub(super) fn refuses(believed: &TableRules, wanted: &TableRules) -> bool {
    let chain = |name: &str| believed.chains().get(&Arc::from(name));
    let leads = |rules: &[Rule], to: &str| {
        let mut targets = rules.iter().filter_map(Rule::leads_to);
        targets.any(|target| **target == *to)
    };
    let enters = |hook: BuiltIn, outer: &str, inner: &str| {
        let entries = believed.entries.get(&hook);
        entries.is_some_and(|entries| leads(entries, outer))
            && chain(outer).is_some_and(|outer| leads(&outer.rules, inner))
    };
    // An entrance without rules is not led to; nor is one from a chain that is not to lead there.
    let is_reached = |from: &str, entrance: &str| {
        let leads = |table: &TableRules| {
            let from = table.chains().get(&Arc::from(from));
            from.is_some_and(|from| leads(&from.rules, entrance))
        };
        let is_used = chain(entrance).is_some_and(|entrance| !entrance.rules.is_empty());
        !is_used || leads(believed) || !leads(wanted)
    };
    believed.chains().is_empty()
        || enters(BuiltIn::Input, INPUT, ARRIVING)
            && enters(BuiltIn::Forward, FORWARD, LEAVING)
            && enters(BuiltIn::Output, OUTPUT, LEAVING)
            && is_reached(LEAVING, CLUSTER_IPS)
            && is_reached(LEAVING, REFUSALS)
            && is_reached(ARRIVING, REFUSALS)
            && is_reached(ARRIVING, CLUSTER_IPS)
}

fn empty() -> Chain {
    Chain {
        rules: [].into(),
        services: Vec::new(),
        rank: Rank::Entrance,
    }
}

/// Makes `filter`, which is what is wanted, refuse what `believed` does as well.
fn keep_refusals(believed: &Rules, wanted: &Rules, filter: &mut TableRules) {
    let refused = refused_before(believed, wanted);
    if refused.is_empty() {
        return;
    }
    let mut trees = wanted.trees.clone();
    for Refused { tree, entry } in refused {
        // Whoever may connect is refused in another way than everyone else.
        if let Some(chain) = entry.rule.leads_to() {
            let is_there = filter.chains().get(chain).is_some();
            if let (Some(before), false) = (believed.filter.chains().get(chain), is_there) {
                filter.insert(Arc::clone(chain), Arc::clone(before));
            }
        }
        if let (Some(key), Some(tree)) = (tree.key_of(&entry.rule), trees.get_mut(tree)) {
            tree.set(key, Some(entry));
        }
    }
    for (tree, entrance) in ENTRANCES {
        if let (Some(before), Some(after)) = (wanted.trees.get(tree), trees.get(tree)) {
            filter.put_tree(after.changes_since(before));
            let rules = match tree {
                TreeName::Refusals => refusals_entrance(after),
                _ => after.entrance(),
            };
            let chain = Chain {
                rules: rules.into(),
                ..empty()
            };
            filter.put(entrance.into(), Some(chain));
        }
    }
    // Where nothing is to be refused any more, nothing leads there.
    for name in [ARRIVING, LEAVING] {
        let name: Arc<str> = name.into();
        let rules = |table: &TableRules| table.chains().get(&name).map(|chain| chain.rules.clone());
        let (Some(before), Some(after)) = (rules(&believed.filter), rules(filter)) else {
            continue;
        };
        let leads_there = |rule: &&Rule| {
            let mut entrances = ENTRANCES.iter();
            let to = rule.leads_to();
            to.is_some_and(|to| entrances.any(|(_, entrance)| **to == **entrance))
        };
        let gone = |rule: &&Rule| !after.contains(rule);
        let kept = before.iter().filter(leads_there).filter(gone);
        let chain = Chain {
            rules: kept.chain(after.iter()).cloned().collect(),
            services: Vec::new(),
            rank: Rank::Inner,
        };
        filter.put(name, Some(chain));
    }
}

/// The trees of refusals, and the chains at their entrances.
const ENTRANCES: [(TreeName, &str); 2] = [
    (TreeName::Refusals, REFUSALS),
    (TreeName::NodePortRefusals, NODE_PORT_REFUSALS),
];

/// What `believed` refuses that `wanted` does not, as the chains say that differ.
fn refused_before(believed: &Rules, wanted: &Rules) -> Vec<Refused> {
    let mut refused = Vec::new();
    let mut reached: Option<BTreeSet<Arc<str>>> = None;
    let differences = believed.filter.chains().differences(wanted.filter.chains());
    for difference in differences {
        let name = difference.key;
        let mut trees = ENTRANCES.into_iter();
        let tree = trees.find(|(tree, entrance)| **name == **entrance || is_of(name, *tree));
        let (Some((tree, _)), Some(before)) = (tree, difference.before) else {
            continue;
        };
        let reached = reached.get_or_insert_with(|| reached_refusals(&believed.filter));
        if !reached.contains(name) {
            continue;
        }
        let rules = before.rules.iter().filter(|rule| is_of_key(rule, tree));
        let is_gone = |rule: &&Rule| {
            let after = wanted.trees.get(tree).zip(tree.key_of(rule));
            after.is_some_and(|(after, key)| after.get(&key).is_none())
        };
        refused.extend(rules.filter(is_gone).map(|rule| Refused {
            tree,
            entry: Entry {
                rule: rule.clone(),
                service: None,
            },
        }));
    }
    refused
}

/// The chains of refusals that packets come to, if they come to the entrances.
fn reached_refusals(filter: &TableRules) -> BTreeSet<Arc<str>> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<Arc<str>> = ENTRANCES.map(|(_, entrance)| entrance.into()).into();
    while let Some(name) = next.pop() {
        let rules = filter.chains().get(&name).map(|chain| &*chain.rules);
        if reached.insert(name) {
            let rules = rules.into_iter().flatten();
            next.extend(rules.filter_map(Rule::leads_to).cloned());
        }
    }
    reached
}

/// Whether a rule of a tree is one of a key, and not one that leads on to others.
fn is_of_key(rule: &Rule, tree: TreeName) -> bool {
    match &rule.target {
        Target::Drop | Target::Reject => true,
        Target::Goto(chain) => !is_of(chain, tree),
        _ => false,
    }
}
