use dataplane::Protocol;
use netlink::nf_tables::{MetaKey, Module, Operator, PayloadBase, Register};
use xtables::AddressMatch;

use super::*;

fn load(base: PayloadBase, offset: u32, length: u32) -> Expression {
    Expression::Payload {
        base,
        offset,
        length,
        to: Register(0),
    }
}

fn is(value: &[u8]) -> Expression {
    Expression::Compare {
        from: Register(0),
        operator: Operator::Equal,
        value: value.to_vec(),
    }
}

/// A rule for TCP port 8080, with `more` before the port and `end`.
fn rule(more: Vec<Expression>, end: Vec<Expression>) -> Rule {
    let key = MetaKey::TransportProtocol;
    let protocol = Expression::Meta {
        key,
        to: Register(0),
    };
    let mut expressions = vec![protocol, is(&[6])];
    expressions.extend(more);
    expressions.push(load(PayloadBase::Transport, 2, 2));
    expressions.push(is(&8080_u16.to_be_bytes()));
    expressions.push(Expression::Counter);
    expressions.extend(end);
    Rule {
        expressions,
        comment: None,
    }
}

fn target(name: &str, payload: Vec<u8>) -> Vec<Expression> {
    vec![Expression::Target(Module {
        name: name.into(),
        revision: 2,
        payload,
    })]
}

fn host_port(address: Option<&str>, pod: &str) -> HostPort {
    HostPort {
        port: (Protocol::Tcp, 8080),
        address: address.map(|address| address.parse().expect("an address")),
        pod: pod.parse().expect("an address and a port"),
    }
}

#[test]
fn a_host_port_of_backend_iptables_is_the_rule_with_the_target() {
    let mut payload = vec![0; 48];
    payload[4..8].copy_from_slice(&[10, 0, 1, 8]);
    payload[36..38].copy_from_slice(&9090_u16.to_be_bytes());
    let only = vec![load(PayloadBase::Network, 16, 4), is(&[192, 168, 0, 1])];
    let found = in_rule(&rule(only, target("DNAT", payload.clone())), Family::Ipv4);
    let expected = host_port(Some("192.168.0.1"), "10.0.1.8:9090");
    assert_eq!(found, Some(expected));

    payload[4..20].copy_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
    let found = in_rule(&rule(Vec::new(), target("DNAT", payload)), Family::Ipv6);
    assert_eq!(found, Some(host_port(None, "[fd00::8]:9090")));

    // The mark for packets of the Pod to itself is the same without the target.
    let from_itself = vec![load(PayloadBase::Network, 12, 4), is(&[10, 0, 1, 8])];
    let mark = rule(from_itself, target("MARK", vec![0; 8]));
    assert_eq!(in_rule(&mark, Family::Ipv4), None);
    let cut_off = rule(Vec::new(), target("DNAT", vec![0; 20]));
    assert_eq!(in_rule(&cut_off, Family::Ipv4), None);
}

#[test]
fn a_host_port_of_backend_nftables_has_its_pod_in_registers() {
    let load = |value: &[u8], to| Expression::Load {
        value: value.to_vec(),
        to: Register(to),
    };
    let nat = Expression::Nat {
        kind: NatKind::Destination,
        family: netlink::nf_tables::Family::Ipv4,
        address: Register(0),
        port: Register(4),
    };
    let pod = load(&[10, 0, 1, 8], 0);
    let whole = vec![pod.clone(), load(&9090_u16.to_be_bytes(), 4), nat.clone()];
    let found = in_rule(&rule(Vec::new(), whole), Family::Ipv4);
    assert_eq!(found, Some(host_port(None, "10.0.1.8:9090")));
    let without_port = rule(Vec::new(), vec![pod, nat]);
    assert_eq!(in_rule(&without_port, Family::Ipv4), None);
}

/// A host port at every address is not what a match of another kind means.
#[test]
fn a_rule_for_other_addresses_than_one_or_all_is_left_out() {
    let mut payload = vec![0; 48];
    payload[4..8].copy_from_slice(&[10, 0, 1, 8]);
    payload[36..38].copy_from_slice(&9090_u16.to_be_bytes());
    let found = |matches| {
        in_rule(
            &rule(matches, target("DNAT", payload.clone())),
            Family::Ipv4,
        )
    };
    let destination = || load(PayloadBase::Network, 16, 4);
    let negated = |value: &[u8]| Expression::Compare {
        from: Register(0),
        operator: Operator::NotEqual,
        value: value.to_vec(),
    };
    let own = [192, 168, 0, 1];
    assert!(found(vec![destination(), is(&own)]).is_some());
    assert_eq!(found(vec![destination(), negated(&own)]), None);
    // 192.160.0.0/12, and 192.0.0.0/8.
    let masked = Expression::Bitwise {
        from: Register(0),
        to: Register(0),
        mask: vec![0xff, 0xf0, 0, 0],
        xor: vec![0; 4],
    };
    let range = [192, 160, 0, 0];
    let in_range = vec![destination(), masked.clone(), is(&range)];
    assert_eq!(found(in_range), None);
    assert_eq!(found(vec![destination(), masked, negated(&range)]), None);
    let of_bytes = load(PayloadBase::Network, 16, 1);
    assert_eq!(found(vec![of_bytes, is(&[192])]), None);

    let legacy = |destination: Option<(&str, bool)>| {
        let destination = destination.map(|(range, inverted)| AddressMatch {
            range: range.parse().expect("a range"),
            inverted,
        });
        let found = in_legacy_rule(&CountedRule {
            destination,
            protocol: Some(Protocol::Tcp),
            destination_port: Some(8080),
            leads_to: None,
            translates_to: Some("10.0.1.8:9090".parse().expect("an address and a port")),
            packets: 0,
        });
        found.map(|host_port| host_port.address)
    };
    assert_eq!(legacy(None), Some(None));
    let one = legacy(Some(("192.168.0.1/32", false)));
    assert_eq!(one, Some(Some(own.into())));
    assert_eq!(legacy(Some(("192.168.0.1/32", true))), None);
    assert_eq!(legacy(Some(("192.0.0.0/8", false))), None);
}
