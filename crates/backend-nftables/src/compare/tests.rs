use super::*;

use backend::{Backend, Rendered};
use dataplane::{Dataplane, Family, Protocol, compile};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service, port};

use crate::Nftables;

fn key() -> FrontendKey {
    FrontendKey::Address {
        address: [10, 96, 0, 10].into(),
        protocol: Protocol::Tcp,
        port: port(80),
    }
}

/// A table with a Service that has these endpoints, and a second Service.
fn table(endpoints: &[&str]) -> Table {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(node.clone(), config.clone());
    for (name, address, endpoints) in [
        ("shop/cart", "10.96.0.10", endpoints),
        ("shop/till", "10.96.0.11", &["10.0.1.6:8080"]),
    ] {
        let service = mk_service(name)
            .cluster_ip(address)
            .port("http", 80)
            .build();
        let mut list = mk_endpoints().tcp("http");
        for endpoint in endpoints {
            list = list.ready(endpoint, "node-1");
        }
        dataplane.set(compile(&service, &list.build(), &node, &config).into());
    }
    Nftables::detached(Family::Ipv4).render(&dataplane, &Rendered::default())
}

fn lines(pieces: Vec<Piece>) -> Vec<String> {
    let line = |piece: Piece| format!("{}: {:?}", piece.text, piece.state);
    pieces.into_iter().map(line).collect()
}

#[test]
fn an_element_that_is_gone_is_missing() {
    let desired = table(&["10.0.1.5:8080", "10.0.1.7:8080"]);
    let mut found = desired.clone();
    let slot = layout::slot(layout::frontend(&key()), 1);
    assert!(found.remove_element(SetName::Endpoints, &slot));
    assert_eq!(
        lines(desired.compare_elements(&found, &key())),
        [
            "services { 10.96.0.10 . tcp . 80 : 2 . 0x03000002 } # cluster-2: Present",
            "endpoints { 10.96.0.10 . tcp . 80 . 0x00000000 : 10.0.1.5 . 8080 }: Present",
            "endpoints { 10.96.0.10 . tcp . 80 . 0x00000001 : 10.0.1.7 . 8080 }: Missing",
        ]
    );
}

#[test]
fn an_element_that_leads_elsewhere_and_one_too_many_are_named() {
    let (desired, found) = (
        table(&["10.0.1.5:8080"]),
        table(&["10.0.1.5:8080", "10.0.1.7:8080"]),
    );
    assert_eq!(
        lines(desired.compare_elements(&found, &key())),
        [
            "services { 10.96.0.10 . tcp . 80 : 1 . 0x03000001 } # cluster-1: Different \
             { found: [\"services { 10.96.0.10 . tcp . 80 : 2 . 0x03000002 } # cluster-2\"] }",
            "endpoints { 10.96.0.10 . tcp . 80 . 0x00000000 : 10.0.1.5 . 8080 }: Present",
            "endpoints { 10.96.0.10 . tcp . 80 . 0x00000001 : 10.0.1.7 . 8080 }: Leftover",
        ]
    );
}

#[test]
fn a_shared_element_is_missing_or_one_too_many_like_any_other() {
    let desired = table(&["10.0.1.5:8080"]);
    let mut found = desired.clone();
    let address = |last| Bytes::new().with(&[10, 96, 0, last]);
    found.set_element(SetName::ClusterIps, address(99), ElementData::None);
    assert!(found.remove_element(SetName::ClusterIps, &address(11)));
    let mut lines = lines(desired.compare_memberships(&found));
    lines.retain(|line| line.starts_with("cluster-ips"));
    assert_eq!(
        lines,
        [
            "cluster-ips { 10.96.0.10 }: Present",
            "cluster-ips { 10.96.0.11 }: Missing",
            "cluster-ips { 10.96.0.99 }: Leftover",
        ]
    );
}

#[test]
fn a_flushed_chain_is_different_and_a_table_that_is_gone_lacks_everything() {
    let desired = table(&["10.0.1.5:8080"]);
    let chains = desired.chains_of(&key());
    let chains: Vec<&str> = chains.iter().map(|name| &**name).collect();
    assert_eq!(chains, ["cluster-1", "lb-1"]);

    let mut found = desired.clone();
    let chains = Arc::make_mut(&mut found.chains);
    let lb = chains.get_mut("lb-1").expect("it is there");
    Arc::make_mut(lb).rules.clear();
    let compared = desired.compare_chains(&found);
    assert_eq!(
        compared["lb-1"].state,
        PieceState::Different { found: vec![] }
    );
    assert_eq!(compared["cluster-1"].state, PieceState::Present);

    let nothing = Table::default();
    let missing = |pieces: Vec<Piece>| pieces.iter().all(|p| p.state == PieceState::Missing);
    assert!(missing(desired.compare_elements(&nothing, &key())));
    assert!(missing(desired.compare_memberships(&nothing)));
    assert!(missing(desired.compare_sets(&nothing)));
}

/// The state after an agent was killed while it replaced a table of another form.
#[test]
fn a_table_beside_is_shown_and_unwanted() {
    let desired = table(&["10.0.1.5:8080"]);
    let mut found = desired.clone();
    found.next = Some(Arc::new(desired.clone()));
    let undesired = |piece: &Piece| piece.state == PieceState::Leftover;
    let pieces = desired.compare_sets(&found).into_iter().filter(undesired);
    let texts: Vec<String> = pieces.map(|piece| piece.text).collect();
    assert_eq!(texts, ["table signpost-next"]);
}
