use super::*;

use backend::{Backend, Rendered};
use dataplane::{ServiceKey, ServicePortName, compile};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service, port};
use xtables::Variant;

use crate::Iptables;
use crate::service_chains::names_of;
use crate::table_rules::TableRules;

fn key() -> FrontendKey {
    FrontendKey::Address {
        address: [10, 96, 0, 10].into(),
        protocol: Protocol::Tcp,
        port: port(80),
    }
}

/// A dataplane with a Service that has these endpoints, and so many other Services.
fn dataplane(endpoints: &[&str], others: u8) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut dataplane = Dataplane::new(node.clone(), config.clone());
    let mut set = |name: &str, address: &str, endpoints: &[&str]| {
        let service = mk_service(name).cluster_ip(address).port("http", 80);
        let mut list = mk_endpoints().tcp("http");
        for endpoint in endpoints {
            list = list.ready(endpoint, "node-1");
        }
        dataplane.set(compile(&service.build(), &list.build(), &node, &config).into());
    };
    set("shop/cart", "10.96.0.10", endpoints);
    for number in 0..others {
        let name = format!("shop/other-{number}");
        set(&name, &format!("10.96.1.{number}"), &["10.0.1.6:8080"]);
    }
    dataplane
}

fn rules(endpoints: &[&str], others: u8) -> Rules {
    let backend = Iptables::detached(Family::Ipv4, Variant::Legacy);
    backend.render(&dataplane(endpoints, others), &Rendered::default())
}

/// Removes the single rule that begins with `rule`.
fn take_out(table: &mut TableRules, rule: &str) {
    let is_meant = |candidate: &Rule| candidate.to_string().starts_with(rule);
    let chains = table.chains().iter();
    let holders = chains.filter(|(_, chain)| chain.rules.iter().any(is_meant));
    let holders: Vec<_> = holders
        .map(|(name, c)| (Arc::clone(name), Arc::clone(c)))
        .collect();
    let [(name, old)] = holders.as_slice() else {
        panic!("{rule} is in {} chains", holders.len());
    };
    let kept = old.rules.iter().filter(|rule| !is_meant(rule)).cloned();
    let new = Chain {
        rules: kept.collect(),
        ..Chain::clone(old)
    };
    table.insert(Arc::clone(name), Arc::new(new));
}

/// The chain that chooses among the endpoints.
fn service_chain() -> Arc<str> {
    let port = ServicePortName {
        service: ServiceKey::new("shop", "cart"),
        port: "http".into(),
        protocol: Protocol::Tcp,
    };
    let [cluster, ..] = names_of(&port);
    cluster
}

fn lines(pieces: Vec<Piece>) -> Vec<String> {
    let line = |piece: Piece| format!("{}: {:?}", piece.text, piece.state);
    pieces.into_iter().map(line).collect()
}

const LOOKUP: &str = "iptables -t nat -A SIGNPOST-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 \
                      -m comment --comment \"shop/cart:http cluster IP\"";
const LAST: &str = "-p tcp -j DNAT --to-destination 10.0.1.7:8080";

#[test]
fn a_rule_that_is_gone_is_missing() {
    let desired = rules(&["10.0.1.5:8080", "10.0.1.7:8080"], 0);
    let mut found = desired.clone();
    take_out(&mut found.nat, LAST);
    let chain = service_chain();
    assert_eq!(
        lines(desired.compare_rules(&found, &key())),
        [
            format!("{LOOKUP} -g {chain}: Present"),
            format!(
                "iptables -t nat -A {chain} ! -s 10.0.1.0/24 -d 10.96.0.10/32 -p tcp -m tcp --dport 80 \
                 -j MARK --set-xmark 0x4000/0x4000: Present"
            ),
            format!(
                "iptables -t nat -A {chain} -p tcp -m statistic --mode random --probability 0.50000000000 \
                 -j DNAT --to-destination 10.0.1.5:8080: Present"
            ),
            format!("iptables -t nat -A {chain} {LAST}: Missing"),
        ]
    );
}

#[test]
fn a_rule_that_leads_elsewhere_is_named_with_where_it_leads() {
    let (desired, found) = (rules(&["10.0.1.5:8080"], 0), rules(&[], 0));
    let lines = lines(desired.compare_rules(&found, &key()));
    let (chain, accept) = (service_chain(), format!("{LOOKUP} -j ACCEPT"));
    assert_eq!(
        lines[0],
        format!("{LOOKUP} -g {chain}: Different {{ found: [{accept:?}] }}")
    );
    let refusal =
        "iptables -t filter -A SIGNPOST-REFUSALS -d 10.96.0.10/32 -p tcp -m tcp --dport 80";
    let refusals: Vec<&String> = lines.iter().filter(|l| l.starts_with(refusal)).collect();
    assert_eq!(refusals.len(), 1, "{lines:#?}");
    assert!(refusals[0].ends_with("-j REJECT: Leftover"), "{refusals:?}");
}

/// The place of a rule in the tree depends on all Services: packets never reach a rule that is
/// correct but in the wrong chain.
#[test]
fn a_rule_in_a_chain_of_another_tree_differs() {
    let (desired, found) = (rules(&["10.0.1.5:8080"], 40), rules(&["10.0.1.5:8080"], 0));
    let lines = lines(desired.compare_rules(&found, &key()));
    let (desired, found) = lines[0].split_once(": Different").expect("it differs");
    assert!(
        desired.starts_with("iptables -t nat -A SIGNPOST-S-10.96.0.0/20 -d 10.96.0.10/32 "),
        "{desired}"
    );
    assert!(
        found.contains("iptables -t nat -A SIGNPOST-SERVICES -d 10.96.0.10/32 "),
        "{found}"
    );
}

#[test]
fn a_cluster_ip_an_endpoint_here_and_a_health_check_have_rules_of_their_own() {
    let alone = dataplane(&["10.0.1.5:8080"], 0);
    let desired = rules(&["10.0.1.5:8080"], 40);
    let mut found = desired.clone();
    take_out(&mut found.nat, "-s 10.0.1.5/32");
    assert_eq!(
        lines(desired.compare_memberships(&found, &alone, Family::Ipv4)),
        [
            "iptables -t nat -A SIGNPOST-H-10.0.1.0/28 -s 10.0.1.5/32 -d 10.0.1.5/32 -p tcp -m tcp --dport 8080 \
             -j MASQUERADE --random-fully: Missing",
            "iptables -t filter -A SIGNPOST-C-10.96.0.0/20 -d 10.96.0.10/32 -g SIGNPOST-UNREDIRECTED: Present",
        ]
    );
}

#[test]
fn the_chains_of_a_frontend_are_those_on_its_way_and_what_they_lead_to() {
    let desired = rules(&["10.0.1.5:8080", "10.0.1.7:8080"], 40);
    let chains = desired.chains_of(&key());
    let names: Vec<&str> = chains.iter().map(|(_, name)| &**name).collect();
    assert_eq!(names, ["SIGNPOST-S-10.96.0.0/20", &*service_chain()]);
    assert!(chains.iter().all(|(table, _)| *table == TableName::Nat));

    let mut found = desired.clone();
    take_out(&mut found.nat, LAST);
    let pieces = desired.compare_chains(&found, &chains);
    assert_eq!(pieces[0].state, PieceState::Present);
    assert!(matches!(pieces[1].state, PieceState::Different { .. }));
}

#[test]
fn what_all_packets_pass_is_compared_and_leftovers_are_named() {
    let desired = rules(&["10.0.1.5:8080"], 0);
    let mut found = desired.clone();
    let differing = |found: &Rules| {
        let mut pieces = desired.compare_shared(found);
        pieces.retain(|piece| piece.state != PieceState::Present);
        lines(pieces)
    };
    assert_eq!(differing(&found), Vec::<String>::new());

    take_out(&mut found.filter, "-d 10.96.0.0/16 -j DROP");
    found.nat.entries.remove(&xtables::BuiltIn::Output);
    let surplus = Chain {
        rules: [].into(),
        services: Vec::new(),
        rank: Rank::Inner,
    };
    found.nat.insert("SIGNPOST-OLD".into(), Arc::new(surplus));
    let lines = differing(&found);
    assert_eq!(lines.len(), 3, "{lines:#?}");
    assert_eq!(lines[0], "nat OUTPUT: Missing");
    assert_eq!(lines[1], "nat chain SIGNPOST-OLD: Leftover");
    assert!(
        lines[2].starts_with("filter chain SIGNPOST-LEAVING: Different"),
        "{lines:#?}"
    );
}

#[test]
fn where_rules_lead_is_reported_without_knowing_their_tree() {
    let desired = rules(&["10.0.1.5:8080", "10.0.1.7:8080"], 40);
    let read = Rules {
        nat: desired.nat.clone(),
        ..Rules::default()
    };
    let targets: Vec<String> = read.targets(&key()).iter().map(Target::to_string).collect();
    assert_eq!(targets, ["10.0.1.5:8080", "10.0.1.7:8080"]);
    assert!(!Rules::default().exist() && read.exist());
}
