//! Written messages name a reserved mark and nothing else; listed objects decode to what was
//! written; and every other input is at most an error.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use rustix::io::Errno;

use super::decode::Listed;
use super::encode::{attribute, command, counter, destination, service};
use super::*;
use crate::generic::{FamilyId, QueryError};
use crate::wire::{Message, Messages, Writer};

const RANGE: MarkRange = MarkRange::new(0x5340_0000, 20).expect("the low bits are 0");

fn families() -> impl Strategy<Value = Family> {
    select(vec![Family::Ipv4, Family::Ipv6])
}

fn keys() -> impl Strategy<Value = VirtualServerKey> {
    (families(), 0..(1_u32 << 20) - 1).prop_map(|(family, number)| VirtualServerKey {
        family,
        mark: RANGE.mark(number).expect("it is within the range"),
    })
}

fn servers() -> impl Strategy<Value = VirtualServer> {
    let flags =
        any::<u32>().prop_map(|bits| VirtualServerFlags(bits & !VirtualServerFlags::HASHED));
    ("[a-z][a-z0-9_-]{0,14}", flags).prop_map(|(name, flags)| VirtualServer {
        scheduler: SchedulerName::new(&name).expect("a name that a scheduler can have"),
        flags,
    })
}

fn addresses(family: Family) -> BoxedStrategy<SocketAddr> {
    let ip = match family {
        Family::Ipv4 => any::<Ipv4Addr>().prop_map(IpAddr::V4).boxed(),
        Family::Ipv6 => any::<Ipv6Addr>().prop_map(IpAddr::V6).boxed(),
    };
    (ip, any::<u16>())
        .prop_map(|(ip, port)| SocketAddr::new(ip, port))
        .boxed()
}

fn destinations() -> impl Strategy<Value = Destination> {
    let forwardings = select(vec![
        Forwarding::Masquerade,
        Forwarding::Local,
        Forwarding::Tunnel,
        Forwarding::Route,
        Forwarding::Bypass,
    ]);
    (forwardings, any::<[u32; 3]>()).prop_map(|(forwarding, [weight, upper, lower])| Destination {
        forwarding,
        weight: Weight(weight),
        thresholds: Thresholds { upper, lower },
    })
}

fn operations() -> impl Strategy<Value = Operation> {
    let behind = || keys().prop_flat_map(|key| (Just(key), addresses(key.family), destinations()));
    prop_oneof![
        (keys(), servers()).prop_map(|(key, server)| Operation::AddVirtualServer { key, server }),
        (keys(), servers()).prop_map(|(key, server)| Operation::SetVirtualServer { key, server }),
        keys().prop_map(|key| Operation::RemoveVirtualServer { key }),
        behind().prop_map(|(key, address, destination)| Operation::AddDestination {
            key,
            address,
            destination,
        }),
        behind().prop_map(|(key, address, destination)| Operation::SetDestination {
            key,
            address,
            destination,
        }),
        behind().prop_map(|(key, address, _)| Operation::RemoveDestination { key, address }),
    ]
}

fn encode_all(operations: &[Operation]) -> Vec<Vec<u8>> {
    let (mut sends, mut done, mut sequence) = (Vec::new(), 0, 1);
    while done < operations.len() {
        let (bytes, count) = encode::batch(&operations[done..], FamilyId(30), sequence);
        sends.push(bytes);
        done += count;
        sequence += u32::try_from(count).expect("a test has few");
    }
    sends
}

/// Encodes a virtual server, or a destination, or both, as the kernel lists them: the same
/// attributes as a write, and the connection counts (`ip_vs_genl_fill_service`,
/// `ip_vs_genl_fill_dest`).
fn listing(operation: &Operation, [active, inactive]: [u32; 2]) -> Vec<u8> {
    let mut bytes = encode_all(std::slice::from_ref(operation)).concat();
    if matches!(operation, Operation::AddDestination { .. }) {
        // Append to the nested attribute, which is the last one of the message.
        let mut writer = Writer::default();
        writer.native_u32(destination::ACTIVE, active);
        writer.native_u32(destination::INACTIVE, inactive);
        let more = writer.into_bytes();
        let message = Messages::parse(&bytes).next().expect("one message");
        let server = message.attributes().get(attribute::SERVICE);
        let nested = 16 + 4 + 4 + server.expect("it names its server").len();
        let grown = u16::from_ne_bytes([bytes[nested], bytes[nested + 1]])
            + u16::try_from(more.len()).expect("two numbers");
        bytes[nested..nested + 2].copy_from_slice(&grown.to_ne_bytes());
        bytes.extend(more);
        let length = u32::try_from(bytes.len()).expect("a short message");
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
    }
    bytes
}

fn message(bytes: &[u8]) -> Message<'_> {
    let mut messages = Messages::parse(bytes);
    let message = messages.next().expect("one message");
    assert!(messages.next().is_none(), "one message, and no second");
    message
}

/// A listing of a virtual server with these attributes.
fn listed_server(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    let open = writer.begin_generic(30, 0, 1, command::NEW_SERVICE, 1);
    let nested = writer.nest(attribute::SERVICE);
    write(&mut writer);
    writer.close(nested);
    writer.end(open);
    writer.into_bytes()
}

#[test]
fn the_connections_that_a_virtual_server_has_had_are_read_from_its_counters() {
    let bytes = listed_server(|writer| {
        let counters = writer.nest(service::COUNTERS);
        writer.native_u32(counter::CONNECTIONS, 7);
        writer.native_u32(counter::CONNECTIONS + 1, 70);
        writer.close(counters);
    });
    assert_eq!(decode::connections_ever(&message(&bytes)), 7);
    let silent = listed_server(|writer| writer.native_u16(service::FAMILY, 2));
    assert_eq!(decode::connections_ever(&message(&silent)), 0);
}

fn decode_all(bytes: &[u8]) -> usize {
    let mut objects = 0;
    for message in Messages::parse(bytes) {
        for family in [Family::Ipv4, Family::Ipv6] {
            let destination = decode::destination(&message, family);
            objects += usize::from(destination.is_ok());
        }
        let server = decode::virtual_server(&message, RANGE);
        if let Ok(Listed::Own(key, _)) = &server {
            assert!(RANGE.contains(key.mark.value()));
        }
        objects += usize::from(server.is_ok());
        objects += usize::from(decode::timeouts(&message).is_ok());
        let _ = crate::generic::family_id(&message);
    }
    objects
}

proptest! {
    /// The law that protects other programs' virtual servers: every message identifies its virtual
    /// server by a reserved mark and by nothing else.
    #[test]
    fn t100_every_message_is_about_a_reserved_mark(operations in vec(operations(), 1..40)) {
        let changes = [
            command::NEW_SERVICE, command::SET_SERVICE, command::DELETE_SERVICE,
            command::NEW_DESTINATION, command::SET_DESTINATION, command::DELETE_DESTINATION,
        ];
        let sends = encode_all(&operations);
        let messages: Vec<_> = sends.iter().flat_map(|bytes| Messages::parse(bytes)).collect();
        prop_assert_eq!(messages.len(), operations.len());
        for (message, operation) in messages.iter().zip(&operations) {
            prop_assert!(message.command().is_some_and(|command| changes.contains(&command)));
            let server = message.attributes().nested(attribute::SERVICE).expect("each names one");
            prop_assert_eq!(server.native_u32(service::MARK), Some(operation.key().mark.value()));
            prop_assert!(RANGE.contains(operation.key().mark.value()));
            for foreign in [service::ADDRESS, service::PORT, service::PROTOCOL] {
                prop_assert!(server.get(foreign).is_none());
            }
        }
    }

    #[test]
    fn a_virtual_server_reads_back_as_it_was_written(key in keys(), server in servers()) {
        let operation = Operation::AddVirtualServer { key, server: server.clone() };
        let bytes = listing(&operation, [0, 0]);
        let read = decode::virtual_server(&message(&bytes), RANGE).expect("written here");
        prop_assert_eq!(read, Listed::Own(key, server));
    }

    #[test]
    fn a_destination_reads_back_as_it_was_written(
        (key, address) in keys().prop_flat_map(|key| (Just(key), addresses(key.family))),
        destination in destinations(),
        connections: [u32; 2],
    ) {
        let operation = Operation::AddDestination { key, address, destination };
        let bytes = listing(&operation, connections);
        let read = decode::destination(&message(&bytes), key.family).expect("written here");
        let [active, inactive] = connections;
        prop_assert_eq!(read, (address, (destination, Connections { active, inactive })));
    }

    #[test]
    fn timeouts_read_back_as_they_were_written(given in [1_u32.., 1.., 1..]) {
        let seconds = |at: usize| Seconds(NonZeroU32::new(given[at]).expect("above 0"));
        let timeouts = Timeouts { tcp: seconds(0), tcp_fin: seconds(1), udp: seconds(2) };
        let bytes = encode::set_timeouts(timeouts, FamilyId(30), 1);
        prop_assert_eq!(decode::timeouts(&message(&bytes)).expect("written here"), timeouts);
    }

    #[test]
    fn a_damaged_listing_is_an_error_or_another_object(
        operation in operations(), at: Index, byte: u8, length: Index,
    ) {
        let mut bytes = listing(&operation, [1, 2]);
        let damaged = at.index(bytes.len());
        bytes[damaged] = byte;
        decode_all(&bytes[..length.index(bytes.len())]);
        decode_all(&bytes);
    }

    #[test]
    fn nothing_the_kernel_could_send_is_more_than_an_error(payload: Vec<u8>) {
        let mut bytes = listed_server(|_| {});
        bytes.extend(&payload);
        let length = u32::try_from(bytes.len()).expect("a short message");
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        decode_all(&bytes);
    }

    /// Each number has a distinct mark, 0 (the mark of unmarked packets) is not among them, and the
    /// last mark is kept for the scheduler check.
    #[test]
    fn a_range_has_a_mark_for_each_number(first: u32, bits in 0_u8..40, number: u32) {
        let low = u32::MAX.checked_shr(32 - u32::from(bits.min(32))).unwrap_or(0);
        let range = MarkRange::new(first, bits);
        prop_assert_eq!(range.is_some(), (1..=31).contains(&bits) && first != 0 && first & low == 0);
        if let Some(range) = range {
            let mark = range.mark(number);
            prop_assert_eq!(mark.is_some(), number < low);
            if let Some(mark) = mark {
                prop_assert_eq!(mark.value(), first + number);
                prop_assert_eq!(mark.value() & range.mask(), range.first().value());
                prop_assert_eq!(range.number(mark), Some(number));
                prop_assert_ne!(mark, range.last());
            }
            prop_assert_eq!(range.number(range.last()), None);
        }
    }
}

/// A much larger send would make the kernel reply with more than the receive buffer holds.
#[test]
fn many_operations_go_in_few_sends_of_bounded_length() {
    let key = VirtualServerKey {
        family: Family::Ipv6,
        mark: RANGE.mark(7).expect("it is within the range"),
    };
    let add = |number: u16| Operation::AddDestination {
        key,
        address: SocketAddr::new(Ipv6Addr::LOCALHOST.into(), number),
        destination: Destination {
            forwarding: Forwarding::Masquerade,
            weight: Weight(1),
            thresholds: Thresholds::default(),
        },
    };
    let operations: Vec<_> = (1..=50_000).map(add).collect();
    let sends = encode_all(&operations);
    let messages = sends.iter().map(|bytes| Messages::parse(bytes).count());
    assert_eq!(messages.sum::<usize>(), operations.len());
    assert!(sends.iter().all(|bytes| bytes.len() < 65 << 10));
    assert!(sends.len() < 120, "{}", sends.len());
}

/// Virtual servers as `ipvsadm` creates them: none is in the range, and each prints the way
/// administrators identify it.
#[test]
fn what_others_have_is_distinguished_from_what_is_reserved() {
    let foreign = |bytes: Vec<u8>| match decode::virtual_server(&message(&bytes), RANGE) {
        Ok(Listed::Foreign(foreign)) => foreign.to_string(),
        other => panic!("{other:?}"),
    };
    let marked = |family: u16, mark: u32| {
        foreign(listed_server(|writer| {
            writer.native_u16(service::FAMILY, family);
            writer.native_u32(service::MARK, mark);
        }))
    };
    assert_eq!(marked(2, 0x533f_ffff), "FWM 1396703231");
    assert_eq!(marked(10, 0x5350_0000), "FWM 1397751808 IPv6");
    let addressed = foreign(listed_server(|writer| {
        writer.native_u16(service::FAMILY, 2);
        writer.native_u16(service::PROTOCOL, 6);
        let mut union = vec![192, 0, 2, 1];
        union.resize(16, 0);
        writer.bytes(service::ADDRESS, &union);
        writer.bytes(service::PORT, &80_u16.to_be_bytes());
    }));
    assert_eq!(addressed, "TCP 192.0.2.1:80");
}

#[test]
fn an_operation_prints_as_ipvsadm_takes_it() {
    let key = |family| VirtualServerKey {
        family,
        mark: RANGE.mark(7).expect("it is within the range"),
    };
    let add = Operation::AddVirtualServer {
        key: key(Family::Ipv6),
        server: VirtualServer {
            scheduler: SchedulerName::new("mh").expect("a name"),
            flags: VirtualServerFlags::of(&[
                VirtualServerFlags::FALLBACK,
                VirtualServerFlags::HASH_PORT,
            ]),
        },
    };
    assert_eq!(
        add.to_string(),
        "-A -f 1396703239 -6 -s mh -b flag-1,flag-2"
    );
    let drain = Operation::SetDestination {
        key: key(Family::Ipv4),
        address: ([10, 0, 1, 5], 8080).into(),
        destination: Destination {
            forwarding: Forwarding::Masquerade,
            weight: Weight::DRAINING,
            thresholds: Thresholds::default(),
        },
    };
    assert_eq!(
        drain.to_string(),
        "-e -f 1396703239 -r 10.0.1.5:8080 -m -w 0"
    );
}

/// The name becomes part of the name of a module that the kernel requests.
#[test]
fn a_scheduler_has_a_name_that_a_module_can_have() {
    for name in ["rr", "wlc", "lblcr", "a23456789012345"] {
        assert!(SchedulerName::new(name).is_some(), "{name}");
    }
    for name in ["", "a234567890123456", "r r", "../x", "r\u{0}", "\u{e9}"] {
        assert!(SchedulerName::new(name).is_none(), "{name}");
    }
}

#[test]
fn every_errno_says_what_to_do_next() {
    let key = VirtualServerKey {
        family: Family::Ipv4,
        mark: RANGE.mark(7).expect("it is within the range"),
    };
    let server = VirtualServer {
        scheduler: SchedulerName::new("wrr").expect("a name"),
        flags: VirtualServerFlags::default(),
    };
    let address = ([10, 0, 1, 5], 8080).into();
    let add = Operation::AddVirtualServer { key, server };
    let remove = Operation::RemoveDestination { key, address };
    let recovery = |operation: &Operation, errno: Errno| {
        let source = errno.into();
        let operation = operation.clone();
        let refused = RefusedOperation {
            index: 0,
            operation,
            source,
        };
        let one = refused.recovery();
        let all = CommitError::Refused {
            refused: vec![refused],
            answered: 1,
        };
        assert_eq!(all.recovery(), one);
        one
    };
    let module = |name: &str| Recovery::LoadModule(name.to_owned());
    assert_eq!(recovery(&add, Errno::NOENT), module("ip_vs_wrr"));
    assert_eq!(recovery(&remove, Errno::NOENT), Recovery::Observe);
    for operation in [&add, &remove] {
        let expected = [
            (Errno::EXIST, Recovery::Observe),
            (Errno::SRCH, Recovery::Observe),
            (Errno::NOMEM, Recovery::Retry),
            (Errno::BUSY, Recovery::Retry),
            (Errno::INVAL, Recovery::Isolate),
            (Errno::RANGE, Recovery::Isolate),
            (Errno::IO, Recovery::Isolate),
            (Errno::PERM, Recovery::Halt),
            (Errno::AFNOSUPPORT, Recovery::Halt),
        ];
        for (errno, expected) in expected {
            assert_eq!(recovery(operation, errno), expected, "{operation}: {errno}");
        }
    }
    assert_eq!(CommitError::Missing.recovery(), module("ip_vs"));
    let refused = |errno: Errno| QueryError::Refused {
        what: "virtual servers",
        source: errno.into(),
    };
    assert_eq!(refused(Errno::PERM).recovery(), Recovery::Halt);
    assert_eq!(refused(Errno::NOMEM).recovery(), Recovery::Retry);
    assert_eq!(refused(Errno::INVAL).recovery(), Recovery::Observe);
}

/// Also on a kernel without IPVS: the kernel is not even asked.
#[test]
fn t100_a_mark_of_another_range_is_not_written() {
    let elsewhere = MarkRange::new(0x10_0000, 20).expect("the low bits are 0");
    let mut socket = IpvsSocket::open(RANGE).expect("any process may open one");
    let key = VirtualServerKey {
        family: Family::Ipv4,
        mark: elsewhere.mark(1).expect("it is within that range"),
    };
    let outcome = socket.commit(&[Operation::RemoveVirtualServer { key }]);
    assert!(
        matches!(outcome, Err(CommitError::Unreserved(_))),
        "{outcome:?}"
    );
}

#[test]
fn whatever_is_listed_is_read_or_is_an_error() {
    let objects = Cell::new(0);
    crate::hostile::for_every_input(|bytes| {
        let found = decode_all(bytes);
        assert!(found <= 4 * (bytes.len() / 16));
        objects.set(objects.get() + found);
    });
    assert!(objects.get() > 0, "the recorded ones have some");
}

/// Recorded on Linux 6.1: two virtual servers of the range with three destinations each, and two of
/// other programs.
#[test]
fn what_a_kernel_has_listed_is_read() {
    let recorded = |name: &str| {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
        std::fs::read(folder.join(name)).expect("it is recorded")
    };
    let listed = |name| {
        let bytes = recorded(name);
        // `NLMSG_DONE` ends each recording.
        let messages = Messages::parse(&bytes).filter(|message| message.kind != 3);
        let read = |message| decode::virtual_server(&message, RANGE).expect("legible");
        messages.map(read).collect::<Vec<_>>()
    };
    let servers = listed("virtual-servers-6.1");
    let key = |family| VirtualServerKey {
        family,
        mark: RANGE.mark(7).expect("it is within the range"),
    };
    let server = VirtualServer {
        scheduler: SchedulerName::new("mh").expect("a name"),
        flags: VirtualServerFlags::FALLBACK,
    };
    let foreign = |family| {
        let mark = 0x10_0005;
        Listed::Foreign(ForeignVirtualServer::Mark { family, mark })
    };
    assert_eq!(servers.len(), 4, "{servers:?}");
    for family in [Family::Ipv4, Family::Ipv6] {
        assert!(servers.contains(&Listed::Own(key(family), server.clone())));
        assert!(servers.contains(&foreign(family)));
    }
    for (name, family) in [
        ("destinations-ip-6.1", Family::Ipv4),
        ("destinations-ip6-6.1", Family::Ipv6),
    ] {
        let bytes = recorded(name);
        let messages = Messages::parse(&bytes).filter(|message| message.kind != 3);
        let read = |message| decode::destination(&message, family).expect("legible");
        let found: Destinations = messages.map(read).collect();
        let weights: Vec<_> = found.values().map(|(what, _)| what.weight.0).collect();
        assert_eq!(weights, [0, 1, 2]);
    }
    let bytes = recorded("timeouts-6.1");
    let first = Messages::parse(&bytes).next().expect("one message");
    let timeouts = decode::timeouts(&first).expect("legible");
    assert_eq!(timeouts.tcp.0.get(), 900);
}
