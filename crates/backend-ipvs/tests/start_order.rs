//! Which Services a start serves first. Failure story T55, kubernetes#133773: on a new node of a
//! large cluster, no pod can reach the API server or resolve a name until all of its thousands of
//! Services are programmed.

use std::sync::Arc;

use backend::{Backend, Rendered};
use backend_ipvs::Ipvs;
use dataplane::{Dataplane, Family, FrontendKey, NextPart, PartContents, Protocol, ServiceRules};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service, port};

/// Enough for several parts of a start.
const OTHERS: u16 = 4_000;
const FIRST: [&str; 2] = ["10.96.200.1", "10.96.200.10"];

/// Whether a Service comes before others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Precedes {
    Others,
    Nothing,
}

fn compile(name: &str, address: &str, precedes: Precedes) -> Arc<ServiceRules> {
    let service = mk_service(name).cluster_ip(address).port("", 443);
    let service = match precedes {
        Precedes::Others => service.first(),
        Precedes::Nothing => service,
    };
    let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:6443", "node-1");
    let (node, config) = (mk_node(1).build(), mk_config().build());
    dataplane::compile(&service.build(), &endpoints.build(), &node, &config).into()
}

fn cluster() -> Dataplane {
    let mut dataplane = Dataplane::new(mk_node(1).build(), mk_config().build());
    // Neither the lowest addresses nor the first names.
    for (name, address) in ["default/kubernetes", "kube-system/kube-dns"]
        .into_iter()
        .zip(FIRST)
    {
        dataplane.set(compile(name, address, Precedes::Others));
    }
    for number in 0..OTHERS {
        let [high, low] = number.to_be_bytes();
        let (name, address) = (
            format!("another/service-{number}"),
            format!("10.96.{high}.{low}"),
        );
        dataplane.set(compile(&name, &address, Precedes::Nothing));
    }
    dataplane
}

#[test]
fn t55_the_first_part_of_a_start_has_the_api_server_and_dns() {
    let (backend, desired) = (Ipvs::detached(Family::Ipv4), cluster());
    let size = backend.part_size(desired.config());
    let nothing = Dataplane::default();
    let first = NextPart::next(Family::Ipv4, &nothing, &desired, size, PartContents::Small);
    let (NextPart::Part(part) | NextPart::Small(part)) = first else {
        panic!("it all fits into one part");
    };
    let rules = backend.render(&part, &Rendered::default());
    for address in FIRST {
        let key = FrontendKey::Address {
            address: address.parse().expect("an address"),
            protocol: Protocol::Tcp,
            port: port(443),
        };
        assert_eq!(rules.targets(&key).len(), 1, "{address} is not served");
    }
}
