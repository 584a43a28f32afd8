use std::sync::Arc;

use backend::{Backend, Change as _, PieceState, Rendered};
use dataplane::{Dataplane, Family, Node, compile};
use netlink::nf_tables::{Expression, Operation};
use nftables_model::Refused;
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use crate::Nftables;
use crate::diff::diff;
use crate::table::Table;

/// A Service with two endpoints, on a node with these interfaces for the flowtable.
fn dataplane(interfaces: Option<&[&str]>) -> Dataplane {
    let names = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect();
    let node = Node {
        flowtable_interfaces: interfaces.map(names),
        ..Node::clone(&mk_node(1).build())
    };
    let (node, config) = (Arc::new(node), mk_config().build());
    let service = mk_service("shop/cart").cluster_ip("10.96.0.10");
    let endpoints = mk_endpoints()
        .tcp("http")
        .ready("10.0.1.1:8080", "node-1")
        .ready("10.0.2.1:8080", "node-2");
    let service = service.port("http", 80).build();
    let mut dataplane = Dataplane::new(node.clone(), config.clone());
    dataplane.set(compile(&service, &endpoints.build(), &node, &config).into());
    dataplane
}

pub(crate) fn table(interfaces: Option<&[&str]>) -> Table {
    let from = Rendered::default();
    Nftables::detached(Family::Ipv4).render(&dataplane(interfaces), &from)
}

/// Replays what leads from one table to the other, and returns what was written.
fn change(observed: &Table, desired: &Table) -> Vec<Operation> {
    let change = diff(Family::Ipv4, observed, desired);
    let mut held = observed.clone();
    for transaction in change.transactions() {
        held.replay(transaction).expect("the kernel takes it");
    }
    assert_eq!(held, *desired);
    assert!(diff(Family::Ipv4, desired, desired).size().is_empty());
    let transactions = change.transactions().iter();
    transactions.flat_map(|t| t.operations.clone()).collect()
}

fn has_offload(table: &Table) -> bool {
    let mut rules = table.chains.values().flat_map(|chain| &chain.rules);
    rules.any(|rule| {
        let mut expressions = rule.expressions.iter();
        expressions.any(|expression| matches!(expression, Expression::Offload { .. }))
    })
}

#[test]
fn without_the_field_nothing_of_it_is_in_the_kernel() {
    let table = table(None);
    assert!(table.flowtables.is_empty());
    assert!(!has_offload(&table));
    assert!(!table.to_string().contains("established"));
}

#[test]
fn it_comes_and_goes_and_no_element_is_written_again() {
    let (without, with) = (table(None), table(Some(&["eth0", "veth1"])));
    let mut from = Rendered {
        dataplane: dataplane(None),
        rules: without.clone(),
    };
    let backend = Nftables::detached(Family::Ipv4);
    let rendered = backend.render(&dataplane(Some(&["eth0", "veth1"])), &from);
    assert_eq!(rendered, with, "after a change as after a start");
    let printed = with.to_string();
    let expected = "flowtable established { hook ingress priority 0; }\n    eth0\n    veth1\n";
    assert!(printed.contains(expected), "{printed}");
    let rule = "chain filter-forward-established { type filter hook forward priority 1000; }\n    \
                meta l4proto == 0x06 ct state & 0x00000002 != 0x00000000 ct status & 0x00000020 \
                != 0x00000000 flow add @established\n";
    assert!(printed.contains(rule), "{printed}");
    let is_element = |operation: &Operation| {
        matches!(
            operation,
            Operation::AddElements { .. } | Operation::DeleteElements { .. }
        )
    };
    assert!(!change(&without, &with).iter().any(is_element));
    from = Rendered {
        dataplane: dataplane(Some(&["eth0", "veth1"])),
        rules: with.clone(),
    };
    assert_eq!(backend.render(&dataplane(None), &from), without);
    assert!(!change(&with, &without).iter().any(is_element));
}

/// Failure story T448. Of a connection that is added before its devices have joined, one direction may
/// traverse the rules and the other not.
#[test]
fn t448_a_chain_adds_connections_only_while_all_devices_are_in_the_flowtable() {
    let (nothing, without) = (Table::default(), table(None));
    let with = table(Some(&["eth0", "veth1"]));
    let mut deleted = with.clone();
    deleted.flowtables.clear();
    Arc::make_mut(&mut deleted.chains).remove(super::CHAIN);
    let mut replaced = with.clone();
    let flowtable = replaced.flowtables.get_mut(super::NAME);
    flowtable.expect("it has one").flowtable = None;
    for (observed, desired) in [
        (&nothing, &with),
        (&without, &with),
        (&deleted, &with),
        (&replaced, &with),
        (&with, &without),
        (&with, &nothing),
    ] {
        let change = diff(Family::Ipv4, observed, desired);
        let mut held = observed.clone();
        for transaction in change.transactions() {
            held.replay(transaction).expect("the kernel takes it");
            let tables = [Some(&held), held.next.as_deref()].into_iter().flatten();
            for table in tables.filter(|table| has_offload(table)) {
                let devices = &table.flowtables[super::NAME].devices;
                assert_eq!(*devices, with.flowtables[super::NAME].devices, "{change}");
            }
        }
        assert_eq!(held, *desired);
    }
    let removal = change(&with, &without);
    let place = |is_so: fn(&Operation) -> bool| removal.iter().position(is_so);
    let chain = place(|operation| matches!(operation, Operation::DeleteChain(_)));
    let flowtable = place(|operation| matches!(operation, Operation::DeleteFlowtable(_)));
    assert!(chain.is_some() && chain < flowtable, "{removal:?}");
}

#[test]
fn an_interface_that_comes_or_goes_is_one_operation() {
    let with = |interfaces: &[&str]| table(Some(interfaces));
    let of_devices = |operations: Vec<Operation>| -> Vec<String> {
        let print = |operation: Operation| match operation {
            Operation::AddDevice { device, .. } => format!("add {device}"),
            Operation::DeleteDevice { device, .. } => format!("delete {device}"),
            other => format!("{other:?}"),
        };
        operations.into_iter().map(print).collect()
    };
    let come = change(&with(&["eth0"]), &with(&["eth0", "veth1"]));
    assert_eq!(of_devices(come), ["add veth1"]);
    let gone = change(&with(&["eth0", "veth1"]), &with(&["eth0"]));
    assert_eq!(of_devices(gone), ["delete veth1"]);
    let another = change(&with(&["veth1"]), &with(&["veth2"]));
    assert_eq!(of_devices(another), ["delete veth1", "add veth2"]);
    // Each by itself: one that does not exist any more keeps no other out.
    let all = diff(Family::Ipv4, &with(&[]), &with(&["eth0", "veth1", "veth2"]));
    assert_eq!(all.transactions().len(), 3);
    assert!(all.transactions().iter().all(super::is_of_device));
}

#[test]
fn an_interface_that_is_gone_before_it_joins_keeps_out_neither_others_nor_the_chain() {
    let desired = table(Some(&["eth0", "veth1", "veth2"]));
    let mut held = Table::default();
    let mut refused = Vec::new();
    let change = diff(Family::Ipv4, &held, &desired);
    for transaction in change.transactions() {
        let taken = held.replay_with_devices(transaction, |device| device != "veth1");
        if let Err(error) = taken {
            assert!(super::is_of_device(transaction), "{transaction}: {error}");
            refused.push(error);
        }
    }
    let (operation, what) = (0, "veth1".to_owned());
    assert_eq!(refused, [Refused::Missing { operation, what }]);
    assert_eq!(held, table(Some(&["eth0", "veth2"])));
}

/// As another program may leave it.
#[test]
fn what_another_program_did_to_it_is_undone() {
    let desired = table(Some(&["eth0"]));
    // It was deleted, with the rule that refers to it.
    let mut deleted = desired.clone();
    deleted.flowtables.clear();
    Arc::make_mut(&mut deleted.chains).remove(super::CHAIN);
    change(&deleted, &desired);
    // Its device was removed.
    change(&table(Some(&[])), &desired);
    // Another one was added.
    let mut added = desired.clone();
    let own = added.flowtables.get_mut(super::NAME).expect("it has one");
    let foreign = std::mem::replace(own, table(Some(&[])).flowtables[super::NAME].clone());
    added.flowtables.insert("theirs".into(), foreign);
    let written = change(&added, &desired);
    assert_eq!(written[0], Operation::DeleteFlowtable("theirs".into()));
    assert_eq!(written.len(), 2, "and eth0 joins: {written:?}");
    let pieces = desired.compare_sets(&added);
    let theirs = pieces.iter().find(|p| p.text == "flowtable theirs");
    assert_eq!(theirs.map(|p| &p.state), Some(&PieceState::Leftover));
    // It was replaced by one that Signpost did not write: the table is rebuilt beside that one.
    let mut replaced = desired.clone();
    if let Some(flowtable) = replaced.flowtables.get_mut(super::NAME) {
        flowtable.flowtable = None;
    }
    change(&replaced, &desired);
    let pieces = desired.compare_sets(&replaced);
    let own = pieces.iter().find(|p| p.text == "flowtable established");
    let found = vec!["eth0".to_owned()];
    assert_eq!(
        own.map(|p| &p.state),
        Some(&PieceState::Different { found })
    );
}

#[test]
fn a_table_that_is_removed_or_replaced_takes_it_along() {
    let desired = table(Some(&["eth0"]));
    change(&desired, &Table::default());
    change(&Table::default(), &desired);
}
