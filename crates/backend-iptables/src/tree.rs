//! The tree that selects a packet's frontend: at most sixteen rules at each step, for any number of
//! frontends whose addresses are not chosen against it.
//!
//! Its form depends only on its keys: more than sixteen keys branch at the first digit in which
//! they differ, sixteen or fewer are in one leaf. So one set of keys has exactly one tree,
//! independent of its history, and copies share what they have in common.
//!
//! Where branches would be nested deeper than [`BRANCHES`], a chain also has the rules of the
//! heaviest child, and of its heaviest child, until the rest fits: some 560 rules at most, as a key
//! has up to 37 digits. A key that is not in the heaviest child has at most as many keys beside it as are in
//! that child. So at the maximum depth, where all keys are in one chain, there are at most a
//! thousandth of all.

mod node;

use std::collections::BTreeMap;
use std::sync::Arc;

use dataplane::ServiceKey;
use xtables::{PacketEnd, Rule, Target};

use crate::key::{Key, Shape};
use node::{Node, insert, remove};

/// The most branches on the path to a chain. nf_tables accepts fifteen nested chains
/// (`NFT_JUMP_STACK_SIZE`, where `-g` counts, too), and refuses a change that nests deeper. Four of
/// them are before and behind a tree: in table nat its entrance, source ranges, the chain that
/// external frontends share, endpoints; in table filter three before refusals and the source ranges
/// behind them. Only addresses that were chosen adversarially reach this depth.
const BRANCHES: usize = 10;

/// A map from keys to their rules.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    shape: Shape,
    /// Which address of a packet it branches on.
    asks: PacketEnd,
    /// The most branches on the path to a chain.
    branches: usize,
    /// The prefix of its chains' names.
    tag: &'static str,
    root: Option<Arc<Node>>,
}

/// The entry of one key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    /// The rule, which matches all of the key.
    pub(crate) rule: Rule,
    /// The Service of the key.
    pub(crate) service: Option<ServiceKey>,
}

/// A node with its position in a tree.
#[derive(Debug, Clone, Copy)]
struct PlacedNode<'a> {
    node: &'a Arc<Node>,
    /// The number of branches above it.
    level: usize,
}

/// A chain of the tree.
#[derive(Debug, Clone)]
pub(crate) struct TreeChain {
    pub(crate) rules: Vec<Rule>,
    /// The Services of these rules.
    pub(crate) services: Vec<ServiceKey>,
    /// The number of digits that lead here: a chain is deeper than those that lead to it.
    pub(crate) depth: usize,
}

/// The chains that differ between two trees; `None` to be removed.
pub(crate) type TreeChanges = BTreeMap<Arc<str>, Option<TreeChain>>;

// === impl Tree ===

impl Tree {
    /// An empty tree.
    pub(crate) fn new(tag: &'static str, shape: Shape) -> Tree {
        Tree {
            shape,
            asks: PacketEnd::Destination,
            branches: BRANCHES,
            tag,
            root: None,
        }
    }

    /// An empty tree that branches on sources.
    pub(crate) fn of_sources(tag: &'static str, shape: Shape) -> Tree {
        Tree {
            asks: PacketEnd::Source,
            ..Tree::new(tag, shape)
        }
    }

    /// The rule that matches exactly `prefix`.
    pub(crate) fn rule(&self, prefix: &Key, target: Target) -> Rule {
        let rule = self.shape.criteria(prefix).rule(target);
        match self.asks {
            PacketEnd::Destination => rule,
            PacketEnd::Source => Rule {
                source: rule.destination,
                destination: None,
                ..rule
            },
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Sets or removes the entry of `key`.
    pub(crate) fn set(&mut self, key: Key, entry: Option<Entry>) {
        self.root = match (self.root.take(), entry) {
            (None, None) => None,
            (None, Some(entry)) => Some(Arc::new(Node::Leaf(vec![(key, entry)]))),
            (Some(root), Some(entry)) => Some(insert(&root, key, entry)),
            (Some(root), None) => remove(&root, &key),
        };
    }

    /// The entry of `key`.
    pub(crate) fn get(&self, key: &Key) -> Option<&Entry> {
        let mut node = self.root.as_deref()?;
        loop {
            match node {
                Node::Leaf(entries) => {
                    return entries
                        .iter()
                        .find_map(|(other, entry)| (other == key).then_some(entry));
                }
                Node::Branch {
                    prefix, children, ..
                } => {
                    let digit = *key.digits().get(prefix.digits().len())?;
                    node = children
                        .iter()
                        .find_map(|(other, child)| (*other == digit).then_some(&**child))?;
                }
            }
        }
    }

    /// The names of the chains that a packet with `key` traverses, from the root on.
    pub(crate) fn path(&self, key: &Key) -> Vec<Arc<str>> {
        let mut names = Vec::new();
        let mut next = self.top();
        while let Some(place) = next {
            if self.has_chain(place.node) {
                names.push(self.name(place.node));
            }
            let mut below = self.below(place).into_iter();
            next = below.find(|child| key.starts_with(&child.node.prefix()));
        }
        names
    }

    /// The rules that lead into the tree, for the chain at its entrance. A packet that matches no
    /// key returns after them.
    pub(crate) fn entrance(&self) -> Vec<Rule> {
        match &self.root {
            None => Vec::new(),
            Some(root) => self.lead_to(root, Target::Jump),
        }
    }

    /// The chains of `self` that differ from those of `before`.
    pub(crate) fn changes_since(&self, before: &Tree) -> TreeChanges {
        let mut changes = TreeChanges::new();
        self.compare(before.top(), self.top(), &mut changes);
        changes
    }

    fn top(&self) -> Option<PlacedNode<'_>> {
        let node = self.root.as_ref()?;
        Some(PlacedNode { node, level: 0 })
    }

    /// The nodes to which a branch's chain leads: its children. Where they would be nested too deep, the
    /// chain also has the rules of the heaviest child, in the place of one that leads there: so
    /// most keys are nested less deep.
    fn below<'a>(&self, place: PlacedNode<'a>) -> Vec<PlacedNode<'a>> {
        let children = match &**place.node {
            Node::Branch { children, .. } if place.level < self.branches => &children[..],
            Node::Branch { .. } | Node::Leaf(_) => &[],
        };
        let children = || children.iter().map(|(_, node)| node);
        let heaviest = match self.fits(place) {
            true => None,
            false => children().max_by_key(|child| child.count()),
        };
        let mut below = Vec::new();
        for node in children() {
            match heaviest {
                Some(heaviest) if Arc::ptr_eq(node, heaviest) => {
                    below.extend(self.below(PlacedNode { node, ..place }));
                }
                _ => below.push(PlacedNode {
                    node,
                    level: place.level + 1,
                }),
            }
        }
        below
    }

    /// Whether no branch below is nested too deep.
    fn fits(&self, place: PlacedNode<'_>) -> bool {
        place.level + place.node.height() <= self.branches
    }

    /// Whether a node has the same chains in both trees.
    fn is_same(&self, before: PlacedNode<'_>, after: PlacedNode<'_>) -> bool {
        Arc::ptr_eq(before.node, after.node)
            && (before.level == after.level || self.fits(before) && self.fits(after))
    }

    /// Records the chains that differ. A node's prefix is less than those of the nodes below it.
    fn compare(
        &self,
        before: Option<PlacedNode<'_>>,
        after: Option<PlacedNode<'_>>,
        changes: &mut TreeChanges,
    ) {
        let mut olds: BTreeMap<Key, PlacedNode<'_>> = before.map(by_prefix).into_iter().collect();
        let mut news: BTreeMap<Key, PlacedNode<'_>> = after.map(by_prefix).into_iter().collect();
        loop {
            let first = [&olds, &news].map(|places| places.keys().next().copied());
            let Some(prefix) = first.into_iter().flatten().min() else {
                return;
            };
            let (old, new) = (olds.remove(&prefix), news.remove(&prefix));
            match (old, new) {
                (Some(old), Some(new)) if self.is_same(old, new) => continue,
                (Some(old), Some(new)) if !self.has_chain(new.node) => {
                    self.note_gone(old.node, changes);
                }
                (Some(old), Some(new)) => {
                    if !self.has_chain(old.node) || self.rules(old) != self.rules(new) {
                        self.note_chain(new, changes);
                    }
                }
                (Some(old), None) => self.note_gone(old.node, changes),
                (None, Some(new)) => self.note_chain(new, changes),
                (None, None) => {}
            }
            olds.extend(
                old.into_iter()
                    .flat_map(|place| self.below(place))
                    .map(by_prefix),
            );
            news.extend(
                new.into_iter()
                    .flat_map(|place| self.below(place))
                    .map(by_prefix),
            );
        }
    }

    fn note_chain(&self, place: PlacedNode<'_>, changes: &mut TreeChanges) {
        if self.has_chain(place.node) {
            let chain = TreeChain {
                rules: self.rules(place),
                services: self.services(place),
                depth: place.node.prefix().digits().len(),
            };
            changes.insert(self.name(place.node), Some(chain));
        }
    }

    /// Records the removal of a node's chain, unless a chain of the same name is added.
    fn note_gone(&self, node: &Node, changes: &mut TreeChanges) {
        if self.has_chain(node) {
            changes.entry(self.name(node)).or_insert(None);
        }
    }

    /// Whether a node has a chain. A single key has none: its rule replaces the one that would lead
    /// there.
    fn has_chain(&self, node: &Node) -> bool {
        !matches!(node, Node::Leaf(entries) if entries.len() == 1)
    }

    /// The rules that lead to `node`.
    fn lead_to(&self, node: &Node, how: impl FnOnce(Arc<str>) -> Target) -> Vec<Rule> {
        match node {
            Node::Leaf(entries) if entries.len() == 1 => entries
                .iter()
                .map(|(_, entry)| entry.rule.clone())
                .collect(),
            _ => {
                vec![self.rule(&node.prefix(), how(self.name(node)))]
            }
        }
    }

    /// Whether the node's chain has the rules of all keys below.
    fn is_flat(&self, place: PlacedNode<'_>) -> bool {
        matches!(**place.node, Node::Leaf(_)) || place.level >= self.branches
    }

    fn rules(&self, place: PlacedNode<'_>) -> Vec<Rule> {
        if self.is_flat(place) {
            let entries = place.node.entries().into_iter();
            return entries.map(|(_, entry)| entry.rule).collect();
        }
        let below = self.below(place).into_iter();
        below
            .flat_map(|child| self.lead_to(child.node, Target::Goto))
            .collect()
    }

    /// The Services whose rules are in the node's chain.
    fn services(&self, place: PlacedNode<'_>) -> Vec<ServiceKey> {
        let own = |node: &Node| node.entries().into_iter().filter_map(|(_, e)| e.service);
        if self.is_flat(place) {
            return own(place.node).collect();
        }
        let below = self.below(place).into_iter().map(|child| child.node);
        below
            .filter(|child| child.count() == 1)
            .flat_map(|child| own(child))
            .collect()
    }

    fn name(&self, node: &Node) -> Arc<str> {
        crate::names::of_prefix(self.tag, &self.shape.criteria(&node.prefix()))
    }
}

fn by_prefix(place: PlacedNode<'_>) -> (Key, PlacedNode<'_>) {
    (place.node.prefix(), place)
}

#[cfg(test)]
mod tests;
