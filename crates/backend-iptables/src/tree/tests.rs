use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::{Family, Port, Protocol};
use proptest::prelude::*;

use super::*;

const SHAPE: Shape = Shape {
    address: Some(Family::Ipv4),
};

fn entry(number: u16) -> Entry {
    Entry {
        rule: Rule::always(Target::Jump(format!("SIGNPOST-{number}").into())),
        service: None,
    }
}

/// Keys, some of which are close to one another.
fn keys() -> impl Strategy<Value = Key> {
    let address = prop_oneof![
        4 => (0_u32..400).prop_map(|low| 0x0a60_0000 | low),
        2 => (0_u32..8).prop_map(|part| 0x0a60_0000 | part << 12),
        1 => any::<u32>(),
    ];
    let protocol = prop_oneof![3 => Just(Protocol::Tcp), 1 => Just(Protocol::Udp)];
    let port = prop_oneof![3 => 80_u16..84, 1 => 1_u16..];
    (address, protocol, port).prop_map(|(address, protocol, port)| {
        let address = IpAddr::from(Ipv4Addr::from(address));
        Key::address(address).with_port(protocol, Port::new(port).expect("is not 0"))
    })
}

fn changes() -> impl Strategy<Value = Vec<(Key, Option<u16>)>> {
    let change = (keys(), prop::option::weighted(0.7, any::<u16>()));
    prop::collection::vec(change, 0..300)
}

/// A tree with at most so many nested branches.
fn tree(branches: usize) -> Tree {
    Tree {
        branches,
        ..Tree::new("S-", SHAPE)
    }
}

/// Limits from the smallest up, and the one in production.
fn branches() -> impl Strategy<Value = usize> {
    prop_oneof![1 => 0_usize..4, 1 => Just(BRANCHES)]
}

/// Every chain of a tree, by name.
fn chains(of: &Tree) -> BTreeMap<Arc<str>, Vec<String>> {
    let empty = tree(of.branches);
    let changes = of.changes_since(&empty).into_iter();
    let present = changes.filter_map(|(name, chain)| Some((name, chain?)));
    let texts = |chain: TreeChain| chain.rules.iter().map(ToString::to_string).collect();
    present.map(|(name, chain)| (name, texts(chain))).collect()
}

proptest! {
    #[test]
    fn there_is_one_tree_for_one_set_of_keys(changes in changes(), branches in branches()) {
        let mut anew = tree(branches);
        let mut tree = tree(branches);
        let mut desired: BTreeMap<Key, u16> = BTreeMap::new();
        for (key, number) in changes {
            tree.set(key, number.map(entry));
            match number {
                Some(number) => drop(desired.insert(key, number)),
                None => drop(desired.remove(&key)),
            }
        }
        for (key, number) in desired.iter().rev() {
            anew.set(*key, Some(entry(*number)));
        }
        prop_assert_eq!(chains(&tree), chains(&anew));
        for (key, number) in &desired {
            prop_assert_eq!(tree.get(key), Some(&entry(*number)));
        }
    }

    #[test]
    fn changes_lead_from_the_chains_of_one_tree_to_those_of_another(
        before in changes(), after in changes(), branches in branches(),
    ) {
        let mut tree = tree(branches);
        for (key, number) in before {
            tree.set(key, number.map(entry));
        }
        let old = tree.clone();
        let mut held = chains(&old);
        for (key, number) in after {
            tree.set(key, number.map(entry));
        }
        for (name, chain) in tree.changes_since(&old) {
            match chain {
                Some(chain) => {
                    let rules = chain.rules.iter().map(ToString::to_string).collect();
                    held.insert(name, rules);
                }
                None => drop(held.remove(&name)),
            }
        }
        prop_assert_eq!(held, chains(&tree));
    }

    #[test]
    fn no_chain_has_more_than_sixteen_rules(changes in changes()) {
        let mut tree = Tree::new("S-", SHAPE);
        for (key, number) in changes {
            tree.set(key, number.map(entry));
        }
        for (name, rules) in chains(&tree) {
            prop_assert!(rules.len() <= 16, "{} has {} rules", name, rules.len());
        }
    }
}

/// The deepest possible tree: a new key is placed above all others, and each of these moves one
/// branch down.
#[test]
fn however_keys_lie_the_way_to_them_is_bounded() {
    let first = 0xc000_0201_u32;
    let key = |address: u32, port: u16| {
        let port = Port::new(port).expect("is not 0");
        Key::address(Ipv4Addr::from(address).into()).with_port(Protocol::Tcp, port)
    };
    let mut keys = vec![key(first, 0x1000), key(first, 0x2000)];
    keys.extend((0x1f00..0x1f20).map(|port| key(first, port)));
    keys.extend((0..8).map(|digit| key(first ^ 4 << (4 * digit), 80)));
    let mut tree = Tree::new("S-", SHAPE);
    let mut held = BTreeMap::new();
    for (number, added) in (0..).zip(&keys) {
        let before = tree.clone();
        tree.set(*added, Some(entry(number)));
        for (name, chain) in tree.changes_since(&before) {
            match chain {
                Some(chain) => drop(held.insert(name, chain.rules)),
                None => drop(held.remove(&name)),
            }
        }
        let texts = |rules: &Vec<Rule>| rules.iter().map(ToString::to_string).collect();
        let held: BTreeMap<_, Vec<String>> = held
            .iter()
            .map(|(name, rules)| (Arc::clone(name), texts(rules)))
            .collect();
        assert_eq!(held, chains(&tree), "after {number}");
    }
    let longest = keys.iter().map(|key| tree.path(key).len()).max();
    assert_eq!(longest, Some(BRANCHES + 1), "it can be deeper, and is not");
}

/// When one of ten thousand Services changes, only one chain changes: the leaf.
#[test]
fn a_change_writes_the_chains_on_its_way_and_no_others() {
    let mut tree = Tree::new("S-", SHAPE);
    let key = |number: u32| {
        let address = IpAddr::from(Ipv4Addr::from(0x0a60_0000 | number));
        Key::address(address).with_port(Protocol::Tcp, Port::new(80).expect("is not 0"))
    };
    for number in 1..10_000 {
        tree.set(key(number), Some(entry(1)));
    }
    let before = tree.clone();
    tree.set(key(5_000), Some(entry(2)));
    let changed = tree.changes_since(&before);
    assert_eq!(changed.len(), 1, "{:?}", changed.keys());
    let before = tree.clone();
    tree.set(key(10_000), Some(entry(1)));
    let changed = tree.changes_since(&before);
    assert!(changed.len() <= 3, "{:?}", changed.keys());
    let way = tree.path(&key(5_000));
    assert!(way.len() <= 4, "{way:?}");
}

/// Ten external IPs that leave the range of cluster IPs each at another digit put all IPv6 cluster IPs
/// into one chain, which the first packet of each connection walked.
#[test]
fn t391_addresses_of_one_service_do_not_put_those_of_others_into_one_chain() {
    let range = u128::from("fd00:10:96::".parse::<Ipv6Addr>().expect("is an address"));
    let key = |address: u128, port: u16| {
        let address = IpAddr::from(Ipv6Addr::from(address));
        Key::address(address).with_port(Protocol::Tcp, Port::new(port).expect("is not 0"))
    };
    let shape = Shape {
        address: Some(Family::Ipv6),
    };
    let mut tree = Tree::new("S-", shape);
    for number in 1..=10_000 {
        tree.set(key(range | number, 80), Some(entry(1)));
    }
    // At each digit before the range as many others as there are, and subtrees that are as deep.
    for digit in 0..27 {
        let place = 124 - 4 * digit;
        for other in 1..16_u128 {
            let address = range ^ other << place;
            tree.set(key(address, 80), Some(entry(2)));
        }
        for port in 0..20 {
            let address = range ^ 1 << place;
            tree.set(key(address, 0x1000 + port), Some(entry(2)));
        }
    }
    // Digits of a key, each with fifteen others.
    let most = 16 + 15 * 36;
    let all = chains(&tree);
    for number in 1..=10_000 {
        let way = tree.path(&key(range | number, 80));
        let walked: usize = way.iter().map(|name| all[name].len()).sum();
        assert!(walked <= most, "{walked} rules on the way");
    }
    let before = tree.clone();
    tree.set(key(range | 20_000, 80), Some(entry(3)));
    let written = tree.changes_since(&before).into_values().flatten();
    let rules: usize = written.map(|chain| chain.rules.len()).sum();
    assert!(rules <= 64, "a new Service writes {rules} rules");
}

proptest! {
    /// At the maximum depth all keys are in one chain: those that are on the lighter side each time.
    #[test]
    fn few_keys_are_as_deep_as_they_may(
        keys in prop::collection::btree_set(keys(), 0..1_000), branches in 0_usize..6,
    ) {
        let mut tree = tree(branches);
        for key in &keys {
            tree.set(*key, Some(entry(1)));
        }
        let most = (keys.len() >> branches).max(16 + 15 * 12);
        for (name, rules) in chains(&tree) {
            prop_assert!(rules.len() <= most, "{} has {} rules", name, rules.len());
        }
    }
}
