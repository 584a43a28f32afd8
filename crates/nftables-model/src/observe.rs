//! Reads the content of a table from the kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use dataplane::Family;
use netlink::nf_tables::{Chain, Rule, Set, SetContent, SetWriter, TableState};
use netlink::{ObserveError, Socket};

use crate::contents::{ChainWithRules, Chains, Contents, FlowtableWithDevices, SetWithElements};

impl Contents {
    /// Reads the table `table_name`. `own` returns Signpost's definition of the set with a given
    /// name, if there is one. Elements that packets write are not read.
    pub fn observe(
        socket: &mut Socket,
        family: Family,
        table_name: &str,
        own: impl Fn(&str) -> Option<Set>,
    ) -> Result<Contents, ObserveError> {
        let Some(state) = socket.observe_table_state(family, table_name)? else {
            return Ok(Contents::default());
        };
        let mut rules: BTreeMap<Arc<str>, Vec<Rule>> = BTreeMap::new();
        for (chain, rule) in socket.observe_rules(family, table_name)? {
            // A rule that Signpost did not write equals none of Signpost's.
            rules.entry(chain).or_default().push(rule.unwrap_or(Rule {
                expressions: Vec::new(),
                comment: None,
            }));
        }
        let mut contents = Contents {
            exists: true,
            ..Contents::default()
        };
        let mut chains = Chains::new();
        for (name, chain) in socket.observe_chains(family, table_name)? {
            let rules = rules.remove(&name).unwrap_or_default();
            // No packet meets the chains of a dormant table.
            let chain = chain.ok().filter(|_| state == TableState::Awake);
            let chain = chain.unwrap_or_else(|| unhooked(&name));
            chains.insert(name, Arc::new(ChainWithRules { chain, rules }));
        }
        // One kernel listing contains the chains of all tables by position: while other programs
        // add and remove chains, it may lack one of this table.
        for (name, rules) in rules {
            let Some(chain) = socket.observe_one_chain(family, table_name, &name)? else {
                continue;
            };
            let chain = chain.unwrap_or_else(|_| unhooked(&name));
            chains.insert(name, Arc::new(ChainWithRules { chain, rules }));
        }
        contents.chains = Arc::new(chains);
        for (name, set) in socket.observe_sets(family, table_name)? {
            // A set that Signpost did not write has no key here, so it equals none of Signpost's.
            let set = set.unwrap_or_else(|_| foreign(&name));
            let is_own = own(&name).is_some_and(|own| own == set);
            // Packets change the elements that they write; these are not compared.
            let elements = match is_own && set.writer == SetWriter::Transactions {
                true => socket.observe_elements(family, table_name, &name),
                false => Ok(Vec::new()),
            };
            let (set, elements) = match elements {
                // A foreign element makes the whole set foreign.
                Err(ObserveError::Foreign { .. }) => (foreign(&name), Vec::new()),
                elements => (set, elements?),
            };
            let elements = elements.into_iter().collect();
            let set = Arc::new(set);
            contents
                .sets
                .insert(name, SetWithElements { set, elements });
        }
        for (name, flowtable) in socket.observe_flowtables(family, table_name)? {
            let (flowtable, devices) = flowtable.ok().unzip();
            let devices = devices.unwrap_or_default();
            contents
                .flowtables
                .insert(name, FlowtableWithDevices { flowtable, devices });
        }
        Ok(contents)
    }
}

/// Represents a chain at a hook that no agent uses. Without the hook it equals no chain of
/// Signpost.
fn unhooked(name: &Arc<str>) -> Chain {
    Chain {
        name: Arc::clone(name),
        hook: None,
    }
}

/// A set that equals none of Signpost's: it has no key.
fn foreign(name: &Arc<str>) -> Set {
    Set {
        name: Arc::clone(name),
        key: Vec::new(),
        content: SetContent::Membership,
        writer: SetWriter::Transactions,
    }
}
