//! The nodes of a tree.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Entry;
use crate::key::Key;

/// The most keys of a leaf.
const LEAF: usize = 16;

/// Keys with a common prefix.
#[derive(Debug, PartialEq)]
pub(super) enum Node {
    /// Sorted by key, never empty.
    Leaf(Vec<(Key, Entry)>),
    /// Its keys begin with `prefix` and differ in the next digit.
    Branch {
        prefix: Key,
        /// By that digit, in order, at least two.
        children: Vec<(u8, Arc<Node>)>,
        /// The number of keys below.
        count: usize,
        /// The length of the longest chain of branches from here, including this one.
        height: usize,
    },
}

// === impl Node ===

impl Node {
    /// The common prefix of all its keys.
    pub(super) fn prefix(&self) -> Key {
        match self {
            Node::Branch { prefix, .. } => *prefix,
            Node::Leaf(entries) => match (entries.first(), entries.last()) {
                (Some((first, _)), Some((last, _))) => first.prefix(first.common(last)),
                _ => unreachable!("a leaf is never empty"),
            },
        }
    }

    pub(super) fn count(&self) -> usize {
        match self {
            Node::Leaf(entries) => entries.len(),
            Node::Branch { count, .. } => *count,
        }
    }

    /// The length of the longest chain of branches.
    pub(super) fn height(&self) -> usize {
        match self {
            Node::Leaf(_) => 0,
            Node::Branch { height, .. } => *height,
        }
    }

    /// A branch with these children, at least two.
    fn branch(prefix: Key, children: Vec<(u8, Arc<Node>)>) -> Node {
        Node::Branch {
            prefix,
            count: children.iter().map(|(_, child)| child.count()).sum(),
            height: 1 + children
                .iter()
                .map(|(_, child)| child.height())
                .max()
                .unwrap_or(0),
            children,
        }
    }

    pub(super) fn entries(&self) -> Vec<(Key, Entry)> {
        match self {
            Node::Leaf(entries) => entries.clone(),
            Node::Branch { children, .. } => children
                .iter()
                .flat_map(|(_, child)| child.entries())
                .collect(),
        }
    }
}

/// Returns the node with `key` set to `entry`.
pub(super) fn insert(node: &Arc<Node>, key: Key, entry: Entry) -> Arc<Node> {
    match &**node {
        Node::Leaf(entries) => {
            let mut entries = entries.clone();
            match entries.binary_search_by(|(other, _)| other.cmp(&key)) {
                Ok(at) if entries[at].1 == entry => return Arc::clone(node),
                Ok(at) => entries[at].1 = entry,
                Err(at) => entries.insert(at, (key, entry)),
            }
            build(entries)
        }
        Node::Branch {
            prefix, children, ..
        } if key.starts_with(prefix) => {
            let digit = key.digits()[prefix.digits().len()];
            let mut children = children.clone();
            match children.binary_search_by_key(&digit, |(digit, _)| *digit) {
                Ok(at) => {
                    let child = insert(&children[at].1, key, entry);
                    if Arc::ptr_eq(&child, &children[at].1) {
                        return Arc::clone(node);
                    }
                    children[at].1 = child;
                }
                Err(at) => {
                    let leaf = Node::Leaf(vec![(key, entry)]);
                    children.insert(at, (digit, Arc::new(leaf)));
                }
            }
            Arc::new(Node::branch(*prefix, children))
        }
        Node::Branch { prefix, .. } => {
            let common = key.common(prefix);
            let leaf = Arc::new(Node::Leaf(vec![(key, entry)]));
            let mut children = vec![
                (prefix.digits()[common], Arc::clone(node)),
                (key.digits()[common], leaf),
            ];
            children.sort_by_key(|(digit, _)| *digit);
            Arc::new(Node::branch(key.prefix(common), children))
        }
    }
}

/// Returns the node without `key`, or `None` if nothing is left.
pub(super) fn remove(node: &Arc<Node>, key: &Key) -> Option<Arc<Node>> {
    match &**node {
        Node::Leaf(entries) => {
            let Some(at) = entries.iter().position(|(other, _)| other == key) else {
                return Some(Arc::clone(node));
            };
            let mut entries = entries.clone();
            entries.remove(at);
            (!entries.is_empty()).then(|| build(entries))
        }
        Node::Branch {
            prefix, children, ..
        } => {
            let found = key
                .starts_with(prefix)
                .then(|| key.digits()[prefix.digits().len()])
                .and_then(|digit| children.iter().position(|(other, _)| *other == digit));
            let Some(at) = found else {
                return Some(Arc::clone(node));
            };
            let child = remove(&children[at].1, key);
            if child
                .as_ref()
                .is_some_and(|c| Arc::ptr_eq(c, &children[at].1))
            {
                return Some(Arc::clone(node));
            }
            let mut children = children.clone();
            match child {
                Some(child) => children[at].1 = child,
                None => drop(children.remove(at)),
            }
            if let [(_, only)] = children.as_slice() {
                return Some(Arc::clone(only));
            }
            let branch = Node::branch(*prefix, children);
            Some(match branch.count() <= LEAF {
                true => build(branch.entries()),
                false => Arc::new(branch),
            })
        }
    }
}

/// Builds the unique form of these keys. They must be sorted, distinct and not empty.
fn build(entries: Vec<(Key, Entry)>) -> Arc<Node> {
    let leaf = Node::Leaf(entries);
    let prefix = leaf.prefix();
    let entries = match leaf {
        Node::Leaf(entries) if entries.len() > LEAF => entries,
        leaf => return Arc::new(leaf),
    };
    let mut parts: BTreeMap<u8, Vec<(Key, Entry)>> = BTreeMap::new();
    for (key, entry) in entries {
        let digit = key.digits()[prefix.digits().len()];
        parts.entry(digit).or_default().push((key, entry));
    }
    let children = parts.into_iter().map(|(digit, part)| (digit, build(part)));
    Arc::new(Node::branch(prefix, children.collect()))
}
