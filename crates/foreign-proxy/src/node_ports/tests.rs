use netlink::nf_tables::{MetaKey, Module, Register};

use super::*;

const TO: Register = Register(1);

fn rule(expressions: Vec<Expression>) -> Rule {
    Rule {
        expressions,
        comment: None,
    }
}

fn load(base: PayloadBase, offset: u32, length: u32) -> Expression {
    Expression::Payload {
        base,
        offset,
        length,
        to: TO,
    }
}

fn compare(operator: Operator, value: &[u8]) -> Expression {
    Expression::Compare {
        from: TO,
        operator,
        value: value.to_vec(),
    }
}

fn protocol(number: u8) -> [Expression; 2] {
    let key = MetaKey::TransportProtocol;
    [
        Expression::Meta { key, to: TO },
        compare(Operator::Equal, &[number]),
    ]
}

#[test]
fn what_a_rule_asks_of_the_destination_says_where_node_ports_are() {
    let v4 = |length, operator, value: &[u8]| {
        let load = load(PayloadBase::Network, 16, length);
        destination(&rule(vec![load, compare(operator, value)]), Family::Ipv4)
    };
    let address = IpAddr::from([10, 0, 0, 1]);
    assert_eq!(
        v4(4, Operator::Equal, &[10, 0, 0, 1]),
        DestinationMatch::Is(address)
    );
    // 127.0.0.0/8, as iptables writes it.
    assert_eq!(v4(1, Operator::NotEqual, &[127]), DestinationMatch::Outside);
    assert_eq!(v4(1, Operator::Equal, &[127]), DestinationMatch::Within);
    let everything = rule(protocol(6).into());
    assert_eq!(
        destination(&everything, Family::Ipv4),
        DestinationMatch::Any
    );
    let load = load(PayloadBase::Network, 24, 16);
    let loopback = Ipv6Addr::LOCALHOST.octets();
    let but_loopback = rule(vec![load, compare(Operator::NotEqual, &loopback)]);
    assert_eq!(
        destination(&but_loopback, Family::Ipv6),
        DestinationMatch::Outside
    );
}

#[test]
fn a_port_is_read_in_both_forms_that_iptables_has_for_it() {
    let mut native = Vec::from(protocol(6));
    native.push(load(PayloadBase::Transport, 2, 2));
    native.push(compare(Operator::Equal, &30080_u16.to_be_bytes()));
    assert_eq!(node_port(&rule(native)), Some((Protocol::Tcp, 30080)));
    let mut payload = vec![0, 0, 0xff, 0xff];
    payload.extend(30081_u16.to_ne_bytes());
    payload.extend(30081_u16.to_ne_bytes());
    let mut matched = Vec::from(protocol(17));
    matched.push(Expression::Match(Module {
        name: "udp".into(),
        revision: 0,
        payload,
    }));
    assert_eq!(node_port(&rule(matched)), Some((Protocol::Udp, 30081)));
    let mut payload = 8081_u16.to_ne_bytes().to_vec();
    payload.resize(292, 0);
    let mut matched = Vec::from(protocol(132));
    matched.push(Expression::Match(Module {
        name: "sctp".into(),
        revision: 0,
        payload,
    }));
    assert_eq!(node_port(&rule(matched)), Some((Protocol::Sctp, 8081)));
    assert_eq!(node_port(&rule(protocol(6).into())), None);
}
