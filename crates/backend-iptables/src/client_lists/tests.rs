use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use backend::{Backend, Rendered};
use dataplane::{Dataplane, Family, ServiceKey, compile};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};
use xtables::{Match, Variant};

use crate::kernel::Iptables;
use crate::rules::Rules;

const BACKEND: fn() -> Iptables = || Iptables::detached(Family::Ipv4, Variant::NfTables);

/// Services with session affinity and so many endpoints each. Their cluster IPs and endpoints differ.
fn sticky(services: &[(&str, usize)]) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    for (number, (name, endpoints)) in services.iter().enumerate() {
        let service = mk_service(name).cluster_ip(&format!("10.96.0.{}", number + 1));
        let service = service.port("http", 80);
        let service = service.client_ip_affinity(Duration::from_secs(60)).build();
        let mut held = mk_endpoints().tcp("http");
        for endpoint in 0..*endpoints {
            let (high, low) = (endpoint / 250, endpoint % 250 + 1);
            held = held.ready(&format!("10.{}.{high}.{low}:8080", number + 1), "node-2");
        }
        dataplane.set(compile(&service, &held.build(), &node, &config).into());
    }
    dataplane
}

fn next(desired: Dataplane, from: &Rendered<Rules>) -> Rendered<Rules> {
    Rendered {
        rules: BACKEND().render(&desired, from),
        dataplane: desired,
    }
}

/// How many lists of clients each Service has in the rules, if it has any.
fn lists(held: &Rendered<Rules>) -> BTreeMap<String, usize> {
    let mut lists: BTreeMap<String, BTreeMap<Arc<str>, ()>> = BTreeMap::new();
    for (_, chain) in held.rules.nat.chains().iter() {
        for one in chain.rules.iter().flat_map(|rule| &rule.matches) {
            if let Match::Recent { list, .. } = one {
                let of_service = lists.entry(chain.services[0].to_string()).or_default();
                of_service.insert(Arc::clone(list), ());
            }
        }
    }
    lists
        .into_iter()
        .map(|(service, lists)| (service, lists.len()))
        .collect()
}

fn named(held: &Rendered<Rules>) -> Vec<String> {
    let named = BACKEND().without_room(&held.rules).into_iter();
    let named = named.inspect(|field| assert_eq!(field.field, "spec.sessionAffinity"));
    named.map(|field| field.service.to_string()).collect()
}

/// What an agent reads that starts: chains alone.
fn read(held: &Rendered<Rules>) -> Rendered<Rules> {
    let mut rules = Rules::default();
    for (name, chain) in held.rules.nat.chains().iter() {
        rules.nat.put(Arc::clone(name), Some((**chain).clone()));
    }
    Rendered {
        dataplane: Dataplane::default(),
        rules,
    }
}

/// Failure story T368.
#[test]
fn t368_a_port_of_too_many_endpoints_has_no_affinity_and_is_named() {
    let largest = next(sticky(&[("shop/web", 100)]), &Rendered::default());
    assert_eq!(lists(&largest), [("shop/web".into(), 100)].into());
    assert!(named(&largest).is_empty());

    let larger = next(sticky(&[("shop/web", 101)]), &largest);
    assert_eq!(lists(&larger), BTreeMap::new());
    assert_eq!(named(&larger), ["shop/web"]);
    let key = *larger
        .dataplane
        .frontends()
        .iter()
        .next()
        .expect("it has one")
        .0;
    assert_eq!(
        larger.rules.targets(&key).len(),
        101,
        "it is served all the same"
    );

    let smaller = next(sticky(&[("shop/web", 3)]), &larger);
    assert_eq!(lists(&smaller), [("shop/web".into(), 3)].into());
    assert!(named(&smaller).is_empty());
    let mut gone = larger.dataplane.clone();
    gone.remove(&ServiceKey::new("shop", "web"));
    assert!(named(&next(gone, &larger)).is_empty());
}

/// Failure story T368: a tenant's Services with affinity made the packets of all others search their lists.
#[test]
fn t368_no_namespace_takes_more_lists_of_clients_than_it_leaves() {
    let tenant: Vec<String> = (0..9).map(|number| format!("tenant/{number}")).collect();
    let tenant: Vec<(&str, usize)> = tenant.iter().map(|name| (name.as_str(), 100)).collect();
    let before = next(sticky(&tenant), &Rendered::default());
    assert_eq!(lists(&before).values().sum::<usize>(), 500, "half of them");
    assert_eq!(
        named(&before),
        ["tenant/5", "tenant/6", "tenant/7", "tenant/8"]
    );

    let with_shop = [&tenant[..], &[("shop/web", 5)]].concat();
    let after = next(sticky(&with_shop), &before);
    assert_eq!(lists(&after).get("shop/web"), Some(&5));
    assert_eq!(named(&after), named(&before));

    // A start moves no client, whatever the names of the others are.
    let first = [
        &with_shop[..],
        &[("aaa/a", 100), ("aaa/b", 100), ("aaa/c", 100)],
    ]
    .concat();
    let restarted = next(sticky(&first), &read(&after));
    for (service, held) in lists(&after) {
        assert_eq!(lists(&restarted).get(&service), Some(&held), "{service}");
    }
    assert_eq!(lists(&restarted).values().sum::<usize>(), 705);

    // Others leave some: what waits gets them, in the same change.
    let mut fewer = after.dataplane.clone();
    for number in 0..3 {
        fewer.remove(&ServiceKey::new("tenant", number.to_string()));
    }
    let filled = next(fewer.clone(), &after);
    assert_eq!(named(&filled), ["tenant/8"], "of four that waited");
    assert_eq!(lists(&filled).values().sum::<usize>(), 505);
}

/// Failure story T368: an older version wrote more lists than there may be.
#[test]
fn t368_where_there_are_too_many_lists_every_namespace_keeps_some() {
    let names: Vec<String> = ["a", "b", "c"]
        .into_iter()
        .flat_map(|namespace| (0..5).map(move |number| format!("{namespace}/{number}")))
        .collect();
    let all: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), 100)).collect();
    let mut held = Rules::default();
    for five in all.chunks(5) {
        let rules = next(sticky(five), &Rendered::default()).rules;
        for (name, chain) in rules.nat.chains().iter() {
            held.nat.put(Arc::clone(name), Some((**chain).clone()));
        }
    }
    let read = Rendered {
        dataplane: Dataplane::default(),
        rules: held,
    };
    let upgraded = lists(&next(sticky(&all), &read));
    assert_eq!(upgraded.values().sum::<usize>(), 900);
    assert!(upgraded.contains_key("c/0"), "{upgraded:?}");
}

/// A rolling update adds an endpoint before it removes one.
#[test]
fn t368_a_port_that_grows_for_a_moment_keeps_its_lists_where_others_have_many() {
    let names: Vec<String> = ["a", "b"]
        .iter()
        .flat_map(|namespace| (0..8).map(move |number| format!("{namespace}/{number}")))
        .collect();
    let with = |first: usize| {
        let services = names.iter().enumerate().map(|(number, name)| match number {
            0 => (name.as_str(), first),
            _ => (name.as_str(), 50),
        });
        sticky(&services.collect::<Vec<_>>())
    };
    // One namespace after the other leaves as much as it has.
    let mut held = Rendered::default();
    for _ in 0..2 {
        held = next(with(50), &held);
    }
    let full = lists(&held).values().sum::<usize>();
    assert!(full > 600, "{full} lists");
    for endpoints in [51, 50, 60, 50] {
        held = next(with(endpoints), &held);
        assert_eq!(lists(&held).get("a/0"), Some(&endpoints));
    }
}
