use std::collections::BTreeSet;
use std::sync::Arc;

use backend::{Backend, Rendered};
use dataplane::{Dataplane, compile};
use netlink::nf_tables::{Expression, Operation};
use nftables_model::RuleEnd;
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use super::*;
use crate::{Nftables, Table};

/// The table for a Service with source ranges.
fn table(family: Family) -> Table {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let service = mk_service("shop/web")
        .load_balancer_ip("192.0.2.1")
        .port("http", 80)
        .source_range("203.0.113.0/24");
    let endpoints = mk_endpoints().tcp("http").ready("10.0.1.5:8080", "node-1");
    let rules = compile(&service.build(), &endpoints.build(), &node, &config);
    let mut dataplane = Dataplane::new(node, config);
    dataplane.set(rules.into());
    Nftables::detached(family).render(&dataplane, &Rendered::default())
}

#[test]
fn every_rule_that_refuses_packets_or_finds_their_frontend_counts_them() {
    for family in Family::ALL {
        let table = table(family);
        let mut found = BTreeSet::new();
        let chains = table.chains.values();
        let rules = chains.flat_map(|chain| chain.rules.iter().map(move |rule| (chain, rule)));
        for (chain, rule) in rules {
            let name = &*chain.chain.name;
            let end = rule.expressions.last().and_then(RuleEnd::of);
            let counted = COUNTED
                .iter()
                .find(|counted| counted.chain == name && Some(counted.packets.end()) == end);
            let counters: Vec<usize> = (0..rule.expressions.len())
                .filter(|at| rule.expressions[*at] == Expression::Counter)
                .collect();
            match counted {
                Some(counted) => {
                    found.insert((counted.chain, counted.packets));
                    let before_the_end = rule.expressions.len() - 2;
                    assert_eq!(counters, [before_the_end], "{name}: {rule}");
                }
                None => {
                    let is_refusal = matches!(end, Some(RuleEnd::Reject | RuleEnd::Drop));
                    assert!(!is_refusal, "not counted: {name}: {rule}");
                    assert!(counters.is_empty(), "not read: {name}: {rule}");
                }
            }
        }
        let read = COUNTED.iter().map(|rule| (rule.chain, rule.packets));
        assert_eq!(found, read.collect(), "{family}");
    }
}

/// An upgrade: packets meet either the old rules or the new ones.
#[test]
fn a_table_whose_rules_do_not_count_is_changed_in_place_by_one_transaction() {
    for family in Family::ALL {
        let counting = table(family);
        let mut earlier = counting.clone();
        for chain in Arc::make_mut(&mut earlier.chains).values_mut() {
            for rule in &mut Arc::make_mut(chain).rules {
                rule.expressions.retain(|e| *e != Expression::Counter);
            }
        }
        let backend = Nftables::detached(family);
        let change = backend.diff(&earlier, &counting);
        let [transaction] = change.transactions() else {
            panic!("{change}");
        };
        let mut flushed = BTreeSet::new();
        for operation in &transaction.operations {
            match operation {
                Operation::FlushChain(chain) => drop(flushed.insert(&**chain)),
                Operation::AddRule { .. } => {}
                _ => panic!("{change}"),
            }
        }
        let chains: BTreeSet<&str> = COUNTED.iter().map(|rule| rule.chain).collect();
        assert_eq!(flushed, chains, "{family}");
    }
}
