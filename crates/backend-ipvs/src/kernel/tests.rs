mod returning;
mod tenants;

use dataplane::compile;
use testkit::{mk_config, mk_endpoints, mk_node, mk_service};

use super::*;
use crate::scheduler_tables::Pages;

/// Connections of the virtual servers that end would otherwise reach another Service.
#[test]
fn a_mode_that_returns_numbers_its_virtual_servers_after_those_that_end() {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let service = mk_service("shop/web").cluster_ip("10.96.0.10").port("", 80);
    let endpoints = mk_endpoints().tcp("").ready("10.0.1.5:80", "node-1");
    let mut desired = Dataplane::new(Arc::clone(&node), Arc::clone(&config));
    let rules = compile(&service.build(), &endpoints.build(), &node, &config);
    desired.set(rules.into());
    let numbers = |backend: &Ipvs, from: &Rendered<Rules>| -> Vec<u32> {
        let rules = backend.render(&desired, from);
        rules.servers.iter().map(|(number, _)| *number).collect()
    };
    let mut backend = Ipvs::detached(Family::Ipv4);
    let nothing = Rendered::default();
    assert_eq!(numbers(&backend, &nothing), [1]);
    backend.last_observed = 7;
    assert_eq!(numbers(&backend, &nothing), [8]);
    // Failure story T369, where the numbers have come round.
    backend.ending = LeavingServers::of([8, 9].map(|number| (number, Pages(8))));
    assert_eq!(numbers(&backend, &nothing), [10]);
    backend.ending = LeavingServers::default();
    let before = Rendered {
        rules: backend.render(&desired, &nothing),
        dataplane: desired.clone(),
    };
    backend.last_observed = 20;
    assert_eq!(
        numbers(&backend, &before),
        [8],
        "it serves: nothing changes"
    );
    let remembered = before.rules.owners();
    let rules = Rules {
        remembered,
        ..Rules::default()
    };
    let ended = Rendered {
        rules,
        ..Rendered::default()
    };
    assert_eq!(
        numbers(&backend, &ended),
        [21],
        "others may have had its number"
    );
}
