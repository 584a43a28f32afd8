//! Encoded values decode to themselves, and no received bytes make decoding panic.

use super::*;
use crate::wire::{Attributes, Message, Messages};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::time::Duration;

fn names() -> impl Strategy<Value = Arc<str>> {
    "[a-z][a-z0-9-]{0,20}".prop_map(Arc::from)
}

fn registers() -> impl Strategy<Value = Register> {
    (0u8..16).prop_map(Register)
}

fn verdicts() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        Just(Verdict::Accept),
        Just(Verdict::Drop),
        Just(Verdict::Return),
        names().prop_map(Verdict::Jump),
        names().prop_map(Verdict::Goto),
    ]
}

fn expressions() -> impl Strategy<Value = Expression> {
    let bases = || select(vec![PayloadBase::Network, PayloadBase::Transport]);
    let keys = || {
        select(vec![
            MetaKey::Mark,
            MetaKey::InputInterfaceName,
            MetaKey::TransportProtocol,
        ])
    };
    let directions = select(vec![
        None,
        Some(Direction::Original),
        Some(Direction::Reply),
    ]);
    let operators = select(vec![Operator::Equal, Operator::NotEqual]);
    let generators = select(vec![NumberGenerator::Incremental, NumberGenerator::Random]);
    let fields = select(vec![FibField::Source, FibField::Destination]);
    let families = select(vec![Family::Ipv4, Family::Ipv6]);
    prop_oneof![
        (bases(), 0u32..40, 1u32..17, registers()).prop_map(|(base, offset, length, to)| {
            Expression::Payload {
                base,
                offset,
                length,
                to,
            }
        }),
        (bases(), 0u32..40, 1u32..17, registers()).prop_map(|(base, offset, length, from)| {
            Expression::SetPayload {
                base,
                offset,
                length,
                from,
            }
        }),
        (keys(), registers()).prop_map(|(key, to)| Expression::Meta { key, to }),
        (keys(), registers()).prop_map(|(key, from)| Expression::SetMeta { key, from }),
        (
            select(vec![
                CtKey::State,
                CtKey::Status,
                CtKey::Ipv4Source,
                CtKey::Ipv4Destination,
                CtKey::Ipv6Source,
                CtKey::Ipv6Destination,
                CtKey::DestinationPort,
                CtKey::Direction,
                CtKey::Labels,
            ]),
            directions,
            registers()
        )
            .prop_map(|(key, direction, to)| Expression::Ct { key, direction, to }),
        registers().prop_map(|from| Expression::SetCt {
            key: SettableCtKey::Labels,
            from
        }),
        (vec(any::<u8>(), 1..17), registers())
            .prop_map(|(value, to)| Expression::Load { value, to }),
        (registers(), operators, vec(any::<u8>(), 1..17)).prop_map(|(from, operator, value)| {
            Expression::Compare {
                from,
                operator,
                value,
            }
        }),
        (registers(), registers(), vec(any::<(u8, u8)>(), 1..17)).prop_map(|(from, to, bytes)| {
            let (mask, xor) = bytes.into_iter().unzip();
            Expression::Bitwise {
                from,
                to,
                mask,
                xor,
            }
        }),
        (names(), registers()).prop_map(|(set, from)| Expression::Lookup { set, from }),
        (names(), registers(), registers()).prop_map(|(set, from, to)| Expression::LookupValue {
            set,
            from,
            to
        }),
        (names(), registers()).prop_map(|(set, from)| Expression::LookupVerdict { set, from }),
        verdicts().prop_map(Expression::Immediate),
        (generators, 1u32..1000, any::<u32>(), registers()).prop_map(
            |(generator, modulus, offset, to)| Expression::Numgen {
                generator,
                modulus,
                offset,
                to
            }
        ),
        (registers(), 1u32..41, any::<[u32; 3]>(), registers()).prop_map(
            |(from, length, [modulus, seed, offset], to)| Expression::Hash {
                from,
                length,
                modulus,
                seed,
                offset,
                to
            }
        ),
        (names(), learning(), registers(), registers()).prop_map(|(set, how, key, value)| {
            Expression::Learn {
                set,
                how,
                key,
                value,
            }
        }),
        (fields, registers()).prop_map(|(field, to)| Expression::FibType { field, to }),
        (families, registers(), registers()).prop_map(|(family, address, port)| Expression::Nat {
            kind: NatKind::Destination,
            family,
            address,
            port,
        }),
        Just(Expression::Masquerade),
        select(vec![RejectKind::PortUnreachable, RejectKind::TcpReset])
            .prop_map(Expression::Reject),
        names().prop_map(|flowtable| Expression::Offload { flowtable }),
        Just(Expression::Counter),
        (
            registers(),
            select(vec![Operator::Equal, Operator::NotEqual]),
            vec(any::<(u8, u8)>(), 1..17)
        )
            .prop_map(|(from, operator, bytes)| {
                let (first, last) = bytes.into_iter().unzip();
                Expression::Range {
                    from,
                    operator,
                    first,
                    last,
                }
            }),
        modules().prop_map(Expression::Match),
        modules().prop_map(Expression::Target),
    ]
}

fn modules() -> impl Strategy<Value = Module> {
    (names(), any::<u8>(), vec(any::<u8>(), 0..300)).prop_map(|(name, revision, payload)| Module {
        name,
        revision,
        payload,
    })
}

fn learning() -> impl Strategy<Value = MapUpdate> {
    let timeouts = any::<u32>().prop_map(|milliseconds| Duration::from_millis(milliseconds.into()));
    prop_oneof![
        timeouts.prop_map(|timeout| MapUpdate::Update { timeout }),
        Just(MapUpdate::Delete),
    ]
}

fn types() -> impl Strategy<Value = Vec<DataType>> {
    let one = select(vec![
        DataType::Ipv4Address,
        DataType::Ipv6Address,
        DataType::Protocol,
        DataType::Service,
        DataType::Mark,
    ]);
    vec(one, 1..5)
}

fn sets() -> impl Strategy<Value = Set> {
    let content = prop_oneof![
        Just(SetContent::Membership),
        Just(SetContent::Verdicts),
        types().prop_map(SetContent::Values),
    ];
    let writer = prop_oneof![
        Just(SetWriter::Transactions),
        any::<u32>().prop_map(|capacity| SetWriter::Packets { capacity }),
    ];
    (names(), types(), content, writer).prop_map(|(name, key, content, writer)| Set {
        name,
        key,
        content,
        writer,
    })
}

fn chains() -> impl Strategy<Value = Chain> {
    let points = select(vec![
        HookPoint::Prerouting,
        HookPoint::Input,
        HookPoint::Forward,
        HookPoint::Output,
        HookPoint::Postrouting,
    ]);
    let kinds = select(vec![ChainKind::Filter, ChainKind::Nat, ChainKind::Route]);
    let hook = (kinds, points, any::<i32>()).prop_map(|(kind, point, priority)| Hook {
        kind,
        point,
        priority,
    });
    (names(), option::of(hook)).prop_map(|(name, hook)| Chain { name, hook })
}

fn elements_of_any_kind() -> impl Strategy<Value = (Bytes, ElementData)> {
    let words = || {
        vec(any::<[u8; 4]>(), 1..10)
            .prop_map(|words| Bytes::from_slice(&words.concat()).expect("at most 40 bytes"))
    };
    let data = prop_oneof![
        Just(ElementData::None),
        words().prop_map(ElementData::Value),
        verdicts().prop_map(ElementData::Verdict),
    ];
    (words(), data)
}

/// `NFTA_RULE_HANDLE` with the number 9, as the kernel sends it.
const HANDLE: [u8; 12] = {
    let [length, kind] = [12u16.to_ne_bytes(), 3u16.to_ne_bytes()];
    [
        length[0], length[1], kind[0], kind[1], 0, 0, 0, 0, 0, 0, 0, 9,
    ]
};

/// The messages of one operation, without those that begin and end the transaction.
fn sent<T>(family: Family, operation: Operation, decode: impl Fn(&Message<'_>) -> T) -> Vec<T> {
    let mut transaction = Transaction::new(family, "table".into());
    transaction.operations.push(operation);
    let batch = encode(&transaction, None, 1);
    let messages: Vec<_> = Messages::parse(&batch.bytes).collect();
    assert_eq!(messages[0].sequence, batch.first);
    let within = &messages[1..messages.len() - 1];
    assert_eq!(
        within.last().map(|message| message.sequence),
        Some(batch.last)
    );
    within.iter().map(decode).collect()
}

proptest! {
    #[test]
    fn rules_decode_to_themselves(
        family in select(vec![Family::Ipv4, Family::Ipv6]),
        chain in names(),
        expressions in vec(expressions(), 0..8),
        comment in option::of("[ -~]{1,127}".prop_map(Arc::from)),
    ) {
        let written = Rule { expressions, comment };
        let operation = Operation::AddRule { chain: Arc::clone(&chain), rule: written.clone() };
        let read = sent(family, operation, |message| rule(message, family));
        prop_assert_eq!(read, [Ok((chain, Ok(written)))]);
    }

    #[test]
    fn a_listed_rule_says_where_it_is_and_where_it_leads(
        chain in names(), verdict in verdicts(), comment in option::of("[ -~]{1,253}".prop_map(Arc::from)),
    ) {
        let target = match &verdict {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(Arc::clone(chain)),
            _ => None,
        };
        let expressions = vec![Expression::Counter, Expression::Immediate(verdict)];
        let written = Rule { expressions, comment };
        // A new rule has no handle; the operation that removes a rule has one.
        let removal = Operation::DeleteRule { chain: Arc::clone(&chain), handle: 7 };
        let removed = sent(Family::Ipv4, removal, |message| listed(message, Family::Ipv4).map(|rule| rule.map(|rule| rule.handle())));
        prop_assert_eq!(removed, [Ok(Some(7))]);
        let operation = Operation::InsertRule { chain: Arc::clone(&chain), rule: written.clone() };
        let read = sent(Family::Ipv4, operation, |message| {
            let payload = [message.payload, &HANDLE].concat();
            let message = Message { payload: &payload, ..*message };
            let rule = listed(&message, Family::Ipv4).expect("a chain and a handle").expect("its name is UTF-8");
            let target = rule.leads_to().map(Arc::from);
            (Arc::from(rule.chain()), rule.handle(), target, rule.decode())
        });
        prop_assert_eq!(read, [(chain, 9, target, Ok(written))]);
    }

    #[test]
    fn chains_decode_to_themselves(written in chains()) {
        let read = sent(Family::Ipv4, Operation::AddChain(written.clone()), chain);
        prop_assert_eq!(read, [Ok((Arc::clone(&written.name), Ok(written)))]);
    }

    #[test]
    fn flowtables_decode_to_themselves(name in names(), priority in any::<i32>(), device in option::of("[ -~]{1,15}")) {
        let written = Flowtable { name: Arc::clone(&name), priority };
        let devices: Option<Arc<str>> = device.map(Arc::from);
        let operation = match &devices {
            None => Operation::AddFlowtable(written.clone()),
            Some(device) => Operation::AddDevice { flowtable: written.clone(), device: Arc::clone(device) },
        };
        let read = sent(Family::Ipv4, operation, flowtable);
        prop_assert_eq!(read, [Ok((name, Ok((written, devices.into_iter().collect()))))]);
    }

    #[test]
    fn sets_decode_to_themselves(written in sets()) {
        let read = sent(Family::Ipv6, Operation::AddSet(written.clone()), set);
        prop_assert_eq!(read, [Ok((Arc::clone(&written.name), Ok(written)))]);
    }

    #[test]
    fn elements_decode_to_themselves_however_many(
        written in vec(elements_of_any_kind(), 1..40), repeat in 1usize..80, of in sets(),
    ) {
        let many: Vec<_> = written.iter().cycle().take(written.len() * repeat).cloned().collect();
        let operation = Operation::AddElements { set: Arc::new(of), elements: many.clone() };
        let lists = sent(Family::Ipv4, operation, elements);
        let lists: Result<Vec<_>, _> = lists.into_iter().collect();
        prop_assert_eq!(lists.map(|lists| lists.concat()), Ok(many));
    }

    #[test]
    fn whatever_is_received_decodes_to_something_or_an_error(bytes in vec(any::<u8>(), 0..400)) {
        for message in Messages::parse(&bytes) {
            decode_all(&message);
        }
        // The same bytes, at the place where a well-formed message has its attributes.
        let payload = [&[2, 0, 0, 0], bytes.as_slice()].concat();
        decode_all(&Message { kind: 0, flags: 0, sequence: 0, port: 0, payload: &payload });
        for (_, value) in Attributes::parse(&bytes) {
            prop_assert!(value.len() <= bytes.len());
        }
    }

    #[test]
    fn a_damaged_message_decodes_to_something_or_an_error(
        expressions in vec(expressions(), 1..6), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let mut transaction = Transaction::new(Family::Ipv4, "table".into());
        transaction.operations.push(Operation::AddRule { chain: "c".into(), rule: Rule { expressions, comment: None } });
        let mut bytes = encode(&transaction, None, 1).bytes;
        let at = at.index(bytes.len());
        bytes[at] = byte;
        for message in Messages::parse(&bytes) {
            decode_all(&message);
        }
    }
}

fn decode_all(message: &Message<'_>) {
    let _ = (
        table_state(message),
        chain(message),
        set(message),
        elements(message),
        flowtable(message),
    );
    let _ = (
        rule(message, Family::Ipv4),
        generation(message),
        message.errno(),
    );
}

/// Regression test: a chain such as `iptables-nft -t nat -N $'caf\xe9'` creates, or any program in
/// a legacy locale. One such chain made the whole table unreadable as long as it existed.
#[test]
fn a_name_that_is_not_utf_8_is_no_error() {
    let bad = |message: &Message<'_>| {
        let name = message
            .payload
            .windows(4)
            .position(|bytes| bytes == b"cafe");
        let at = name.expect("the name") + 3;
        let mut payload = message.payload.to_vec();
        payload[at] = 0xe9;
        [payload.as_slice(), &HANDLE].concat()
    };
    let chain = Operation::AddChain(Chain {
        name: "cafe".into(),
        hook: None,
    });
    let read = sent(Family::Ipv4, chain, |message| {
        let payload = bad(message);
        let damaged = Message {
            payload: &payload,
            ..*message
        };
        (
            foreign_chain(message).is_ok_and(|chain| chain.is_some()),
            foreign_chain(&damaged),
        )
    });
    assert_eq!(read, [(true, Ok(None))]);
    let rule = Operation::AddRule {
        chain: "cafe".into(),
        rule: Rule {
            expressions: vec![Expression::Immediate(Verdict::Jump("theirs".into()))],
            comment: None,
        },
    };
    let read = sent(Family::Ipv4, rule, |message| {
        let payload = bad(message);
        let message = Message {
            payload: &payload,
            ..*message
        };
        let is_listed = listed(&message, Family::Ipv4).map(|rule| rule.is_some());
        (is_listed, jump(&message, Family::Ipv4))
    });
    assert_eq!(read, [(Ok(false), Ok(None))]);
    let nameless = Message {
        kind: 0,
        flags: 0,
        sequence: 0,
        port: 0,
        payload: &[2, 0, 0, 0],
    };
    assert!(foreign_chain(&nameless).is_err(), "it has no name at all");
}

#[test]
fn a_transaction_begins_with_the_generation_that_it_is_for() {
    let mut transaction = Transaction::new(Family::Ipv4, "table".into());
    transaction.operations.push(Operation::AddTable);
    for generation in [None, Some(7)] {
        let batch = encode(&transaction, generation, 1);
        let messages = Messages::parse(&batch.bytes);
        let named: Vec<_> = messages
            .map(|message| message.attributes().u32(1))
            .collect();
        assert_eq!(named, [generation, None, None]);
    }
}

#[test]
fn a_transaction_prints_in_the_language_of_nft() {
    let mut transaction = Transaction::new(Family::Ipv4, "signpost".into());
    let services = Arc::new(Set {
        name: "services".into(),
        key: vec![DataType::Ipv4Address, DataType::Protocol, DataType::Service],
        content: SetContent::Verdicts,
        writer: SetWriter::Transactions,
    });
    let key = Bytes::new()
        .with(&[10, 96, 0, 10])
        .with(&[6])
        .with(&80u16.to_be_bytes());
    let verdict = ElementData::Verdict(Verdict::Goto("lb-2".into()));
    transaction.operations = vec![
        Operation::AddTable,
        Operation::AddSet(Set::clone(&services)),
        Operation::DeleteElements {
            set: Arc::clone(&services),
            keys: vec![key.clone()],
        },
        Operation::AddElements {
            set: services,
            elements: vec![(key, verdict)],
        },
    ];
    let expected = "add table ip signpost
add map ip signpost services { type ipv4_addr . inet_proto . inet_service : verdict }
delete element ip signpost services { 10.96.0.10 . tcp . 80 }
add element ip signpost services { 10.96.0.10 . tcp . 80 : goto lb-2 }
";
    assert_eq!(transaction.to_string(), expected);
}

proptest! {
    /// Keys stored inline and boxed, which differ in the first byte or in the last of many.
    #[test]
    fn keys_are_ordered_by_length_and_then_by_bytes(
        a in vec(any::<u8>(), 0..=10),
        other in vec(any::<u8>(), 0..=10),
        changed in option::of((any::<Index>(), any::<u8>())),
    ) {
        let b = match changed {
            Some((at, byte)) if !a.is_empty() => {
                let mut b = a.clone();
                b[at.index(a.len())] = byte;
                b
            }
            _ => other,
        };
        let bytes = |fields: &[u8]| fields.iter().fold(Bytes::new(), |key, field| key.with(&[*field]));
        let plain = |fields: &[u8]| {
            let padded: Vec<u8> = fields.iter().flat_map(|field| [*field, 0, 0, 0]).collect();
            (padded.len(), padded)
        };
        prop_assert_eq!(bytes(&a).cmp(&bytes(&b)), plain(&a).cmp(&plain(&b)));
        prop_assert_eq!(bytes(&a) == bytes(&b), a == b);
    }
}

/// A large cluster has a hundred thousand elements, and dual stack twice as many.
#[test]
fn an_element_of_a_service_is_one_line_of_cache() {
    assert_eq!(size_of::<(Bytes, ElementData)>(), 64);
    // A slot key with an IPv6 address, protocol and port; a key with two IPv6 addresses.
    let slot = Bytes::new().with(&[1; 16]).with(&[6]).with(&[0, 80]);
    let slot = slot.with(&[0; 4]);
    assert!(matches!(slot.0, Stored::Inline { .. }), "{slot:?}");
    let hairpin = Bytes::new().with(&[1; 16]).with(&[2; 16]).with(&[6]);
    assert!(matches!(hairpin.0, Stored::Boxed(_)), "{hairpin:?}");
    assert_eq!(
        hairpin.as_slice()[16..],
        [[2; 16].as_slice(), &[6, 0, 0, 0]].concat()
    );
    assert!(slot < hairpin, "shorter ones come first");
}

/// As another program may have added one to Signpost's table.
#[test]
fn a_flowtable_that_signpost_did_not_write_has_a_name_and_no_content() {
    let written = Flowtable {
        name: "services".into(),
        priority: 0,
    };
    let operation = Operation::AddDevice {
        flowtable: written.clone(),
        device: "eth0".into(),
    };
    let own = sent(Family::Ipv4, operation, |message| message.payload.to_vec());
    let read = |payload: &[u8]| {
        let message = Message {
            kind: 0,
            flags: 0,
            sequence: 0,
            port: 0,
            payload,
        };
        flowtable(&message).map(|(name, content)| (name.to_string(), content.is_ok()))
    };
    assert_eq!(read(&own[0]), Ok(("services".to_owned(), true)));
    // `flags offload`: NFTA_FLOWTABLE_FLAGS with NFT_FLOWTABLE_HW_OFFLOAD.
    let flags = [8_u16.to_ne_bytes(), 7_u16.to_ne_bytes()].concat();
    let offloaded = [own[0].as_slice(), &flags, &[0, 0, 0, 1]].concat();
    assert_eq!(read(&offloaded), Ok(("services".to_owned(), false)));
    // A name of a device in Latin-1.
    let at = own[0].windows(4).position(|bytes| bytes == b"eth0");
    let mut latin = own[0].clone();
    latin[at.expect("the device")] = 0xe9;
    assert_eq!(read(&latin), Ok(("services".to_owned(), false)));
}

#[test]
fn a_flowtable_prints_in_the_language_of_nft() {
    let flowtable = Flowtable {
        name: "services".into(),
        priority: 0,
    };
    let mut transaction = Transaction::new(Family::Ipv4, "signpost".into());
    transaction.operations = vec![
        Operation::AddFlowtable(flowtable.clone()),
        Operation::AddDevice {
            flowtable: flowtable.clone(),
            device: "eth0".into(),
        },
        Operation::DeleteDevice {
            flowtable,
            device: "veth1".into(),
        },
        Operation::DeleteFlowtable("services".into()),
    ];
    let expected = "add flowtable ip signpost services { hook ingress priority 0; }
add flowtable ip signpost services { devices = { eth0 } ; }
delete flowtable ip signpost services { devices = { veth1 } ; }
delete flowtable ip signpost services
";
    assert_eq!(transaction.to_string(), expected);
}

#[test]
fn a_label_prints_by_its_number() {
    let label = connection_label(93);
    assert_eq!(label.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    let rule = Rule {
        expressions: vec![
            Expression::Load {
                value: label.to_vec(),
                to: Register(0),
            },
            Expression::SetCt {
                key: SettableCtKey::Labels,
                from: Register(0),
            },
        ],
        comment: None,
    };
    assert_eq!(rule.to_string(), "ct label set 93");
}
