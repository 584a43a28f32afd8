//! Compares two tables, piece by piece, for explanations of a Service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use backend::{Piece, PieceState};
use dataplane::FrontendKey;
use netlink::nf_tables::{Bytes, ElementData, Expression, Verdict};

use crate::chains::{ChainId, chain_behind};
use crate::layout::{self, Keyed, SetName};
use crate::table::{ChainWithRules, Table};

// === impl Table ===

impl Table {
    /// Whether this table or the one beside it exists.
    pub fn exists(&self) -> bool {
        self.exists || self.next.is_some()
    }

    /// Compares the elements for `key` in this table and in `found`, set by set. The cost is
    /// proportional to both tables.
    pub fn compare_elements(&self, found: &Table, key: &FrontendKey) -> Vec<Piece> {
        let (desired, found) = (self.carriers(key), found.carriers(key));
        let keys: BTreeSet<_> = desired.keys().chain(found.keys()).cloned().collect();
        let mut pieces: Vec<(SetName, Piece)> = keys
            .into_iter()
            .filter_map(|at| {
                let (desired, found) = (desired.get(&at), found.get(&at));
                Some((at.0, Piece::compare(desired, found)?))
            })
            .collect();
        // Sorted by text: the bytes of slot numbers are in host byte order, texts in numeric order.
        pieces.sort_by(|(a_set, a), (b_set, b)| (a_set, &a.text).cmp(&(b_set, &b.text)));
        pieces.into_iter().map(|(_, piece)| piece).collect()
    }

    /// Compares the elements that belong to no frontend, in this table and in `found`, set by set:
    /// cluster IPs, endpoints of this node, addresses that accept node ports. The cost is
    /// proportional to both tables.
    pub fn compare_memberships(&self, found: &Table) -> Vec<Piece> {
        let is_shared = |set: SetName| set.keyed().is_none() && !set.is_numbers();
        self.compare_sets_that(found, is_shared)
    }

    /// Compares the elements that map numbers to chains, in this table and in `found`, map by map.
    pub fn compare_numbers(&self, found: &Table) -> Vec<Piece> {
        self.compare_sets_that(found, SetName::is_numbers)
    }

    /// Compares the elements of the sets that `are_so` accepts.
    fn compare_sets_that(&self, found: &Table, are_so: impl Fn(SetName) -> bool) -> Vec<Piece> {
        let (desired, found) = (self.elements_of(&are_so), found.elements_of(&are_so));
        let keys: BTreeSet<_> = desired.keys().chain(found.keys()).cloned().collect();
        let pieces = keys
            .into_iter()
            .filter_map(|at| Piece::compare(desired.get(&at), found.get(&at)));
        pieces.collect()
    }

    /// Compares every chain of this table and of `found`, by name.
    pub fn compare_chains(&self, found: &Table) -> BTreeMap<Arc<str>, Piece> {
        let names: BTreeSet<_> = self.chains.keys().chain(found.chains.keys()).collect();
        let piece = |name: &Arc<str>| {
            let state = match (self.chains.get(name), found.chains.get(name)) {
                (Some(desired), Some(found)) if desired == found => PieceState::Present,
                (Some(_), Some(found)) => PieceState::Different {
                    found: rules(found),
                },
                (Some(_), None) => PieceState::Missing,
                (None, _) => PieceState::Leftover,
            };
            let text = format!("chain {name}");
            (Arc::clone(name), Piece { text, state })
        };
        names.into_iter().map(piece).collect()
    }

    /// Compares every set and map of this table and of `found`, by name and without elements. The
    /// table beside is always reported as leftover.
    pub fn compare_sets(&self, found: &Table) -> Vec<Piece> {
        let next = found.next.iter().map(|_| Piece {
            text: format!("table {}", layout::NEXT),
            state: PieceState::Leftover,
        });
        let names: BTreeSet<_> = self.sets.keys().chain(found.sets.keys()).collect();
        let piece = |name: &Arc<str>| {
            let state = match (self.sets.get(name), found.sets.get(name)) {
                (Some(desired), Some(found)) if desired.set == found.set => PieceState::Present,
                (Some(_), Some(_)) => PieceState::Different {
                    found: vec!["a set of another shape, or with elements of another".to_owned()],
                },
                (Some(_), None) => PieceState::Missing,
                (None, _) => PieceState::Leftover,
            };
            let text = format!("set {name}");
            Piece { text, state }
        };
        let pieces = names.into_iter().map(piece);
        pieces
            .chain(self.compare_flowtables(found))
            .chain(next)
            .collect()
    }

    /// Compares every flowtable of this table and of `found`, by name.
    fn compare_flowtables(&self, found: &Table) -> Vec<Piece> {
        let names = self.flowtables.keys().chain(found.flowtables.keys());
        let names: BTreeSet<_> = names.collect();
        let piece = |name: &Arc<str>| {
            let state = match (self.flowtables.get(name), found.flowtables.get(name)) {
                (Some(desired), Some(found)) if desired == found => PieceState::Present,
                (Some(_), Some(found)) => PieceState::Different {
                    found: found.devices.iter().map(|name| name.to_string()).collect(),
                },
                (Some(_), None) => PieceState::Missing,
                (None, _) => PieceState::Leftover,
            };
            let text = format!("flowtable {name}");
            Piece { text, state }
        };
        names.into_iter().map(piece).collect()
    }

    /// The names of the chains that the elements of `key` in this table lead to, without those that
    /// all packets traverse.
    pub fn chains_of(&self, key: &FrontendKey) -> BTreeSet<Arc<str>> {
        let mut chains = BTreeSet::new();
        let mut next: Vec<Arc<str>> = self
            .keyed_elements(key)
            .filter_map(|(set, _, data)| chain_behind(set, data))
            .collect();
        while let Some(name) = next.pop() {
            if let Some(chain) = self.chains.get(&name)
                && chains.insert(name)
            {
                let expressions = chain.rules.iter().flat_map(|rule| &rule.expressions);
                next.extend(expressions.filter_map(|expression| match expression {
                    Expression::Immediate(verdict) => target(verdict),
                    _ => None,
                }));
            }
        }
        chains
    }

    /// Every element whose key begins with `key`.
    fn keyed_elements(
        &self,
        key: &FrontendKey,
    ) -> impl Iterator<Item = (SetName, &Bytes, &ElementData)> {
        let (keyed, bytes) = (Keyed::of(key), layout::frontend(key));
        self.sets
            .iter()
            .filter_map(|(name, set)| Some((SetName::parse(name)?, set)))
            .filter(move |(name, _)| name.keyed() == Some(keyed))
            .flat_map(|(name, set)| set.elements.iter().map(move |(k, data)| (name, k, data)))
            .filter(move |(_, key, _)| key.as_slice().starts_with(bytes.as_slice()))
    }

    /// Prints every element whose key begins with `key`.
    fn carriers(&self, key: &FrontendKey) -> BTreeMap<(SetName, Bytes), String> {
        self.print(self.keyed_elements(key))
    }

    /// Every element of the sets that `are_so` accepts, as nft prints it.
    fn elements_of(&self, are_so: impl Fn(SetName) -> bool) -> BTreeMap<(SetName, Bytes), String> {
        let sets = self.sets.iter();
        let shared = sets
            .filter_map(|(name, set)| Some((SetName::parse(name)?, set)))
            .filter(|(name, _)| are_so(*name));
        self.print(
            shared
                .flat_map(|(name, set)| set.elements.iter().map(move |(k, data)| (name, k, data))),
        )
    }

    /// Prints elements, followed by a comment with the chain where an element holds a chain's
    /// number.
    fn print<'a>(
        &self,
        elements: impl Iterator<Item = (SetName, &'a Bytes, &'a ElementData)>,
    ) -> BTreeMap<(SetName, Bytes), String> {
        let text = |(name, key, data): (SetName, &Bytes, &ElementData)| {
            let set = self.sets.get(name.as_str())?;
            let mut text = format!("{} {{ {} }}", name.as_str(), set.set.element(key, data));
            if let Some(chain_id) = ChainId::of(name, data) {
                text.push_str(&format!(" # {chain_id}"));
            }
            Some(((name, key.clone()), text))
        };
        elements.filter_map(text).collect()
    }
}

/// The chain that a verdict leads to.
fn target(verdict: &Verdict) -> Option<Arc<str>> {
    match verdict {
        Verdict::Goto(chain) | Verdict::Jump(chain) => Some(Arc::clone(chain)),
        Verdict::Accept | Verdict::Drop | Verdict::Return => None,
    }
}

fn rules(chain: &ChainWithRules) -> Vec<String> {
    let rules = chain.rules.iter().map(|rule| match rule.expressions.len() {
        0 => "a rule that Signpost did not write".to_owned(),
        _ => rule.to_string(),
    });
    rules.collect()
}

#[cfg(test)]
mod tests;
