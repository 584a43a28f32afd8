use super::group::{Group, Owner};
use super::*;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use backend::{Backend, Rendered};
use dataplane::{Dataplane, Port, Precedence, Protocol, compile};
use ipnet::IpNet;
use netlink::nf_tables::ElementData;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use crate::Nftables;
use crate::chains::ChainId;
use crate::table::{Elements, SetWithElements};

/// The table of so many Services with five endpoints each.
fn table(services: u16) -> Table {
    table_with(services, 5)
}

/// The table of so many Services with so many endpoints each.
fn table_with(services: u16, endpoints: u16) -> Table {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(node.clone(), config.clone());
    let slice = (1..=endpoints).fold(mk_endpoints().tcp("http"), |slice, pod| {
        slice.ready(&format!("10.0.2.{pod}:8080"), "node-2")
    });
    let endpoints = slice.build();
    for number in 0..services {
        let [high, low] = number.to_be_bytes();
        let service = mk_service(&format!("shop/cart-{number}"))
            .cluster_ip(&format!("10.100.{high}.{low}"))
            .port("http", 80)
            .build();
        dataplane.set(compile(&service, &endpoints, &node, &config).into());
    }
    Nftables::detached(Family::Ipv4).render(&dataplane, &Rendered::default())
}

/// A packet looks up a number, then the number's chain, and finds nothing if the chain is added
/// later.
#[test]
fn no_transaction_leaves_a_number_without_its_chain() {
    let desired = table(3_000);
    let change = diff(Family::Ipv4, &Table::default(), &desired);
    assert!(change.transactions().len() > 1, "too few Services to tell");
    let mut held = Table::default();
    for transaction in change.transactions() {
        held.replay(transaction).expect("the kernel takes it");
        for (name, set) in &held.sets {
            let set_name = SetName::parse(name).expect("the set is Signpost's");
            let leads = set.elements.iter();
            for chain_id in leads.filter_map(|(_, data)| ChainId::of(set_name, data)) {
                let found = held.element(chain_id.map(), &chain_id.key());
                assert!(found.is_some(), "{chain_id} has no chain yet");
            }
        }
    }
    assert_eq!(held, desired);
}

/// Otherwise a refusal of the second transaction would be taken for a kernel that differs from the
/// observed state.
#[test]
fn a_first_use_of_a_number_is_one_transaction() {
    let (observed, desired) = (table(1), table_with(2, 4));
    assert_ne!(observed.chains, desired.chains);
    let change = diff(Family::Ipv4, &observed, &desired);
    let transactions = change.transactions().iter();
    // Undesired objects are removed after it.
    let written = transactions.filter(|transaction| transaction.elements() > 0);
    assert_eq!(written.count(), 1);
}

/// Failure story T71: other programs wait for the nf_tables lock as long as a transaction takes.
#[test]
fn what_is_no_frontends_is_cut_where_a_transaction_ends() {
    let observed = table(1);
    let mut desired = observed.clone();
    let most = u32::try_from(ELEMENTS_A_TRANSACTION).expect("it is small");
    for number in 0..=most {
        let address = layout::address(Ipv4Addr::from_bits(number).into());
        desired.set_element(SetName::ClusterIps, address, ElementData::None);
    }
    let change = diff(Family::Ipv4, &observed, &desired);
    let elements = change.transactions().iter().map(Transaction::elements);
    assert_eq!(elements.collect::<Vec<_>>(), [ELEMENTS_A_TRANSACTION, 1]);
}

#[test]
fn groups_are_in_the_order_of_their_frontends() {
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let ports = [1, 255, 256, 65_535].map(|port| Port::new(port).expect("not 0"));
    let addresses = ["10.0.0.1", "10.0.1.0", "192.0.2.1"].map(|text| text.parse().expect("IPv4"));
    let mut keys = Vec::new();
    for protocol in protocols {
        for port in ports {
            keys.push(FrontendKey::NodePort {
                family: Family::Ipv4,
                protocol,
                port,
            });
            keys.extend(addresses.map(|address| FrontendKey::Address {
                address,
                protocol,
                port,
            }));
        }
    }
    let group = |key| Group::of_frontend(Precedence::Ordinary, key);
    for a in &keys {
        let key = layout::frontend(a);
        assert!(Group::of_key(Precedence::Ordinary, Owner::Before, key.as_slice()) < group(a));
        for b in &keys {
            assert_eq!(group(a).cmp(&group(b)), a.cmp(b), "{a:?}, {b:?}");
        }
    }
}

/// Packets must not meet some of a table's chains without the others: see
/// [`Operation::DeleteTable`].
#[test]
fn a_table_that_packets_reach_loses_its_rules_before_it_is_deleted() {
    let mut table = table(1);
    let deleted = |observed: &Table| diff(Family::Ipv4, observed, &Table::default()).to_string();
    let [flush, delete] = ["flush table ip signpost\n", "delete table ip signpost\n"];
    assert_eq!(deleted(&table), format!("{flush}{delete}"));

    // An agent that was killed in between.
    let first = Transaction {
        operations: vec![Operation::FlushTable],
        ..Transaction::new(Family::Ipv4, layout::name(TABLE))
    };
    table.replay(&first).expect("the table exists");
    assert_eq!(deleted(&table), delete);
}

proptest! {
    /// Groups without a frontend are in the order of their keys, even if two keys differ only after
    /// the bytes that a group holds.
    #[test]
    fn groups_of_no_frontend_contradict_no_key(
        a in vec(any::<u8>(), 0..=40),
        other in vec(any::<u8>(), 0..=40),
        shared in any::<Index>(),
    ) {
        let mut b = other;
        let shared = shared.index(1 + a.len().min(b.len()));
        b[..shared].copy_from_slice(&a[..shared]);
        let [a, b] = [a, b].map(|key| Bytes::from_slice(&key).expect("at most 40 bytes"));
        let group = |key: &Bytes| Group::of_key(Precedence::Ordinary, Owner::Before, key.as_slice());
        let (order, keys) = (group(&a).cmp(&group(&b)), a.cmp(&b));
        prop_assert!(order.is_eq() || order == keys, "{:?}, {:?}", order, keys);
    }

    /// Otherwise the order of messages in a change would depend on the representation of a step.
    #[test]
    fn steps_of_a_frontend_are_in_the_order_of_sets_and_keys(
        v6 in any::<bool>(), slots in vec(any::<u32>(), 0..20), ranges in vec(any::<u128>(), 0..20),
    ) {
        let family = if v6 { Family::Ipv6 } else { Family::Ipv4 };
        let address: IpAddr = if v6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
        let frontend = FrontendKey::Address {
            address,
            protocol: Protocol::Tcp,
            port: Port::new(80).expect("not 0"),
        };
        let frontend = layout::frontend(&frontend);
        // Includes IPv6 ranges that share their first four bytes.
        let range = |bits: u128| match v6 {
            true => IpAddr::from(Ipv6Addr::from_bits(bits >> (bits % 90))),
            false => IpAddr::from(Ipv4Addr::from_bits((bits >> 96) as u32)),
        };
        let bits = if v6 { 128 } else { 32 };
        let mut desired = Table { exists: true, ..Table::default() };
        for name in [SetName::Endpoints, SetName::Sources(bits)] {
            let set = SetWithElements { set: Arc::new(name.set(family)), elements: Elements::new() };
            desired.sets.insert(Arc::clone(&set.set.name), set);
        }
        for slot in slots {
            let key = layout::slot(frontend.clone(), slot);
            desired.set_element(SetName::Endpoints, key, ElementData::None);
        }
        for bits_of_range in ranges {
            let key = layout::source(frontend.clone(), &IpNet::from(range(bits_of_range)));
            desired.set_element(SetName::Sources(bits), key, ElementData::None);
        }
        let nothing = Table::default();
        let found = steps(family, &nothing, &desired);
        prop_assert_eq!(found.len(), desired.elements());
        prop_assert!(found.is_sorted_by_key(|step| (step.set, step.key.clone())));
    }

    #[test]
    fn what_is_behind_a_frontend_is_what_was_put_there(slot in any::<u32>(), v6 in any::<bool>()) {
        let address = |v6| match v6 {
            true => "fd00::10".parse().expect("IPv6"),
            false => "10.96.0.10".parse().expect("IPv4"),
        };
        let (protocol, port) = (Protocol::Tcp, Port::new(80).expect("not 0"));
        let family = Family::of(address(v6));
        for key in [
            FrontendKey::Address { address: address(v6), protocol, port },
            FrontendKey::NodePort { family, protocol, port },
        ] {
            let bytes = layout::slot(layout::frontend(&key), slot);
            let behind = layout::behind_frontend(&key, bytes.as_slice());
            prop_assert_eq!(behind, slot.to_ne_bytes());
        }
    }
}
