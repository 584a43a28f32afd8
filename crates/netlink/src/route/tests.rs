use super::codec::{self, Verb};
use super::*;
use crate::generic::QueryError;
use crate::hostile::for_every_input;
use crate::wire::{Message, Messages, Writer};
use address::Family;
use rustix::io::Errno;

const DELIVERY: LocalDelivery = LocalDelivery {
    mark: 0x5340_0000,
    mask: 0xfff0_0000,
    table: 0x5340_0000,
    priority: 83,
};

fn only(bytes: &[u8]) -> Message<'_> {
    Messages::parse(bytes).next().expect("a message")
}

/// Failure story T346: the agent reported a removed route, and wrote it again.
#[test]
fn t346_a_kernel_without_memory_for_an_answer_has_not_said_that_a_route_is_gone() {
    let answer = |errno: Errno| {
        let what = "routes";
        let source = errno.into();
        socket::beside_rule(Err(QueryError::Refused { what, source }))
    };
    for errno in [Errno::NOBUFS, Errno::NOMEM] {
        assert!(answer(errno).is_err(), "{errno}");
    }
    for errno in [Errno::NETUNREACH, Errno::HOSTUNREACH, Errno::SRCH] {
        let found = answer(errno).expect("the kernel knows no route");
        assert_eq!(found, Presence::Partial, "{errno}");
    }
    let found = |is_there| socket::beside_rule(Ok(is_there)).expect("it is an answer");
    assert_eq!(
        [true, false].map(found),
        [Presence::Whole, Presence::Partial]
    );
}

/// The kernel lists a rule in the same form as a request adds it.
#[test]
fn a_rule_is_found_by_all_that_it_consists_of() {
    let bytes = codec::rule(Verb::Add, Family::Ipv4, &DELIVERY, 1);
    let is_found = |family, delivery: &LocalDelivery| {
        codec::is_rule_of(&only(&bytes), family, delivery).expect("it is legible")
    };
    assert!(is_found(Family::Ipv4, &DELIVERY));
    assert!(!is_found(Family::Ipv6, &DELIVERY));
    let others = [
        LocalDelivery {
            mark: 0x5350_0000,
            ..DELIVERY
        },
        LocalDelivery {
            mask: 0xffe0_0000,
            ..DELIVERY
        },
        LocalDelivery {
            table: 254,
            ..DELIVERY
        },
        LocalDelivery {
            priority: 84,
            ..DELIVERY
        },
    ];
    for other in others {
        assert!(!is_found(Family::Ipv4, &other), "{other}");
    }
    // An inverted mark, and a rule that applies only to packets from one interface.
    let mut inverted = bytes.clone();
    inverted[16 + 8] |= 2;
    let found = codec::is_rule_of(&only(&inverted), Family::Ipv4, &DELIVERY);
    assert!(!found.expect("it is legible"));
    let mut narrower = bytes.clone();
    narrower.extend([8, 0, 3, 0, b'l', b'o', 0, 0]);
    let length = u32::try_from(narrower.len()).expect("it is short");
    narrower[..4].copy_from_slice(&length.to_ne_bytes());
    let found = codec::is_rule_of(&only(&narrower), Family::Ipv4, &DELIVERY);
    assert!(!found.expect("it is legible"));
}

#[test]
fn a_route_is_found_by_its_table_and_type() {
    let bytes = codec::route(Verb::Add, Family::Ipv6, &DELIVERY, 1);
    let is_found = |bytes: &[u8], delivery: &LocalDelivery| {
        codec::is_route_of(&only(bytes), delivery).expect("it is legible")
    };
    assert!(is_found(&bytes, &DELIVERY));
    let elsewhere = LocalDelivery {
        table: 254,
        ..DELIVERY
    };
    assert!(!is_found(&bytes, &elsewhere));
    let mut unicast = bytes.clone();
    unicast[16 + 7] = 1;
    assert!(!is_found(&unicast, &DELIVERY));
}

#[test]
fn the_broadcast_addresses_of_networks_are_known() {
    let found = |length: u8, attributes: &[(u16, [u8; 4])]| {
        let mut writer = Writer::default();
        let header = [2, length, 0, 0, 1, 0, 0, 0];
        let message = writer.begin_route(codec::NEW_ADDRESS, 0, 1, header);
        for (kind, octets) in attributes {
            writer.bytes(*kind, octets);
        }
        writer.end(message);
        let bytes = writer.into_bytes();
        let found = codec::broadcast_addresses(&only(&bytes)).expect("it is legible");
        found.map(|address| address.map(|address| address.to_string()))
    };
    let last = |text: &str| [Some(text.to_owned()), None];
    let address = (1, [10, 0, 1, 5]);
    assert_eq!(found(24, &[address]), last("10.0.1.255"));
    assert_eq!(found(30, &[address]), last("10.0.1.7"));
    assert_eq!(found(0, &[address]), last("255.255.255.255"));
    for alone in [31, 32] {
        assert_eq!(found(alone, &[address]), [None, None]);
    }
    let set = found(24, &[address, (4, [10, 0, 1, 9])]);
    assert_eq!(set, [Some("10.0.1.255".into()), Some("10.0.1.9".into())]);
}

#[test]
fn damaged_messages_are_no_more_than_an_error() {
    for_every_input(|bytes| {
        for message in Messages::parse(bytes) {
            let _rule = codec::is_rule_of(&message, Family::Ipv4, &DELIVERY);
            let _route = codec::is_route_of(&message, &DELIVERY);
            let _addresses = codec::broadcast_addresses(&message);
        }
    });
}
