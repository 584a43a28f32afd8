//! Compares desired and observed rules, for explanations of a Service.

use std::collections::BTreeSet;
use std::sync::Arc;

use backend::{Piece, PieceState};
use dataplane::{Dataplane, Family, FrontendKey, Hairpin, Protocol, ServiceRules, Target};
use xtables::{Rule, TableName, Target as Action};

use crate::key::Key;
use crate::rules::{Chain, Rank, Rules};
use crate::trees::{FrontendTrees, TreeName};

/// The table and name of a chain.
pub type ChainName = (TableName, Arc<str>);

/// A rule with its chain.
type Placed<'a> = (ChainName, &'a Rule);

// === impl Rules ===

impl Rules {
    /// Whether any of Signpost's chains exists.
    pub fn exist(&self) -> bool {
        TableName::ALL
            .iter()
            .any(|table| !self.of(*table).chains().is_empty())
    }

    /// The chains that packets to `key` traverse and other packets do not. Available for rendered
    /// rules; empty for rules that were read from the kernel.
    pub fn chains_of(&self, key: &FrontendKey) -> BTreeSet<ChainName> {
        let place = FrontendTrees::of(key);
        let key = place.key;
        let mut chains = BTreeSet::new();
        for name in [place.dispatch, place.refusals] {
            let Some(tree) = self.trees.get(name) else {
                continue;
            };
            let Some(entry) = tree.get(&key) else {
                continue;
            };
            let table = name.table();
            chains.extend(tree.path(&key).into_iter().map(|chain| (table, chain)));
            let behind = entry.rule.leads_to().cloned().into_iter().collect();
            chains.extend(self.reached(table, behind));
        }
        chains
    }

    /// Compares the rules of `key` alone, here and in `found`: those that look it up, and those of
    /// the chains they lead to. The cost is proportional to both.
    pub fn compare_rules(&self, found: &Rules, key: &FrontendKey) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for table in TableName::ALL {
            let (desired, found) = (self.lookups(table, key), found.lookups(table, key));
            let pairs = 0..desired.len().max(found.len());
            pieces.extend(pairs.filter_map(|at| {
                let print = |placed: &Placed<'_>| print(key.family(), placed);
                compare_texts(desired.get(at).map(print), found.get(at).map(print))
            }));
        }
        for table in TableName::ALL {
            let behind = |rules: &Rules| {
                let lookups = rules.lookups(table, key);
                let first = lookups.iter().filter_map(|(_, rule)| rule.leads_to());
                rules.reached(table, first.cloned().collect())
            };
            let mut chains = behind(self);
            let own: BTreeSet<ChainName> = chains.iter().cloned().collect();
            let others = behind(found).into_iter();
            chains.extend(others.filter(|chain| !own.contains(chain)));
            for chain in chains {
                let (desired, found) = (self.rules(&chain), found.rules(&chain));
                pieces.extend(compare_listed(key.family(), &chain, desired, found));
            }
        }
        pieces
    }

    /// Compares the other rules that the Services of `of` need in `family`, here and in `found`:
    /// for their cluster IPs, endpoints on this node and health checks. Empty if these rules were
    /// read from the kernel.
    pub fn compare_memberships(&self, found: &Rules, of: &Dataplane, family: Family) -> Vec<Piece> {
        let cluster_ips = of.cluster_ips();
        let cluster_ips = cluster_ips
            .iter()
            .map(|(address, _)| Key::address(*address));
        let hairpins = of.hairpins().iter().map(|(hairpin, _)| {
            let Hairpin {
                address,
                protocol,
                port,
            } = *hairpin;
            Key::address(address).with_port(protocol, port)
        });
        let health_check = |(_, rules): (_, &Arc<ServiceRules>)| {
            let port = rules.health_check?.port;
            Some(Key::port(Protocol::Tcp, port))
        };
        let health_checks = of.services().iter().filter_map(health_check);
        let keys = cluster_ips
            .map(|key| (TreeName::ClusterIps, key))
            .chain(hairpins.map(|key| (TreeName::Hairpins, key)))
            .chain(health_checks.map(|key| (TreeName::HealthChecks, key)));
        let mut keys: Vec<(TreeName, Key)> = keys.collect();
        keys.sort();
        let piece = |(name, key): (TreeName, Key)| {
            let rule = &self.trees.get(name)?.get(&key)?.rule;
            let chain = self.chain_with(name, &key)?;
            let state = match found.rules(&chain).contains(rule) {
                true => PieceState::Present,
                false => PieceState::Missing,
            };
            let text = print(family, &(chain, rule));
            Some(Piece { text, state })
        };
        keys.into_iter().filter_map(piece).collect()
    }

    /// Compares `chains` here and in `found`.
    pub fn compare_chains(&self, found: &Rules, chains: &BTreeSet<ChainName>) -> Vec<Piece> {
        let piece = |name: &ChainName| {
            let rules = |rules: &Rules| {
                let chain = rules.of(name.0).chains().get(&name.1)?;
                Some(texts(&chain.rules))
            };
            let (table, chain) = name;
            compare(format!("{table} chain {chain}"), rules(self), rules(found))
        };
        chains.iter().filter_map(piece).collect()
    }

    /// Compares the rules that all packets traverse, here and in `found`: the jumps from built-in
    /// chains to Signpost's chains, and the fixed chains. Includes leftover chains of Signpost.
    pub fn compare_shared(&self, found: &Rules) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for table in TableName::ALL {
            let (desired, held) = (self.of(table), found.of(table));
            let hooks: BTreeSet<_> = desired.entries.keys().chain(held.entries.keys()).collect();
            for hook in hooks {
                let rules = |entries: Option<&Vec<Rule>>| entries.map(|rules| texts(rules));
                let (desired, found) = (desired.entries.get(hook), held.entries.get(hook));
                let text = format!("{table} {hook}");
                pieces.extend(compare(text, rules(desired), rules(found)));
            }
            let shared = desired
                .chains()
                .iter()
                .filter(|(_, chain)| chain.is_shared());
            let held = held.chains().iter();
            let surplus = held.filter(|(name, _)| desired.chains().get(name).is_none());
            let names = shared
                .chain(surplus)
                .map(|(name, _)| (table, Arc::clone(name)));
            pieces.extend(self.compare_chains(found, &names.collect()));
        }
        pieces
    }

    /// The endpoints that these rules send connections to `key` to, for any client. Also available
    /// for rules that were read.
    pub fn targets(&self, key: &FrontendKey) -> BTreeSet<Target> {
        let lookups = self.lookups(TableName::Nat, key);
        let first = lookups.iter().filter_map(|(_, rule)| rule.leads_to());
        let chains = self.reached(TableName::Nat, first.cloned().collect());
        let rules = chains.iter().flat_map(|chain| self.rules(chain));
        let target = |rule: &Rule| match rule.target {
            // Node-port rules match the same in both families.
            Action::DestinationNat { address, port }
                if dataplane::Family::of(address) == key.family() =>
            {
                let port = dataplane::Port::new(port)?;
                Some(Target { address, port })
            }
            _ => None,
        };
        rules.filter_map(target).collect()
    }

    /// The rules that look up `key`, sorted by chain name.
    fn lookups(&self, table: TableName, key: &FrontendKey) -> Vec<Placed<'_>> {
        let asked = FrontendTrees::of(key).rule(Action::Accept);
        let is_lookup = |rule: &Rule| {
            // A health check matches a port as a node port does, but accepts.
            let is_let_in = table == TableName::Filter && rule.target == Action::Accept;
            rule.matches_same_packets(&asked) && !is_let_in
        };
        let mut lookups: Vec<Placed<'_>> = Vec::new();
        for (name, chain) in self.of(table).chains().iter() {
            let rules = chain.rules.iter().filter(|rule| is_lookup(rule));
            lookups.extend(rules.map(|rule| ((table, Arc::clone(name)), rule)));
        }
        lookups.sort_by(|(a, _), (b, _)| a.cmp(b));
        lookups
    }

    /// `next` and all chains reachable from them, each once and before the chains it leads to.
    fn reached(&self, table: TableName, mut next: Vec<Arc<str>>) -> Vec<ChainName> {
        let mut chains: Vec<ChainName> = Vec::new();
        next.reverse();
        while let Some(name) = next.pop() {
            let name = (table, name);
            if chains.contains(&name) || self.of(table).chains().get(&name.1).is_none() {
                continue;
            }
            let behind = self.rules(&name).iter().filter_map(Rule::leads_to);
            next.extend(behind.rev().cloned());
            chains.push(name);
        }
        chains
    }

    /// The rules of a chain; empty if it does not exist.
    fn rules(&self, (table, name): &ChainName) -> &[Rule] {
        let chain = self.of(*table).chains().get(name);
        chain.map_or(&[], |chain| &chain.rules)
    }

    /// The chain that holds the rule of `key`: one of the tree, or the one at its entrance.
    fn chain_with(&self, name: TreeName, key: &Key) -> Option<ChainName> {
        let (tree, table) = (self.trees.get(name)?, name.table());
        if let Some(chain) = tree.path(key).pop() {
            return Some((table, chain));
        }
        let rule = &tree.get(key)?.rule;
        let mut chains = self.of(table).chains().iter();
        let entrance = chains.find(|(_, c)| c.is_shared() && c.rules.contains(rule));
        entrance.map(|(name, _)| (table, Arc::clone(name)))
    }
}

impl Chain {
    fn is_shared(&self) -> bool {
        matches!(self.rank, Rank::Entrance | Rank::Inner | Rank::Outer)
    }
}

/// Prints a rule as the command that would add it.
fn print(family: Family, ((table, chain), rule): &Placed<'_>) -> String {
    let program = match family {
        Family::Ipv4 => "iptables",
        Family::Ipv6 => "ip6tables",
    };
    format!("{program} -t {table} -A {chain} {rule}")
}

fn texts(rules: &[Rule]) -> Vec<String> {
    rules.iter().map(ToString::to_string).collect()
}

/// Compares one rule. Returns `None` if it is neither desired nor found.
fn compare_texts(desired: Option<String>, found: Option<String>) -> Option<Piece> {
    let text = desired.clone().or(found.clone())?;
    let rules = |text: Option<String>| text.map(|text| vec![text]);
    compare(text, rules(desired), rules(found))
}

/// Compares the rules of one chain individually: first the desired ones in order, then leftovers.
fn compare_listed(
    family: Family,
    chain: &ChainName,
    desired: &[Rule],
    found: &[Rule],
) -> Vec<Piece> {
    let mut surplus: Vec<&Rule> = found.iter().collect();
    let mut pieces: Vec<Piece> = Vec::new();
    for rule in desired {
        let at = surplus.iter().position(|found| *found == rule);
        let state = match at {
            Some(at) => {
                surplus.remove(at);
                PieceState::Present
            }
            None => PieceState::Missing,
        };
        let text = print(family, &(chain.clone(), rule));
        pieces.push(Piece { text, state });
    }
    pieces.extend(surplus.into_iter().map(|rule| Piece {
        text: print(family, &(chain.clone(), rule)),
        state: PieceState::Leftover,
    }));
    pieces
}

/// Compares one piece. Returns `None` if it is neither desired nor found.
fn compare(
    text: String,
    desired: Option<Vec<String>>,
    found: Option<Vec<String>>,
) -> Option<Piece> {
    let state = match (desired, found) {
        (Some(desired), Some(found)) if desired == found => PieceState::Present,
        (Some(_), Some(found)) => PieceState::Different { found },
        (Some(_), None) => PieceState::Missing,
        (None, Some(_)) => PieceState::Leftover,
        (None, None) => return None,
    };
    Some(Piece { text, state })
}

#[cfg(test)]
mod tests;
