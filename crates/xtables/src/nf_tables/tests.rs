//! Round trips of rules, rules written by other programs, and the operations of a transaction.

use netlink::nf_tables::{
    Expression, MetaKey, Operator, PayloadBase, Register, Rule as Encoded, Transaction, Verdict,
};
use proptest::prelude::*;

use super::decode::decode;
use super::encode::encode;
use super::*;
use crate::generate::rules;
use crate::{AddressMatch, InterfaceMatch, Match, Protocol, Target};

const REGISTER: Register = Register(0);

proptest! {
    #[test]
    fn a_rule_reads_as_itself(
        (family, rule) in prop_oneof![
            rules(Family::Ipv4).prop_map(|rule| (Family::Ipv4, rule)),
            rules(Family::Ipv6).prop_map(|rule| (Family::Ipv6, rule)),
        ],
    ) {
        prop_assert_eq!(decode(&encode(&rule, family), family), Some(rule));
    }

    /// A rule with one expression too few or too many is a different rule, or none that Signpost
    /// writes.
    #[test]
    fn a_rule_that_lacks_a_step_is_another(
        rule in rules(Family::Ipv4), at in any::<prop::sample::Index>(),
    ) {
        let whole = encode(&rule, Family::Ipv4);
        let at = at.index(whole.expressions.len());
        let mut damaged = whole.clone();
        let gone = damaged.expressions.remove(at);
        if gone != Expression::Counter {
            prop_assert_ne!(decode(&damaged, Family::Ipv4), Some(rule.clone()));
        }
        let mut damaged = whole;
        damaged.expressions.push(Expression::Immediate(Verdict::Accept));
        prop_assert_eq!(decode(&damaged, Family::Ipv4), None);
    }
}

/// Expressions that may be parts of a comparison.
fn steps() -> impl Strategy<Value = Expression> {
    let bytes = || {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..18),
            prop::sample::select(vec![vec![6], vec![10], vec![0, 80], vec![255, 0, 0, 0]]),
        ]
    };
    let registers = || prop::sample::select(vec![REGISTER, REGISTER, Register(1)]);
    let operators = || prop::sample::select(vec![Operator::Equal, Operator::NotEqual]);
    prop_oneof![
        (
            prop::sample::select(vec![PayloadBase::Network, PayloadBase::Transport]),
            prop::sample::select(vec![2, 8, 12, 16, 24, u32::MAX]),
            prop::sample::select(vec![0, 1, 2, 4, 16, u32::MAX]),
            registers(),
        )
            .prop_map(|(base, offset, length, to)| Expression::Payload {
                base,
                offset,
                length,
                to,
            }),
        (
            prop::sample::select(vec![
                MetaKey::Mark,
                MetaKey::InputInterfaceName,
                MetaKey::TransportProtocol,
            ]),
            registers(),
        )
            .prop_map(|(key, to)| Expression::Meta { key, to }),
        (registers(), registers(), bytes()).prop_map(|(from, to, mask)| Expression::Bitwise {
            from,
            to,
            xor: vec![0; mask.len()],
            mask,
        }),
        (registers(), operators(), bytes()).prop_map(|(from, operator, value)| {
            Expression::Compare {
                from,
                operator,
                value,
            }
        }),
        (registers(), operators(), bytes(), bytes()).prop_map(|(from, operator, first, last)| {
            Expression::Range {
                from,
                operator,
                first,
                last,
            }
        }),
    ]
}

proptest! {
    /// Whatever another program puts into Signpost's chains: it decodes to nothing, or to a rule
    /// that encodes to an equivalent one.
    #[test]
    fn what_is_read_can_be_written(expressions in prop::collection::vec(steps(), 0..5)) {
        let end = Expression::Immediate(Verdict::Return);
        let encoded = Encoded {
            expressions: expressions.into_iter().chain([end]).collect(),
            comment: None,
        };
        for family in [Family::Ipv4, Family::Ipv6] {
            if let Some(rule) = decode(&encoded, family) {
                prop_assert_eq!(decode(&encode(&rule, family), family), Some(rule));
            }
        }
    }
}

fn compare(value: &[u8]) -> Expression {
    Expression::Compare {
        from: REGISTER,
        operator: Operator::Equal,
        value: value.to_vec(),
    }
}

fn payload(base: PayloadBase, offset: u32, length: u32) -> Expression {
    Expression::Payload {
        base,
        offset,
        length,
        to: REGISTER,
    }
}

fn meta(key: MetaKey) -> Expression {
    Expression::Meta { key, to: REGISTER }
}

fn read(expressions: Vec<Expression>) -> Option<String> {
    let end = [Expression::Counter, Expression::Immediate(Verdict::Return)];
    let encoded = Encoded {
        expressions: expressions.into_iter().chain(end).collect(),
        comment: None,
    };
    decode(&encoded, Family::Ipv4).map(|rule| rule.to_string())
}

/// The expressions that iptables 1.8.9 was observed to write.
#[test]
fn what_newer_versions_write_without_matches_reads_the_same() {
    let tcp = || vec![meta(MetaKey::TransportProtocol), compare(&[6])];
    let port = || payload(PayloadBase::Transport, 2, 2);
    let port_80 = [tcp(), vec![port(), compare(&[0, 80])]].concat();
    assert_eq!(
        read(port_80.clone()).as_deref(),
        Some("-p tcp -m tcp --dport 80 -j RETURN")
    );
    let range = Expression::Range {
        from: REGISTER,
        operator: Operator::Equal,
        first: vec![0, 80],
        last: vec![0, 90],
    };
    assert_eq!(
        read([tcp(), vec![port(), range]].concat()).as_deref(),
        Some("-p tcp -m tcp --dport 80:90 -j RETURN")
    );
    assert_eq!(
        read(vec![
            meta(MetaKey::Mark),
            Expression::Bitwise {
                from: REGISTER,
                to: REGISTER,
                mask: 0x4000u32.to_ne_bytes().to_vec(),
                xor: vec![0; 4],
            },
            compare(&0x4000u32.to_ne_bytes()),
        ])
        .as_deref(),
        Some("-m mark --mark 0x4000/0x4000 -j RETURN")
    );
    assert_eq!(
        read(vec![
            payload(PayloadBase::Network, 12, 1),
            compare(&[10]),
            payload(PayloadBase::Network, 16, 3),
            compare(&[10, 96, 7]),
        ])
        .as_deref(),
        Some("-s 10.0.0.0/8 -d 10.96.7.0/24 -j RETURN")
    );
    // A match of ports without a protocol.
    assert_eq!(read(port_80[2..].to_vec()), None);
}

#[test]
fn what_signposts_rules_never_ask_is_read_as_nothing() {
    let source = || payload(PayloadBase::Network, 12, 4);
    let masked = |mask: [u8; 4], value: [u8; 4]| {
        let bitwise = Expression::Bitwise {
            from: REGISTER,
            to: REGISTER,
            mask: mask.to_vec(),
            xor: vec![0; 4],
        };
        vec![source(), bitwise, compare(&value)]
    };
    assert_eq!(
        read(masked([255, 255, 240, 0], [10, 0, 16, 0])).as_deref(),
        Some("-s 10.0.16.0/20 -j RETURN")
    );
    for (why, expressions) in [
        ("a mask with holes", masked([240, 240, 0, 0], [16, 0, 0, 0])),
        (
            "bits outside the mask",
            masked([255, 0, 0, 0], [10, 1, 0, 0]),
        ),
        (
            "a source twice",
            [
                masked([255, 0, 0, 0], [10, 0, 0, 0]),
                vec![source(), compare(&[10, 0, 0, 1])],
            ]
            .concat(),
        ),
        ("nothing compared", vec![source()]),
        (
            "another register compared",
            vec![
                source(),
                Expression::Compare {
                    from: Register(4),
                    operator: Operator::Equal,
                    value: vec![10, 0, 0, 1],
                },
            ],
        ),
        (
            "the time to live",
            vec![payload(PayloadBase::Network, 8, 1), compare(&[64])],
        ),
        (
            "ICMP",
            vec![meta(MetaKey::TransportProtocol), compare(&[1])],
        ),
    ] {
        assert_eq!(read(expressions), None, "{why}");
    }
    // A rule without a target is not one of Signpost's either.
    let counting = Encoded {
        expressions: vec![Expression::Counter],
        comment: None,
    };
    assert_eq!(decode(&counting, Family::Ipv4), None);
}

fn jump(chain: &str) -> Rule {
    Rule::always(Target::Jump(chain.into()))
}

fn compiled(change: &TableChange, present: &BTreeMap<BuiltIn, Present>) -> String {
    let transaction: Transaction = compile(change, Family::Ipv4, present);
    transaction.to_string()
}

fn full_change() -> TableChange {
    let port_80 = Rule {
        destination: Some(AddressMatch::within(
            "10.96.0.1/32".parse().expect("a range"),
        )),
        input: Some(InterfaceMatch {
            name: "cali".into(),
            is_prefix: true,
            inverted: true,
        }),
        protocol: Some(Protocol::Tcp),
        matches: vec![Match::DestinationPorts {
            first: 80,
            last: 80,
        }],
        comment: Some("shop/web:http".into()),
        ..Rule::always(Target::Goto("SIGNPOST-B".into()))
    };
    TableChange {
        chains: vec![
            ("SIGNPOST-A".into(), [port_80].into()),
            (
                "SIGNPOST-B".into(),
                [Rule::always(Target::Masquerade)].into(),
            ),
        ],
        entries: vec![(
            BuiltIn::Prerouting,
            vec![jump("SIGNPOST-A"), jump("SIGNPOST-B")],
        )],
        removed: vec!["SIGNPOST-C".into(), "SIGNPOST-D".into()],
        ..TableChange::new(TableName::Nat)
    }
}

#[test]
fn chains_come_before_what_leads_to_them_and_go_after() {
    let expected = "add table ip nat
add chain ip nat SIGNPOST-A
flush chain ip nat SIGNPOST-A
add chain ip nat SIGNPOST-B
flush chain ip nat SIGNPOST-B
add rule ip nat SIGNPOST-A iifname != cali meta l4proto == 0x06 ip daddr == 0x0a600001 xt match tcp counter goto SIGNPOST-B comment \"shop/web:http\"
add rule ip nat SIGNPOST-B counter xt target MASQUERADE
add chain ip nat PREROUTING { type nat hook prerouting priority -100; }
insert rule ip nat PREROUTING counter jump SIGNPOST-B
insert rule ip nat PREROUTING counter jump SIGNPOST-A
flush chain ip nat SIGNPOST-C
flush chain ip nat SIGNPOST-D
delete chain ip nat SIGNPOST-C
delete chain ip nat SIGNPOST-D
";
    assert_eq!(compiled(&full_change(), &BTreeMap::new()), expected);
}

#[test]
fn entries_that_are_there_are_left_alone_and_others_make_room() {
    let held = |rules: &[Option<Rule>]| {
        let entries = (7..).zip(rules).map(|(handle, rule)| Entry {
            handle,
            rule: rule.clone(),
        });
        let entries = entries.collect();
        BTreeMap::from([(BuiltIn::Prerouting, Present { entries })])
    };
    let change = TableChange {
        entries: full_change().entries,
        ..TableChange::new(TableName::Nat)
    };
    let same = held(&[Some(jump("SIGNPOST-A")), Some(jump("SIGNPOST-B"))]);
    assert_eq!(compiled(&change, &same), "");
    let strange = held(&[Some(jump("SIGNPOST-A")), None]);
    let expected = "add table ip nat
delete rule ip nat PREROUTING handle 7
delete rule ip nat PREROUTING handle 8
insert rule ip nat PREROUTING counter jump SIGNPOST-B
insert rule ip nat PREROUTING counter jump SIGNPOST-A
";
    assert_eq!(compiled(&change, &strange), expected);
}

/// Removing Signpost's rules must not create a table.
#[test]
fn a_removal_makes_nothing() {
    let change = TableChange {
        entries: vec![(BuiltIn::Prerouting, Vec::new())],
        removed: vec!["SIGNPOST-A".into()],
        ..TableChange::new(TableName::Nat)
    };
    let expected = "flush chain ip nat SIGNPOST-A
delete chain ip nat SIGNPOST-A
";
    assert_eq!(compiled(&change, &BTreeMap::new()), expected);
    let empty = TableChange {
        entries: change.entries,
        ..TableChange::new(TableName::Nat)
    };
    assert_eq!(compiled(&empty, &BTreeMap::new()), "");
}
