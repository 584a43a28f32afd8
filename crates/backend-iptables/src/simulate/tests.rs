use super::*;

use std::time::Duration;

use backend::{Backend, Rendered};
use dataplane::{Dataplane, Family, Protocol, ServiceKey, ServicePortName, compile};
use testkit::{mk_config, mk_endpoints, mk_node, mk_service, port};
use xtables::Variant;

use crate::Iptables;
use crate::rules::{Chain, Rank};
use crate::service_chains::names_of;

const ADDRESS: &str = "10.96.0.10";

fn packet() -> Packet {
    Packet {
        origin: Origin::Pod {
            interface: "veth9".into(),
        },
        source: "10.0.1.9".parse().expect("an address"),
        destination: ADDRESS.parse().expect("an address"),
        protocol: Protocol::Tcp,
        port: port(80),
    }
}

fn dataplane(endpoints: &[&str], affinity: Option<Duration>) -> Dataplane {
    let (node, config) = (mk_node(1).build(), mk_config().build());
    let mut service = mk_service("shop/cart").cluster_ip(ADDRESS).port("http", 80);
    if let Some(timeout) = affinity {
        service = service.client_ip_affinity(timeout);
    }
    let mut list = mk_endpoints().tcp("http");
    for endpoint in endpoints {
        list = list.ready(endpoint, "node-1");
    }
    let rules = compile(&service.build(), &list.build(), &node, &config);
    let mut dataplane = Dataplane::new(node, config);
    dataplane.set(rules.into());
    dataplane
}

fn render(dataplane: &Dataplane) -> Rules {
    let backend = Iptables::detached(Family::Ipv4, Variant::NfTables);
    backend.render(dataplane, &Rendered::default())
}

/// Rules of table nat for incoming packets, by chain; the first is the built-in chain.
fn hand_made(chains: &[(&str, &[Rule])]) -> Rules {
    let mut rules = Rules::default();
    for (position, (name, chain)) in chains.iter().enumerate() {
        match position {
            0 => drop(
                rules
                    .nat
                    .entries
                    .insert(BuiltIn::Prerouting, chain.to_vec()),
            ),
            _ => {
                let chain = Chain {
                    rules: chain.to_vec().into(),
                    services: Vec::new(),
                    rank: Rank::Inner,
                };
                rules.nat.insert((*name).into(), Arc::new(chain));
            }
        }
    }
    rules
}

fn to(target: Target) -> Rule {
    Rule::always(target)
}

fn dnat(last: u8) -> Target {
    Target::DestinationNat {
        address: [10, 0, 1, last].into(),
        port: 8080,
    }
}

fn outcome(rules: &Rules) -> String {
    simulate(rules, &mk_node(1).build(), &packet()).to_string()
}

#[test]
fn a_chain_that_was_jumped_to_comes_back_and_one_that_was_gone_to_does_not() {
    let (jump, go) = (
        Target::Jump("SIGNPOST-A".into()),
        Target::Goto("SIGNPOST-A".into()),
    );
    let nothing: &[Rule] = &[to(Target::Return), to(dnat(9))];
    let after = |how: &Target| {
        hand_made(&[
            ("", &[to(how.clone()), to(dnat(5))]),
            ("SIGNPOST-A", nothing),
        ])
    };
    assert_eq!(outcome(&after(&jump)), "10.0.1.5:8080");
    assert_eq!(outcome(&after(&go)), "untouched");
}

#[test]
fn chains_that_lead_deeper_than_the_kernel_takes_lead_nowhere() {
    let names: Vec<String> = (0..20).map(|n| format!("SIGNPOST-{n}")).collect();
    let deep = |depth: usize| {
        let lead = |name: &str| vec![to(Target::Goto(name.into()))];
        let mut chains = vec![(String::new(), lead(&names[0]))];
        for pair in names[..=depth].windows(2) {
            chains.push((pair[0].clone(), lead(&pair[1])));
        }
        if let Some((_, last)) = chains.last_mut() {
            *last = vec![to(dnat(5))];
        }
        let chains: Vec<(&str, &[Rule])> = chains
            .iter()
            .map(|(name, rules)| (name.as_str(), rules.as_slice()))
            .collect();
        outcome(&hand_made(&chains))
    };
    assert_eq!(deep(15), "10.0.1.5:8080");
    assert_eq!(deep(16), "drop");
}

#[test]
fn an_endpoint_that_two_rules_lead_to_is_chosen_twice_as_often() {
    let random = |probability, last| Rule {
        matches: vec![Match::Random { probability }],
        ..to(dnat(last))
    };
    let third = Match::CERTAIN / 3;
    let rules = hand_made(&[(
        "",
        &[random(third, 5), random(Match::CERTAIN / 2, 7), to(dnat(5))],
    )]);
    assert_eq!(outcome(&rules), "10.0.1.5:8080 x2, 10.0.1.7:8080");
}

#[test]
fn only_the_bits_of_the_mask_of_a_mark_are_changed() {
    let set = |value, mask| to(Target::Mark { value, mask });
    let asked = Rule {
        matches: vec![Match::Mark {
            value: 0x4001,
            mask: 0x4001,
        }],
        ..to(dnat(5))
    };
    let mut rules = [set(0x1, 0x1), set(0x4000, 0x4000), asked];
    assert_eq!(outcome(&hand_made(&[("", &rules)])), "10.0.1.5:8080");
    rules[1] = set(0x4000, 0x4001);
    assert_eq!(outcome(&hand_made(&[("", &rules)])), "untouched");
}

/// The list of clients belongs to the endpoint, regardless of the place of its rule among others
/// (kubernetes#110302).
#[test]
fn t66_a_client_stays_while_its_endpoint_is_there_and_moves_on_when_it_is_not() {
    let mut memory = Memory::default();
    let mut go = |endpoints: &[&str]| -> Vec<String> {
        let dataplane = dataplane(endpoints, Some(Duration::from_secs(600)));
        let rules = render(&dataplane);
        let go = |number| {
            let node = dataplane.node();
            match simulate_next(&rules, node, &packet(), &mut memory, number) {
                Verdict::Deliver(choices) => choices[0].target.to_string(),
                other => other.to_string(),
            }
        };
        (0..5).map(go).collect()
    };
    let (a, b, c) = ("10.0.1.5:8080", "10.0.2.7:8080", "10.0.3.1:8080");
    assert_eq!(go(&[a, b, c]), [a; 5]);
    assert_eq!(go(&[c, a]), [a; 5]);
    assert_eq!(go(&[c, a, b]), [a; 5]);
    let moved = go(&[b, c]);
    assert_ne!(moved[0], a);
    assert!(moved.iter().all(|to| *to == moved[0]), "{moved:?}");
}

#[test]
fn a_way_tells_the_rules_that_asked_something_and_what_they_did() {
    let dataplane = dataplane(&["10.0.1.5:8080", "10.0.2.7:8080"], None);
    let paths = paths(&render(&dataplane), dataplane.node(), &packet());
    let outcomes: Vec<String> = paths.iter().map(|way| way.outcome.to_string()).collect();
    assert_eq!(outcomes, ["10.0.1.5:8080", "10.0.2.7:8080"]);
    let events: Vec<String> = paths[1].events.iter().map(Event::to_string).collect();
    let port = ServicePortName {
        service: ServiceKey::new("shop", "cart"),
        port: "http".into(),
        protocol: Protocol::Tcp,
    };
    let [chain, ..] = names_of(&port);
    let found = format!(
        "-d 10.96.0.10/32 -p tcp -m tcp --dport 80 \
         -m comment --comment \"shop/cart:http cluster IP\" -g {chain}"
    );
    assert_eq!(
        events,
        [
            "PREROUTING (nat)",
            "SIGNPOST-SERVICES",
            &found,
            &chain,
            "-p tcp -m comment --comment \"shop/cart:http -> 10.0.2.7:8080\" \
             -j DNAT --to-destination 10.0.2.7:8080",
            "dnat to 10.0.2.7:8080",
            "FORWARD (filter)",
            "SIGNPOST-FORWARD",
            "-m conntrack --ctstate NEW -j SIGNPOST-LEAVING",
            "SIGNPOST-LEAVING",
            "SIGNPOST-CLUSTER-IPS",
            "POSTROUTING (nat)",
            "SIGNPOST-POSTROUTING",
            "-m conntrack --ctstate DNAT -g SIGNPOST-HAIRPINS",
            "SIGNPOST-HAIRPINS",
            "-d 10.0.0.0/20 -j SIGNPOST-H-10.0.0.0/20",
            "SIGNPOST-H-10.0.0.0/20",
        ]
    );
}
