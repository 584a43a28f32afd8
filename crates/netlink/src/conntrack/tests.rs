use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::codec::{decode, encode_deletion, encode_dump, encode_listing};
use super::*;
use crate::wire::{Message, Messages};

fn message(bytes: &[u8]) -> Message<'_> {
    let mut messages = Messages::parse(bytes);
    let message = messages.next().expect("one message");
    assert!(messages.next().is_none(), "one message, and no second");
    message
}

fn protocols() -> impl Strategy<Value = Protocol> {
    prop_oneof![
        Just(Protocol::Tcp),
        Just(Protocol::Udp),
        Just(Protocol::Sctp)
    ]
}

fn tuples(family: Family) -> BoxedStrategy<Tuple> {
    let address = match family {
        Family::Ipv4 => any::<Ipv4Addr>().prop_map(IpAddr::V4).boxed(),
        Family::Ipv6 => any::<Ipv6Addr>().prop_map(IpAddr::V6).boxed(),
    };
    let end = (address, any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port));
    (end.clone(), end)
        .prop_map(|(source, destination)| Tuple {
            source,
            destination,
        })
        .boxed()
}

fn flows() -> impl Strategy<Value = Flow> {
    let family = prop_oneof![Just(Family::Ipv4), Just(Family::Ipv6)];
    let of_family = |family| (tuples(family), tuples(family));
    (
        family.prop_flat_map(of_family),
        protocols(),
        any::<[u32; 2]>(),
        any::<u16>(),
    )
        .prop_map(|((original, reply), protocol, [status, id], zone)| Flow {
            protocol,
            original,
            reply,
            status: Status(status),
            zone,
            id,
        })
}

proptest! {
    #[test]
    fn a_flow_reads_back_as_it_was_listed(flow in flows()) {
        let bytes = encode_listing(&flow, 7);
        prop_assert_eq!(decode(&message(&bytes)), Ok(Some(flow)));
    }

    #[test]
    fn nothing_the_kernel_could_send_is_more_than_an_error(payload: Vec<u8>) {
        let message = Message { kind: 256, flags: 0, sequence: 0, port: 0, payload: &payload };
        let _ = decode(&message);
    }

    /// Nearly valid input: a truncated flow, or one with a changed byte, gets further into the
    /// decoder.
    #[test]
    fn a_damaged_flow_is_an_error_or_another_flow(
        flow in flows(), at: prop::sample::Index, byte: u8, length: prop::sample::Index,
    ) {
        let mut bytes = encode_listing(&flow, 7);
        let damaged = at.index(bytes.len());
        bytes[damaged] = byte;
        for message in Messages::parse(&bytes[..length.index(bytes.len())]) {
            let _ = decode(&message);
        }
        for message in Messages::parse(&bytes) {
            let _ = decode(&message);
        }
    }

    /// A deletion without a tuple would delete every flow in the table.
    #[test]
    fn a_deletion_names_its_flow(flow in flows()) {
        let bytes = encode_deletion(&flow, 7);
        let message = message(&bytes);
        let original = message.attributes().nested(1).expect("CTA_TUPLE_ORIG");
        prop_assert!(original.nested(1).is_some_and(|addresses| addresses.count() == 2));
        prop_assert!(original.nested(2).is_some_and(|transport| transport.count() == 3));
        prop_assert_eq!(message.attributes().u32(12), Some(flow.id));
    }
}

#[test]
fn icmp_is_passed_over() {
    let flow = Flow {
        protocol: Protocol::Udp,
        original: Tuple {
            source: ([10, 0, 1, 9], 4000).into(),
            destination: ([10, 96, 0, 53], 53).into(),
        },
        reply: Tuple {
            source: ([10, 0, 1, 5], 5353).into(),
            destination: ([10, 0, 1, 9], 4000).into(),
        },
        status: Status::of(&[Status::SEEN_REPLY, Status::DST_NAT]),
        zone: 0,
        id: 1,
    };
    assert_eq!(
        flow.to_string(),
        "udp 10.0.1.9:4000 -> 10.96.0.53:53, answered from 10.0.1.5:5353"
    );
    let mut bytes = encode_listing(&flow, 7);
    let udp = [5, 0, 1, 0, 17];
    let at = bytes.windows(5).position(|window| window == udp);
    bytes[at.expect("CTA_PROTO_NUM") + 4] = 1;
    assert_eq!(decode(&message(&bytes)), Ok(None));
}

#[test]
fn a_filter_asks_for_one_protocol_and_for_what_was_never_answered() {
    let filter = Filter {
        family: Family::Ipv4,
        protocol: Protocol::Tcp,
        answers: Answers::None,
    };
    let bytes = encode_dump(&filter, 7);
    let attributes = message(&bytes).attributes();
    assert_eq!(attributes.u32(3), Some(0), "no bit of");
    assert_eq!(attributes.u32(26), Some(2), "IPS_SEEN_REPLY");
    let any = Filter {
        answers: Answers::Any,
        ..filter
    };
    let bytes = encode_dump(&any, 7);
    assert_eq!(message(&bytes).attributes().u32(3), None);
}

/// A flow decoded from damaged bytes must be the one that these bytes list.
#[test]
fn whatever_is_listed_is_an_error_or_reads_the_same_again() {
    let flows = std::cell::Cell::new(0);
    crate::hostile::for_every_input(|bytes| {
        for listed in Messages::parse(bytes) {
            if let Ok(Some(flow)) = decode(&listed) {
                flows.set(flows.get() + 1);
                let written = encode_listing(&flow, 7);
                assert_eq!(decode(&message(&written)), Ok(Some(flow)));
            }
        }
    });
    assert!(flows.get() > 0, "the recorded ones have some");
}
