//! An in-memory kernel: commits transactions to a table, and refuses what nf_tables would refuse.

use std::collections::BTreeSet;
use std::sync::Arc;

use dataplane::PersistentMap;
use netlink::nf_tables::{
    Bytes, ElementData, Expression, Operation, Rule, SetContent, Transaction, Verdict,
};
use thiserror::Error;

use crate::contents::{ChainWithRules, Contents, FlowtableWithDevices, SetWithElements};

/// Why nf_tables would refuse a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refused {
    /// The object to change does not exist (`ENOENT`).
    #[error("operation {operation}: {what} does not exist")]
    Missing {
        /// The operation, counted from 0.
        operation: usize,
        /// The object.
        what: String,
    },
    /// An object with another definition exists (`EEXIST`).
    #[error("operation {operation}: {what} already exists")]
    Present {
        /// The operation, counted from 0.
        operation: usize,
        /// The object.
        what: String,
    },
    /// Another object still refers to it (`EBUSY`).
    #[error("operation {operation}: {what} is still referenced")]
    Busy {
        /// The operation, counted from 0.
        operation: usize,
        /// The object.
        what: String,
    },
    /// A value does not fit its set (`EINVAL`).
    #[error("operation {operation}: an element does not fit {what}")]
    Misfit {
        /// The operation, counted from 0.
        operation: usize,
        /// The set.
        what: String,
    },
}

impl Contents {
    /// Commits `transaction`, whole or not at all, where every device exists that it names.
    pub fn replay(&mut self, transaction: &Transaction) -> Result<(), Refused> {
        self.replay_with_devices(transaction, |_| true)
    }

    /// The same in a network namespace that has the devices for which `has_device` is true.
    pub fn replay_with_devices(
        &mut self,
        transaction: &Transaction,
        has_device: impl Fn(&str) -> bool,
    ) -> Result<(), Refused> {
        let mut contents = self.clone();
        let operations = &transaction.operations;
        for (at, operation) in operations.iter().enumerate() {
            // Both before anything else (nft_netdev_hook_alloc and nft_flowtable_update in
            // net/netfilter/nf_tables_api.c of Linux 6.1). A device that was in the flowtable before the
            // transaction is no error.
            if let Operation::AddDevice { device, .. } | Operation::DeleteDevice { device, .. } =
                operation
                && !has_device(device)
            {
                return Err(Refused::Missing {
                    operation: at,
                    what: device.to_string(),
                });
            }
            if let Operation::AddDevice { device, .. } = operation
                && operations[..at].contains(operation)
            {
                return Err(Refused::Present {
                    operation: at,
                    what: device.to_string(),
                });
            }
            contents.replay_operation(at, operation)?;
        }
        *self = contents;
        Ok(())
    }

    fn replay_operation(&mut self, at: usize, operation: &Operation) -> Result<(), Refused> {
        let missing = |what: &str| Refused::Missing {
            operation: at,
            what: what.to_owned(),
        };
        let present = |what: &str| Refused::Present {
            operation: at,
            what: what.to_owned(),
        };
        let creates = matches!(operation, Operation::AddTable | Operation::AddOwnedTable);
        if !self.exists && !creates {
            return Err(missing("the table"));
        }
        match operation {
            Operation::AddTable | Operation::AddOwnedTable => self.exists = true,
            Operation::DeleteTable => *self = Contents::default(),
            Operation::FlushTable => {
                for chain in Arc::make_mut(&mut self.chains).values_mut() {
                    Arc::make_mut(chain).rules.clear();
                }
            }
            Operation::AddChain(chain) => match self.chains.get(&chain.name) {
                Some(old) if old.chain != *chain => return Err(present(&chain.name)),
                Some(_) => {}
                None => {
                    let chain = ChainWithRules {
                        chain: chain.clone(),
                        rules: Vec::new(),
                    };
                    let name = Arc::clone(&chain.chain.name);
                    Arc::make_mut(&mut self.chains).insert(name, Arc::new(chain));
                }
            },
            Operation::FlushChain(name) => {
                let chains = Arc::make_mut(&mut self.chains);
                let chain = chains.get_mut(name).ok_or_else(|| missing(name))?;
                Arc::make_mut(chain).rules.clear();
            }
            // Rules in memory have no handles.
            Operation::DeleteRule { chain, .. } => return Err(missing(chain)),
            Operation::DeleteChain(name) => {
                let chain = self.chains.get(name).ok_or_else(|| missing(name))?;
                if !chain.rules.is_empty() || self.leads_to(name) {
                    return Err(busy(at, name));
                }
                Arc::make_mut(&mut self.chains).remove(name);
            }
            Operation::AddRule { chain, rule } | Operation::InsertRule { chain, rule } => {
                for needed in needs(rule) {
                    let found = match needed {
                        Needed::Set(name) => self.sets.contains_key(name),
                        Needed::Chain(name) => self.chains.contains_key(name),
                        Needed::Flowtable(name) => self.flowtables.contains_key(name),
                    };
                    if !found {
                        return Err(missing(needed.name()));
                    }
                }
                let chains = Arc::make_mut(&mut self.chains);
                let chain = chains.get_mut(chain).ok_or_else(|| missing(chain))?;
                let rules = &mut Arc::make_mut(chain).rules;
                let position = match operation {
                    Operation::InsertRule { .. } => 0,
                    _ => rules.len(),
                };
                rules.insert(position, rule.clone());
            }
            Operation::AddSet(set) => match self.sets.get(&set.name) {
                Some(old) if *old.set != *set => return Err(present(&set.name)),
                Some(_) => {}
                None => {
                    let elements = PersistentMap::default();
                    let name = Arc::clone(&set.name);
                    let set = Arc::new(set.clone());
                    self.sets.insert(name, SetWithElements { set, elements });
                }
            },
            Operation::DeleteSet(name) => {
                if !self.sets.contains_key(name) {
                    return Err(missing(name));
                }
                let used =
                    |rule: &Rule| needs(rule).any(|n| matches!(n, Needed::Set(set) if set == name));
                if self.has_rule(used) {
                    return Err(busy(at, name));
                }
                self.sets.remove(name);
            }
            Operation::AddFlowtable(flowtable) => match self.flowtables.get(&flowtable.name) {
                Some(old) if old.flowtable.as_ref() != Some(flowtable) => {
                    return Err(present(&flowtable.name));
                }
                Some(_) => {}
                None => {
                    let with_devices = FlowtableWithDevices {
                        flowtable: Some(flowtable.clone()),
                        devices: BTreeSet::new(),
                    };
                    let name = Arc::clone(&flowtable.name);
                    self.flowtables.insert(name, with_devices);
                }
            },
            Operation::DeleteFlowtable(name) => {
                if !self.flowtables.contains_key(name) {
                    return Err(missing(name));
                }
                let used = |rule: &Rule| {
                    needs(rule).any(|n| matches!(n, Needed::Flowtable(other) if other == name))
                };
                if self.has_rule(used) {
                    return Err(busy(at, name));
                }
                self.flowtables.remove(name);
            }
            Operation::AddDevice { flowtable, device } => {
                let name = &flowtable.name;
                // A device is in at most one flowtable of a table (nft_register_flowtable_net_hooks).
                let mut others = self.flowtables.iter().filter(|(other, _)| *other != name);
                if others.any(|(_, other)| other.devices.contains(device)) {
                    return Err(present(device));
                }
                let flowtable = self.flowtables.get_mut(name).ok_or_else(|| missing(name))?;
                flowtable.devices.insert(Arc::clone(device));
            }
            Operation::DeleteDevice { flowtable, device } => {
                let name = &flowtable.name;
                let flowtable = self.flowtables.get_mut(name).ok_or_else(|| missing(name))?;
                if !flowtable.devices.remove(device) {
                    return Err(missing(device));
                }
            }
            Operation::AddElements { set, elements } => {
                for (key, data) in elements {
                    self.replay_addition(at, &set.name, key, data)?;
                }
            }
            Operation::DeleteElements { set, keys } => {
                let at_name = self
                    .sets
                    .get_mut(&set.name)
                    .ok_or_else(|| missing(&set.name))?;
                for key in keys {
                    if at_name.elements.remove(key).is_none() {
                        let element = key.typed(&set.key);
                        return Err(missing(&format!("{} {{ {element} }}", set.name)));
                    }
                }
            }
        }
        Ok(())
    }

    fn replay_addition(
        &mut self,
        at: usize,
        name: &Arc<str>,
        key: &Bytes,
        data: &ElementData,
    ) -> Result<(), Refused> {
        let what = || name.to_string();
        if let ElementData::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain)) = data
            && !self.chains.contains_key(chain)
        {
            return Err(Refused::Missing {
                operation: at,
                what: chain.to_string(),
            });
        }
        let missing = || Refused::Missing {
            operation: at,
            what: what(),
        };
        let set = self.sets.get_mut(name).ok_or_else(missing)?;
        let width: usize = set.set.key.iter().map(|field| field.width()).sum();
        let fits = matches!(
            (data, &set.set.content),
            (ElementData::None, SetContent::Membership)
                | (ElementData::Verdict(_), SetContent::Verdicts)
                | (ElementData::Value(_), SetContent::Values(_))
        );
        if !fits || key.as_slice().len() != width {
            return Err(Refused::Misfit {
                operation: at,
                what: what(),
            });
        }
        match set.elements.get(key) {
            Some(old) if old != data => Err(Refused::Present {
                operation: at,
                what: format!("{name} {{ {} }}", key.typed(&set.set.key)),
            }),
            Some(_) => Ok(()),
            None => {
                set.elements.insert(key.clone(), data.clone());
                Ok(())
            }
        }
    }

    fn has_rule(&self, is_so: impl Fn(&Rule) -> bool) -> bool {
        let mut chains = self.chains.values();
        chains.any(|chain| chain.rules.iter().any(&is_so))
    }

    fn leads_to(&self, chain: &str) -> bool {
        let by_rule = |rule: &Rule| {
            needs(rule).any(|needed| matches!(needed, Needed::Chain(name) if **name == *chain))
        };
        let by_element = |data: &ElementData| match data {
            ElementData::Verdict(Verdict::Goto(name) | Verdict::Jump(name)) => **name == *chain,
            _ => false,
        };
        self.has_rule(by_rule)
            || self
                .sets
                .values()
                .any(|set| set.elements.iter().any(|(_, data)| by_element(data)))
    }
}

/// An object that must exist before a rule that refers to it.
enum Needed<'a> {
    Set(&'a Arc<str>),
    Chain(&'a Arc<str>),
    Flowtable(&'a Arc<str>),
}

impl Needed<'_> {
    fn name(&self) -> &str {
        match self {
            Needed::Set(name) | Needed::Chain(name) | Needed::Flowtable(name) => name,
        }
    }
}

fn needs(rule: &Rule) -> impl Iterator<Item = Needed<'_>> {
    rule.expressions
        .iter()
        .filter_map(|expression| match expression {
            Expression::Lookup { set, .. }
            | Expression::LookupValue { set, .. }
            | Expression::LookupVerdict { set, .. }
            | Expression::Learn { set, .. } => Some(Needed::Set(set)),
            Expression::Immediate(Verdict::Goto(chain) | Verdict::Jump(chain)) => {
                Some(Needed::Chain(chain))
            }
            Expression::Offload { flowtable } => Some(Needed::Flowtable(flowtable)),
            _ => None,
        })
}

fn busy(operation: usize, what: &str) -> Refused {
    Refused::Busy {
        operation,
        what: what.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use dataplane::Family;
    use netlink::nf_tables::Flowtable;

    use super::*;

    fn flowtable(name: &str) -> Flowtable {
        Flowtable {
            name: name.into(),
            priority: 0,
        }
    }

    fn add(to: &str, device: &str) -> Operation {
        let (flowtable, device) = (flowtable(to), device.into());
        Operation::AddDevice { flowtable, device }
    }

    fn delete(from: &str, device: &str) -> Operation {
        let (flowtable, device) = (flowtable(from), device.into());
        Operation::DeleteDevice { flowtable, device }
    }

    fn transaction(operations: &[Operation]) -> Transaction {
        let mut transaction = Transaction::new(Family::Ipv4, "t".into());
        transaction.operations = operations.to_vec();
        transaction
    }

    #[test]
    fn a_device_joins_one_flowtable_of_a_table_once_and_only_if_it_exists() {
        let mut held = Contents::default();
        let tables = ["f", "g"].map(|name| Operation::AddFlowtable(flowtable(name)));
        let created = [&[Operation::AddTable], &tables[..]].concat();
        held.replay(&transaction(&created)).expect("two flowtables");
        held.replay(&transaction(&[add("f", "eth0")]))
            .expect("it joins");
        let before = held.clone();
        let mut ask = |operations: &[Operation]| {
            let has_device = |device: &str| device != "gone";
            let result = held.replay_with_devices(&transaction(operations), has_device);
            assert!(result.is_ok() || held == before, "whole or not at all");
            result
        };
        let missing = |what: &str| {
            let (operation, what) = (0, what.to_owned());
            Err(Refused::Missing { operation, what })
        };
        let present = |operation, what: &str| {
            let what = what.to_owned();
            Err(Refused::Present { operation, what })
        };
        assert_eq!(ask(&[add("f", "gone")]), missing("gone"));
        assert_eq!(ask(&[delete("f", "gone")]), missing("gone"));
        assert_eq!(ask(&[delete("f", "eth1")]), missing("eth1"));
        assert_eq!(ask(&[add("g", "eth0")]), present(0, "eth0"));
        let twice = [add("f", "eth1"), add("f", "eth1")];
        assert_eq!(ask(&twice), present(1, "eth1"));
        assert_eq!(ask(&[add("f", "eth0")]), Ok(()), "it stays there");
        assert_eq!(ask(&[delete("f", "eth0"), add("g", "eth0")]), Ok(()));
    }
}
