//! Chains and rules of other programs: where they lead, what they ask of the destination, and their
//! counters.

use std::net::SocketAddr;

use super::super::layout::{EXTENSION, VERDICT_DROP};
use super::*;
use crate::{ChainKind, PacketEnd, Policy};

/// Puts the comment of entry `number` before its other match, as kube-proxy does.
fn comment_first(made: &mut Made, number: usize) {
    let layout = Layout::of(made.family);
    let start = made.parse().expect("it can be read").offset(number);
    let entry = layout.entry(&made.entries, start).expect("an entry");
    let (first, end) = (start + layout.length, start + entry.target);
    let length = u16::from_ne_bytes([made.entries[first], made.entries[first + 1]]);
    made.entries[first..end].rotate_left(usize::from(length));
}

#[test]
fn rules_of_other_programs_are_read_with_their_counters() {
    for family in FAMILIES {
        let loopback = match family {
            Family::Ipv4 => "127.0.0.0/8",
            Family::Ipv6 => "::1/128",
        };
        let loopback = AddressMatch::outside(loopback.parse().expect("a range"));
        let node_port = |port| Rule {
            protocol: Some(Protocol::Tcp),
            matches: vec![Match::DestinationPorts {
                first: port,
                last: port,
            }],
            comment: Some("shop/web:http".into()),
            ..jump("KUBE-EXT-A")
        };
        let entrance = Rule {
            destination: Some(loopback),
            matches: vec![Match::LocalAddress(PacketEnd::Destination)],
            ..jump("KUBE-NODEPORTS")
        };
        let pod = match family {
            Family::Ipv4 => "10.0.1.8:9090",
            Family::Ipv6 => "[fd00::8]:9090",
        };
        let pod: SocketAddr = pod.parse().expect("an address and a port");
        let host_port = Rule {
            target: Target::DestinationNat {
                address: pod.ip(),
                port: pod.port(),
            },
            ..node_port(8080)
        };
        let chains: [(&str, &[Rule]); 4] = [
            ("CNI-DN-A", &[host_port]),
            ("KUBE-EXT-A", &[]),
            ("KUBE-NODEPORTS", &[node_port(30080), node_port(30081)]),
            ("KUBE-SERVICES", &[entrance]),
        ];
        let made = Made::empty(family).change(OTHERS, &[change(&chains, &[], &[])]);
        let (mut made, _) = made.expect("nothing is in the way");
        let table = made.parse().expect("it can be read");
        let mut all = table.chains.iter();
        let ports = all.find(|chain| chain.name() == Some(b"KUBE-NODEPORTS".as_slice()));
        let ports = ports.expect("it was written").rules.clone();
        let counter = table.offset(ports.start + 1) + Layout::of(family).counters();
        made.entries[counter..counter + 8].copy_from_slice(&7_u64.to_ne_bytes());
        comment_first(&mut made, ports.start);

        let table = made.parse().expect("it can be read");
        let counted = |destination_port, packets| CountedRule {
            destination: None,
            protocol: Some(Protocol::Tcp),
            destination_port: Some(destination_port),
            leads_to: Some("KUBE-EXT-A".into()),
            translates_to: None,
            packets,
        };
        assert_eq!(
            counted_rules(&table, family, |name| name == "KUBE-NODEPORTS"),
            [counted(30080, 0), counted(30081, 7)]
        );
        let entrance = CountedRule {
            destination: Some(loopback),
            protocol: None,
            destination_port: None,
            leads_to: Some("KUBE-NODEPORTS".into()),
            translates_to: None,
            packets: 0,
        };
        assert_eq!(
            counted_rules(&table, family, |name| name == "KUBE-SERVICES"),
            [entrance]
        );
        let mapped = CountedRule {
            leads_to: None,
            translates_to: Some(pod),
            ..counted(8080, 0)
        };
        let of_pods = |name: &str| name.starts_with("CNI-DN-");
        assert_eq!(counted_rules(&table, family, of_pods), [mapped]);
        let external = |name: &str| name == "KUBE-EXTERNAL-SERVICES";
        assert!(counted_rules(&table, family, external).is_empty());
    }
}

#[test]
fn chains_of_other_programs_are_listed_with_policies_and_where_they_lead() {
    for family in FAMILIES {
        let mut made = with_others(family);
        let input = made.info.policies[1] as usize;
        let entry = Layout::of(family).entry(&made.entries, input);
        let verdict = input + entry.expect("a policy").target + EXTENSION;
        made.entries[verdict..verdict + 4].copy_from_slice(&VERDICT_DROP.to_ne_bytes());
        let listed = listed_chains(&made.parse().expect("it can be read"));
        let built_in = |chain, policy, leads_to: &[&str]| ListedChain {
            kind: ChainKind::BuiltIn(chain, policy),
            leads_to: leads_to.iter().map(|name| Arc::from(*name)).collect(),
        };
        let named = |name: &str, leads_to: &[&str]| ListedChain {
            kind: ChainKind::Named(name.into()),
            leads_to: leads_to.iter().map(|name| Arc::from(*name)).collect(),
        };
        let expected = [
            built_in(BuiltIn::Prerouting, Policy::Accept, &["KUBE-A"]),
            built_in(BuiltIn::Input, Policy::Drop, &[]),
            built_in(BuiltIn::Output, Policy::Accept, &[]),
            built_in(BuiltIn::Postrouting, Policy::Accept, &[]),
            named("KUBE-A", &["ZONE"]),
            named("KUBE-B", &[]),
            named("ZONE", &[]),
        ];
        assert_eq!(listed, expected);
    }
}
