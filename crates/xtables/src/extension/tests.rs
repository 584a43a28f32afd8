//! Payloads as iptables writes them, and invalid payloads.

use proptest::prelude::*;

use super::*;
use crate::generate::{PROTOCOLS, matches, targets};

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hexadecimal[at..at + 2], 16);
    let bytes: Result<_, _> = (0..hexadecimal.len()).step_by(2).map(digit).collect();
    bytes.expect("hexadecimal digits")
}

/// The payloads that iptables 1.8.9 was observed to write on a little-endian machine, without
/// trailing zeros.
#[cfg(target_endian = "little")]
#[test]
fn what_iptables_writes_is_what_signpost_writes() {
    let matches: [(&str, Match, Option<Protocol>); 6] = [
        (
            "0000040000000000",
            Match::LocalAddress(PacketEnd::Destination),
            None,
        ),
        (
            "0400000000000000",
            Match::LocalAddress(PacketEnd::Source),
            None,
        ),
        (
            "0040000000400000",
            Match::Mark {
                value: 0x4000,
                mask: 0x4000,
            },
            None,
        ),
        (
            "0000ffff50005a00",
            Match::DestinationPorts {
                first: 80,
                last: 90,
            },
            Some(Protocol::Tcp),
        ),
        (
            "50005a00",
            Match::DestinationPorts {
                first: 80,
                last: 90,
            },
            Some(Protocol::Sctp),
        ),
        (
            "00000000abaaaa2a",
            Match::Random {
                probability: 0x2aaa_aaab,
            },
            None,
        ),
    ];
    for (expected, asked, protocol) in matches {
        let payload = encode_match(&asked, protocol).payload;
        assert!(
            payload.starts_with(&bytes(expected)),
            "{asked:?}: {payload:02x?}"
        );
    }
    let address = |text: &str| text.parse::<IpAddr>().expect("an address");
    let nat = |text| Target::DestinationNat {
        address: address(text),
        port: 8080,
    };
    let targets = [
        (
            Family::Ipv4,
            nat("10.2.3.4"),
            "030000000a0203040000000000000000000000000a0203040000000000000000000000001f901f9000000000",
        ),
        (
            Family::Ipv6,
            nat("fd01::5"),
            "03000000fd010000000000000000000000000005fd0100000000000000000000000000051f901f9000000000",
        ),
        (
            Family::Ipv4,
            Target::Masquerade,
            "0100000010000000000000000000000000000000",
        ),
        (
            Family::Ipv6,
            Target::Masquerade,
            "10000000000000000000000000000000000000000000000000000000000000000000000000000000",
        ),
        (
            Family::Ipv4,
            Target::Mark {
                value: 0,
                mask: 0x4000,
            },
            "0000000000400000",
        ),
        (Family::Ipv4, Target::Reject, "03000000"),
        (Family::Ipv6, Target::Reject, "04000000"),
    ];
    for (family, target, expected) in targets {
        let payload = encode_target(&target, family).expect("a module").payload;
        assert_eq!(payload, bytes(expected), "{target:?}");
    }
}

/// iptables writes the list's name over the default name and leaves the rest of that behind the
/// end.
#[test]
fn what_is_behind_the_end_of_a_name_means_nothing() {
    let asked = Match::Recent {
        list: "L1".into(),
        what: Recent::Set,
    };
    let mut written = encode_match(&asked, None);
    written.payload[RECENT_NAME..RECENT_NAME + 8].copy_from_slice(b"L1\0AULT\0");
    let read = decode_match("recent", 1, &written.payload, None);
    assert_eq!(read, Some(asked));
}

/// The kernel stores a pointer there, and iptables stores the probability again.
#[test]
fn what_is_behind_a_probability_means_nothing() {
    let asked = Match::Random { probability: 7 };
    let mut written = encode_match(&asked, None);
    written.payload[STATISTIC_RANDOM_END..].fill(0xa5);
    let read = decode_match("statistic", 0, &written.payload, None);
    assert_eq!(read, Some(asked));
}

/// A payload as the kernel returns it.
fn padded(mut payload: Vec<u8>) -> Vec<u8> {
    payload.resize(payload.len().next_multiple_of(8), 0);
    payload
}

proptest! {
    #[test]
    fn a_match_comes_back(asked in matches(), protocol in prop::sample::select(&PROTOCOLS)) {
        let Extension { name, revision, payload } = encode_match(&asked, Some(protocol));
        let read = |payload: &[u8]| decode_match(name, revision, payload, Some(protocol));
        prop_assert_eq!(read(&payload), Some(asked.clone()));
        prop_assert_eq!(read(&padded(payload)), Some(asked));
    }

    #[test]
    fn a_target_comes_back((family, target) in targets()) {
        let written = encode_target(&target, family).expect("a module");
        let Extension { name, revision, payload } = written;
        let read = |payload: &[u8]| decode_target(name, revision, payload, family);
        prop_assert_eq!(read(&payload), Some(target.clone()));
        prop_assert_eq!(read(&padded(payload)), Some(target));
    }

    #[test]
    fn a_comment_comes_back(comment in "[ -~]{0,255}") {
        let Extension { name, revision, payload } = encode_comment(&comment);
        prop_assert_eq!(decode_comment(name, revision, &payload), Some(comment));
    }

    /// Decoding a damaged payload fails or returns a different match: encoding the result gives the
    /// payload again.
    #[test]
    fn nothing_is_read_that_is_not_there(
        asked in matches(),
        protocol in prop::sample::select(&PROTOCOLS),
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
        length in any::<prop::sample::Index>(),
    ) {
        let written = encode_match(&asked, Some(protocol));
        let (name, revision) = (written.name, written.revision);
        let mut damaged = written.payload.clone();
        damaged[at.index(written.payload.len())] ^= flip;
        if let Some(read) = decode_match(name, revision, &damaged, Some(protocol)) {
            let again = encode_match(&read, Some(protocol)).payload;
            prop_assert_eq!(settled(name, &damaged), again);
        }
        let short = &written.payload[..length.index(written.payload.len())];
        prop_assert_eq!(decode_match(name, revision, short, Some(protocol)), None);
        let other = PROTOCOLS.into_iter().find(|other| *other != protocol);
        let of_other = decode_match(name, revision, &written.payload, other);
        let has_ports = matches!(asked, Match::DestinationPorts { .. });
        prop_assert_eq!(of_other, (!has_ports).then_some(asked.clone()));
        prop_assert_eq!(decode_match(name, revision + 1, &written.payload, Some(protocol)), None);
    }

    #[test]
    fn no_target_is_read_that_is_not_there(
        (family, target) in targets(),
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
        length in any::<prop::sample::Index>(),
    ) {
        let written = encode_target(&target, family).expect("a module");
        let (name, revision) = (written.name, written.revision);
        let mut damaged = written.payload.clone();
        damaged[at.index(written.payload.len())] ^= flip;
        if let Some(read) = decode_target(name, revision, &damaged, family) {
            let again = encode_target(&read, family).expect("a module").payload;
            prop_assert_eq!(damaged, again);
        }
        let short = &written.payload[..length.index(written.payload.len())];
        prop_assert_eq!(decode_target(name, revision, short, family), None);
        prop_assert_eq!(decode_target(name, revision + 1, &written.payload, family), None);
    }
}
