//! Random rules of all forms that Signpost writes.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::{
    AddressMatch, Family, InterfaceMatch, Match, PacketEnd, Protocol, Recent, Rule, States, Target,
};

/// All protocols.
pub(crate) const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// Any rule of a family.
pub(crate) fn rules(family: Family) -> impl Strategy<Value = Rule> {
    let addresses = || option::of(address_matches(family));
    let interfaces = ("[a-z][a-z0-9.-]{0,14}", any::<bool>(), any::<bool>()).prop_map(
        |(name, is_prefix, inverted)| InterfaceMatch {
            name: name.into(),
            is_prefix,
            inverted,
        },
    );
    let comments = "[ !#-~]{1,255}".prop_map(Arc::from);
    (
        (addresses(), addresses(), option::of(interfaces)),
        option::of(prop::sample::select(&PROTOCOLS)),
        vec(matches(), 0..4),
        any_target(family),
        option::of(comments),
    )
        .prop_map(
            |((source, destination, input), protocol, mut matches, target, comment)| {
                // A match of ports needs a protocol.
                matches.retain(|asked| {
                    protocol.is_some() || !matches!(asked, Match::DestinationPorts { .. })
                });
                Rule {
                    source,
                    destination,
                    input,
                    protocol,
                    matches,
                    target,
                    comment,
                }
            },
        )
}

fn addresses(family: Family) -> impl Strategy<Value = IpAddr> {
    any::<[u8; 16]>().prop_map(move |octets| match family {
        Family::Ipv4 => IpAddr::from([octets[0], octets[1], octets[2], octets[3]]),
        Family::Ipv6 => IpAddr::from(octets),
    })
}

fn address_matches(family: Family) -> impl Strategy<Value = AddressMatch> {
    let longest: u8 = match family {
        Family::Ipv4 => 32,
        Family::Ipv6 => 128,
    };
    (addresses(family), 0..=longest, any::<bool>()).prop_map(|(address, length, inverted)| {
        let range = IpNet::new(address, length).expect("a length of this family");
        AddressMatch {
            inverted,
            ..AddressMatch::within(range)
        }
    })
}

fn any_target(family: Family) -> impl Strategy<Value = Target> {
    let chains = || "SIGNPOST-[A-Z0-9]{1,19}".prop_map(Arc::from);
    prop_oneof![
        Just(Target::Accept),
        Just(Target::Drop),
        Just(Target::Return),
        chains().prop_map(Target::Jump),
        chains().prop_map(Target::Goto),
        module_targets(family),
    ]
}

/// Matches for a rule of any protocol.
pub(crate) fn matches() -> impl Strategy<Value = Match> {
    let states = any::<u16>().prop_map(|states| Match::ConnectionState(States(states)));
    let what = prop_oneof![
        Just(Recent::Set),
        (1u32..).prop_map(|seconds| Recent::Check { seconds })
    ];
    prop_oneof![
        (any::<u16>(), any::<u16>()).prop_map(|(a, b)| Match::DestinationPorts {
            first: a.min(b),
            last: a.max(b),
        }),
        prop_oneof![Just(PacketEnd::Source), Just(PacketEnd::Destination)]
            .prop_map(Match::LocalAddress),
        states,
        Just(Match::UnconfirmedConnection),
        (any::<u32>(), any::<u32>()).prop_map(|(value, mask)| Match::Mark { value, mask }),
        ("[A-Za-z0-9_-]{1,199}", what).prop_map(|(list, what)| Match::Recent {
            list: list.into(),
            what,
        }),
        (0..=Match::CERTAIN).prop_map(|probability| Match::Random { probability }),
        (1..=u32::MAX).prop_map(|every| Match::Nth { every }),
    ]
}

fn module_targets(family: Family) -> impl Strategy<Value = Target> {
    prop_oneof![
        (addresses(family), any::<u16>())
            .prop_map(|(address, port)| Target::DestinationNat { address, port }),
        Just(Target::Masquerade),
        (any::<u32>(), any::<u32>()).prop_map(|(value, mask)| Target::Mark { value, mask }),
        Just(Target::Reject),
    ]
}

/// Targets that are kernel modules, with their family.
pub(crate) fn targets() -> impl Strategy<Value = (Family, Target)> {
    prop_oneof![
        module_targets(Family::Ipv4).prop_map(|target| (Family::Ipv4, target)),
        module_targets(Family::Ipv6).prop_map(|target| (Family::Ipv6, target)),
    ]
}
