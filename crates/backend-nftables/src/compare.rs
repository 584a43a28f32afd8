//! Where one table differs from another, piece by piece, for people who ask about a Service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use backend::{Piece, Standing};
use dataplane::FrontendKey;
use netlink::nf_tables::{Bytes, ElementData, Expression, Verdict};

use crate::chains::{Lead, chain_behind};
use crate::layout::{self, Keyed, SetName};
use crate::table::{ChainWithRules, Table};

// === impl Table ===

impl Table {
    /// Whether the table is there at all, or the one beside it.
    pub fn exists(&self) -> bool {
        self.exists || self.next.is_some()
    }

    /// The elements that carry `key`, here and in `found`, set by set. Costs in proportion to both
    /// tables.
    pub fn compare_elements(&self, found: &Table, key: &FrontendKey) -> Vec<Piece> {
        let (wanted, found) = (self.carriers(key), found.carriers(key));
        let keys: BTreeSet<_> = wanted.keys().chain(found.keys()).cloned().collect();
        let mut pieces: Vec<(SetName, Piece)> = keys
            .into_iter()
            .filter_map(|at| {
                let (wanted, found) = (wanted.get(&at), found.get(&at));
                Some((at.0, Piece::compare(wanted, found)?))
            })
            .collect();
        // By text: slots are in the host's order of bytes, and texts in that of numbers.
        pieces.sort_by(|(a_set, a), (b_set, b)| (a_set, &a.text).cmp(&(b_set, &b.text)));
        pieces.into_iter().map(|(_, piece)| piece).collect()
    }

    /// The elements that are no frontend's, here and in `found`, set by set: cluster IPs, endpoints
    /// of this node, addresses that accept node ports. Costs in proportion to both tables.
    pub fn compare_memberships(&self, found: &Table) -> Vec<Piece> {
        let is_shared = |set: SetName| set.keyed().is_none() && !set.is_numbers();
        self.compare_sets_that(found, is_shared)
    }

    /// The elements that lead from numbers to chains, here and in `found`, map by map.
    pub fn compare_numbers(&self, found: &Table) -> Vec<Piece> {
        self.compare_sets_that(found, SetName::is_numbers)
    }

    /// The elements of sets that are so.
    fn compare_sets_that(&self, found: &Table, are_so: impl Fn(SetName) -> bool) -> Vec<Piece> {
        let (wanted, found) = (self.elements_of(&are_so), found.elements_of(&are_so));
        let keys: BTreeSet<_> = wanted.keys().chain(found.keys()).cloned().collect();
        let pieces = keys
            .into_iter()
            .filter_map(|at| Piece::compare(wanted.get(&at), found.get(&at)));
        pieces.collect()
    }

    /// Every chain, here and in `found`, by name.
    pub fn compare_chains(&self, found: &Table) -> BTreeMap<Arc<str>, Piece> {
        let names: BTreeSet<_> = self.chains.keys().chain(found.chains.keys()).collect();
        let piece = |name: &Arc<str>| {
            let standing = match (self.chains.get(name), found.chains.get(name)) {
                (Some(wanted), Some(found)) if wanted == found => Standing::Present,
                (Some(_), Some(found)) => Standing::Different {
                    found: rules(found),
                },
                (Some(_), None) => Standing::Missing,
                (None, _) => Standing::Leftover,
            };
            let text = format!("chain {name}");
            (Arc::clone(name), Piece { text, standing })
        };
        names.into_iter().map(piece).collect()
    }

    /// Every set and map, here and in `found`, by name and without elements; and the table beside, which
    /// is never wanted.
    pub fn compare_sets(&self, found: &Table) -> Vec<Piece> {
        let next = found.next.iter().map(|_| Piece {
            text: format!("table {}", layout::NEXT),
            standing: Standing::Leftover,
        });
        let names: BTreeSet<_> = self.sets.keys().chain(found.sets.keys()).collect();
        let piece = |name: &Arc<str>| {
            let standing = match (self.sets.get(name), found.sets.get(name)) {
                (Some(wanted), Some(found)) if wanted.set == found.set => Standing::Present,
                (Some(_), Some(_)) => Standing::Different {
                    found: vec!["a set of another shape, or with elements of another".to_owned()],
                },
                (Some(_), None) => Standing::Missing,
                (None, _) => Standing::Leftover,
            };
            let text = format!("set {name}");
            Piece { text, standing }
        };
        names.into_iter().map(piece).chain(next).collect()
    }

    /// The chains that a packet to `key` is led through by its elements here, by name; those that
    /// all packets pass are not among them.
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

    /// Every element that begins with `key`.
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

    /// Every element that begins with `key`.
    fn carriers(&self, key: &FrontendKey) -> BTreeMap<(SetName, Bytes), String> {
        self.print(self.keyed_elements(key))
    }

    /// Every element of sets that are so, as nft prints it.
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

    /// Behind the number of a chain, as a comment, which it is.
    fn print<'a>(
        &self,
        elements: impl Iterator<Item = (SetName, &'a Bytes, &'a ElementData)>,
    ) -> BTreeMap<(SetName, Bytes), String> {
        let text = |(name, key, data): (SetName, &Bytes, &ElementData)| {
            let set = self.sets.get(name.as_str())?;
            let mut text = format!("{} {{ {} }}", name.as_str(), set.set.element(key, data));
            if let Some(lead) = Lead::of(name, data) {
                text.push_str(&format!(" # {lead}"));
            }
            Some(((name, key.clone()), text))
        };
        elements.filter_map(text).collect()
    }
}

/// Where a verdict leads.
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
