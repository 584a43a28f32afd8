//! What table filter refuses until table nat has changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;
use xtables::{BuiltIn, Rule, Target};

use super::{LEADING, empty, is_of, leads_to};
use crate::fixed_chains::{
    ARRIVING, CLUSTER_IPS, LEAVING, NODE_PORT_REFUSALS, REFUSALS, SERVICES, UNREDIRECTED,
    refusals_entrance,
};
use crate::rules::{Chain, Rank, Rules};
use crate::table_rules::TableRules;
use crate::tree::{Entry, TreeChanges};
use crate::trees::TreeName;

/// A key that was refused and is no longer to be refused.
struct Refused {
    tree: TreeName,
    entry: Entry,
}

/// The trees of refusals and the chains at their entrances.
const ENTRANCES: [(TreeName, &str); 2] = [
    (TreeName::Refusals, REFUSALS),
    (TreeName::NodePortRefusals, NODE_PORT_REFUSALS),
];

/// Adds to `filter`, the desired table, the refusals of `observed`.
pub(super) fn keep_refusals(observed: &Rules, desired: &Rules, filter: &mut TableRules) {
    let mut refused = refused_before(observed, desired);
    refused.extend(taken(observed, desired));
    if refused.is_empty() {
        return;
    }
    let mut trees = desired.trees.clone();
    for Refused { tree, entry } in refused {
        // A frontend with source ranges refuses allowed sources differently from all others, in a
        // separate chain.
        if let Some(chain) = entry.rule.leads_to() {
            let is_there = filter.chains().get(chain).is_some();
            if let (Some(before), false) = (observed.filter.chains().get(chain), is_there) {
                filter.insert(Arc::clone(chain), Arc::clone(before));
            }
        }
        if let (Some(key), Some(tree)) = (tree.key_of(&entry.rule), trees.get_mut(tree))
            && tree.get(&key).is_none()
        {
            tree.set(key, Some(entry));
        }
    }
    for (tree, entrance) in ENTRANCES {
        if let (Some(before), Some(after)) = (desired.trees.get(tree), trees.get(tree)) {
            let changes = after.changes_since(before);
            // Desired chains are kept even if nothing leads to them: otherwise each of several
            // processes that are killed midway would remove what the previous one wrote.
            let (used, unused) = changes.into_iter().partition(|(_, chain)| chain.is_some());
            filter.put_tree(used);
            for name in TreeChanges::into_keys(unused) {
                leave(&observed.filter, &name, filter);
            }
            let chain = Chain {
                rules: refusals_entrance(after).into(),
                ..empty()
            };
            filter.put(entrance.into(), Some(chain));
        }
    }
    // If nothing is to be refused, the desired chains do not lead to the refusals: keep the
    // previous jumps.
    for name in [ARRIVING, LEAVING] {
        let name: Arc<str> = name.into();
        let rules = |table: &TableRules| table.chains().get(&name).map(|chain| chain.rules.clone());
        let (Some(before), Some(after)) = (rules(&observed.filter), rules(filter)) else {
            continue;
        };
        let leads_there = |rule: &&Rule| {
            let mut entrances = ENTRANCES.iter();
            let to = rule.leads_to();
            to.is_some_and(|to| entrances.any(|(_, entrance)| **to == **entrance))
        };
        let gone = |rule: &&Rule| !after.contains(rule);
        let kept = before.iter().filter(leads_there).filter(gone);
        let mut rules: Vec<Rule> = kept.chain(after.iter()).cloned().collect();
        let refusals = trees.get(TreeName::Refusals);
        let is_led_to = |rule: &Rule| rule.leads_to().is_some_and(|to| **to == *REFUSALS);
        if refusals.is_some_and(|tree| !tree.is_empty()) && !rules.iter().any(is_led_to) {
            rules.insert(0, Rule::always(Target::Jump(REFUSALS.into())));
        }
        let chain = Chain {
            rules: rules.into(),
            services: Vec::new(),
            rank: Rank::Inner,
        };
        filter.put(name, Some(chain));
    }
}

/// Leaves a chain of `filter` as it is in `observed`, with the chains it leads to. Nothing in `filter`
/// leads there, but as long as the previous entrance does, what it refuses must stay.
fn leave(observed: &TableRules, name: &Arc<str>, filter: &mut TableRules) {
    let Some(chain) = observed.chains().get(name) else {
        return;
    };
    filter.insert(Arc::clone(name), Arc::clone(chain));
    for next in chain.rules.iter().filter_map(Rule::leads_to) {
        if filter.chains().get(next).is_none() {
            leave(observed, next, filter);
        }
    }
}

/// Refusals for frontends that are removed while their address becomes a cluster IP: table nat
/// loses these frontends before the refusals of the cluster IP are added.
fn taken(observed: &Rules, desired: &Rules) -> Vec<Refused> {
    let Some(after) = desired.trees.get(TreeName::Services) else {
        return Vec::new();
    };
    let differences = observed.nat.chains().differences(desired.nat.chains());
    let differences = differences.into_iter().filter(|difference| {
        **difference.key == *SERVICES || is_of(difference.key, TreeName::Services)
    });
    let rules = differences.filter_map(|difference| difference.before);
    let rules = rules.flat_map(|chain| chain.rules.iter());
    let is_taken = |rule: &&Rule| {
        let key = TreeName::Services.key_of(rule);
        let goes = key.is_some_and(|key| after.get(&key).is_none());
        let destination = rule.destination.as_ref().filter(|_| goes);
        destination.is_some_and(|destination| {
            let mut hooks = LEADING.iter().flat_map(|(_, hooks)| hooks.iter());
            let has = |rules: &Rules, hook| has_cluster_ip(&rules.filter, hook, &destination.range);
            hooks.any(|hook| has(desired, *hook) && !has(observed, *hook))
        })
    };
    let refused = rules.filter(is_taken).map(|rule| Refused {
        tree: TreeName::Refusals,
        entry: Entry {
            rule: Rule {
                target: Target::Reject,
                ..rule.clone()
            },
            service: None,
        },
    });
    refused.collect()
}

/// Whether packets at `hook` to a cluster IP at this address are refused. The chain alone does not
/// show it: one left by an interrupted change may be unreachable, and packets to this node reach it
/// only if a cluster IP is on a device of the node.
fn has_cluster_ip(filter: &TableRules, hook: BuiltIn, address: &IpNet) -> bool {
    leads_to(filter, hook, CLUSTER_IPS) && refuses(filter, CLUSTER_IPS, address)
}

/// Whether a chain, or one that it leads such packets to, refuses them. The cost is that of the
/// path through the tree; the kernel accepts no loops of chains.
fn refuses(filter: &TableRules, chain: &str, address: &IpNet) -> bool {
    let chain = filter.chains().get(&Arc::from(chain));
    let rules = chain.into_iter().flat_map(|chain| chain.rules.iter());
    let mut rules = rules.filter(|rule| {
        let destination = rule.destination.as_ref();
        destination.is_none_or(|destination| destination.range.contains(address))
    });
    rules.any(|rule| match rule.leads_to() {
        Some(next) => {
            let leads_on = **next == *UNREDIRECTED || is_of(next, TreeName::ClusterIps);
            leads_on && refuses(filter, next, address)
        }
        None => rule.target == Target::Reject,
    })
}

/// What `observed` refuses and `desired` does not, found from the chains that differ.
fn refused_before(observed: &Rules, desired: &Rules) -> Vec<Refused> {
    let mut refused = Vec::new();
    let mut reached: Option<BTreeSet<Arc<str>>> = None;
    let differences = observed
        .filter
        .chains()
        .differences(desired.filter.chains());
    for difference in differences {
        let name = difference.key;
        let mut trees = ENTRANCES.into_iter();
        let tree = trees.find(|(tree, entrance)| **name == **entrance || is_of(name, *tree));
        let (Some((tree, _)), Some(before)) = (tree, difference.before) else {
            continue;
        };
        let reached = reached.get_or_insert_with(|| reached_refusals(&observed.filter));
        if !reached.contains(name) {
            continue;
        }
        let rules = before.rules.iter().filter(|rule| is_of_key(rule, tree));
        let is_gone = |rule: &&Rule| {
            let after = desired.trees.get(tree).zip(tree.key_of(rule));
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

/// The chains of refusals that packets at any hook reach.
fn reached_refusals(filter: &TableRules) -> BTreeSet<Arc<str>> {
    let mut reached = BTreeSet::new();
    let is_entered = |entrance: &&str| {
        let mut hooks = LEADING.iter().flat_map(|(_, hooks)| hooks.iter());
        hooks.any(|hook| leads_to(filter, *hook, entrance))
    };
    let entrances = ENTRANCES.iter().map(|(_, entrance)| *entrance);
    let mut next: Vec<Arc<str>> = entrances.filter(is_entered).map(Arc::from).collect();
    while let Some(name) = next.pop() {
        let rules = filter.chains().get(&name).map(|chain| &*chain.rules);
        if reached.insert(name) {
            let rules = rules.into_iter().flatten();
            next.extend(rules.filter_map(Rule::leads_to).cloned());
        }
    }
    reached
}

/// Whether a rule of a tree belongs to a key, rather than leading to other chains of the tree.
fn is_of_key(rule: &Rule, tree: TreeName) -> bool {
    match &rule.target {
        Target::Drop | Target::Reject => true,
        Target::Goto(chain) => !is_of(chain, tree),
        _ => false,
    }
}
