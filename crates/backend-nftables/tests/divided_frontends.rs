//! A frontend with more endpoints than one part has. Failure story T97: all other changes wait
//! until a Service of a quarter of a million endpoints is written.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use backend::{Backend, Change as _, Rendered};
use backend_nftables::{Nftables, Table};
use dataplane::{Dataplane, Family, FrontendKey, NextPart, PartContents, Protocol};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

/// The most elements in one part: 2,500 frontends, endpoints and source ranges, and the elements
/// that lead to them.
const MOST: usize = 2_600;

/// A dataplane with one Service that has these endpoints.
fn deep(endpoints: Range<u16>) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let service = mk_service("shop/deep")
        .cluster_ip("10.96.0.10")
        .port("", 80);
    let mut all = mk_endpoints().tcp("");
    for number in endpoints {
        let [high, low] = number.to_be_bytes();
        all = all.ready(&format!("10.1.{high}.{low}:8080"), "node-2");
    }
    let rules = dataplane::compile(&service.build(), &all.build(), &node, &config);
    let mut dataplane = Dataplane::new(node, config);
    dataplane.set(Arc::new(rules));
    dataplane
}

/// For each part, the number of endpoints in the rules and the elements that it writes and removes.
fn parts(from: &mut Rendered<Table>, to: &Dataplane) -> Vec<(usize, usize)> {
    let backend = Nftables::detached(Family::Ipv4);
    let key = FrontendKey::Address {
        address: [10, 96, 0, 10].into(),
        protocol: Protocol::Tcp,
        port: testkit::port(80),
    };
    let size = backend.part_size(to.config());
    let mut parts = Vec::new();
    loop {
        let next = NextPart::next(Family::Ipv4, &from.dataplane, to, size, PartContents::Large);
        let (dataplane, is_last) = match next {
            NextPart::Part(next) | NextPart::Small(next) => (next, false),
            NextPart::Last => (to.clone(), true),
        };
        let rules = backend.render(&dataplane, from);
        let anew = backend.render(&dataplane, &Rendered::default());
        let targets: BTreeSet<_> = rules.targets(&key);
        assert_eq!(targets, anew.targets(&key));
        let change = backend.diff(&from.rules, &rules);
        parts.push((targets.len(), change.size().elements));
        *from = Rendered { dataplane, rules };
        if is_last {
            return parts;
        }
    }
}

#[test]
fn t97_a_frontend_with_many_endpoints_comes_and_goes_in_parts() {
    let mut held = Rendered::default();
    let coming = parts(&mut held, &deep(0..10_000));
    let counts: Vec<usize> = coming.iter().map(|(count, _)| *count).collect();
    assert_eq!(counts, [2_500, 5_000, 7_500, 10_000]);
    for (count, elements) in coming {
        assert!(elements < MOST, "{elements} elements for {count} endpoints");
    }
    let [(count, elements)] = parts(&mut held, &deep(1..10_000))[..] else {
        panic!("one endpoint less is one part");
    };
    assert!(count == 9_999 && elements < 10, "{elements} elements");

    let going = parts(&mut held, &deep(0..0));
    // Removing two takes as long as writing one.
    let counts: Vec<usize> = going.iter().map(|(count, _)| *count).collect();
    assert_eq!(counts, [4_999, 0]);
    parts(&mut held, &deep(0..25_000));
    let counts: Vec<usize> = parts(&mut held, &deep(0..0))
        .iter()
        .map(|(count, _)| *count)
        .collect();
    assert_eq!(counts, [20_000, 15_000, 10_000, 5_000, 0]);
}
