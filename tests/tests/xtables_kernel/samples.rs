//! A rule for each match and target that Signpost's rules can have.

use ipnet::IpNet;
use xtables::{
    AddressMatch, Family, InterfaceMatch, Match, PacketEnd, Protocol, Recent, Rule, States,
    TableName, Target,
};

/// The chain to which rules of [`samples`] jump.
pub(crate) const ELSEWHERE: &str = "SIGNPOST-ELSEWHERE";

/// Returns rules, each with a table that accepts it.
pub(crate) fn samples(family: Family) -> Vec<(TableName, Rule)> {
    let nat = by_address(family)
        .into_iter()
        .chain(by_interface())
        .chain(by_match())
        .chain(by_target(family))
        .map(|rule| (TableName::Nat, rule));
    // iptables writes no DROP to table nat, and the kernel accepts no REJECT there.
    let filter =
        [Target::Drop, Target::Reject].map(|target| (TableName::Filter, Rule::always(target)));
    nat.chain(filter).collect()
}

fn leave() -> Rule {
    Rule::always(Target::Return)
}

fn address(family: Family, ipv4: &str, ipv6: &str) -> AddressMatch {
    let text = match family {
        Family::Ipv4 => ipv4,
        Family::Ipv6 => ipv6,
    };
    let range: IpNet = text.parse().expect("a range");
    AddressMatch::within(range)
}

fn by_address(family: Family) -> Vec<Rule> {
    let inverted = |asked| AddressMatch {
        inverted: true,
        ..asked
    };
    let of = |ipv4, ipv6| address(family, ipv4, ipv6);
    let host = of("10.96.0.1/32", "fd00:96::1/128");
    let ranges = [
        of("10.0.0.0/8", "fd00::/8"),
        of("10.96.0.0/16", "fd00::/16"),
        of("10.96.7.0/24", "fd00:96::7:0/112"),
        of("10.96.16.0/20", "fd00:96::1000/116"),
        of("10.96.0.16/28", "fd00:96::10/124"),
        of("128.0.0.0/1", "8000::/1"),
        of("10.96.0.2/31", "fd00:96::2/127"),
        host,
    ];
    let from = |asked| Rule {
        source: Some(asked),
        ..leave()
    };
    let to = |asked| Rule {
        destination: Some(asked),
        ..leave()
    };
    let both = Rule {
        source: Some(inverted(ranges[0])),
        destination: Some(host),
        ..leave()
    };
    ranges
        .into_iter()
        .flat_map(|asked| {
            [
                from(asked),
                from(inverted(asked)),
                to(asked),
                to(inverted(asked)),
            ]
        })
        .chain([both])
        .collect()
}

fn by_interface() -> Vec<Rule> {
    let input = |name: &str, is_prefix, inverted| Rule {
        input: Some(InterfaceMatch {
            name: name.into(),
            is_prefix,
            inverted,
        }),
        ..leave()
    };
    vec![
        input("lo", false, false),
        input("eth0", false, true),
        input("cali", true, false),
        input("cali", true, true),
        input("fifteen-letters", false, false),
    ]
}

fn asking(asked: Match) -> Rule {
    Rule {
        matches: vec![asked],
        ..leave()
    }
}

fn by_match() -> Vec<Rule> {
    let port = |protocol, first, last| Rule {
        protocol: Some(protocol),
        ..asking(Match::DestinationPorts { first, last })
    };
    let recent = |what| {
        asking(Match::Recent {
            list: "SIGNPOST-0123456789ABCDEF".into(),
            what,
        })
    };
    let any_port = Rule {
        protocol: Some(Protocol::Udp),
        ..leave()
    };
    let everything = Rule {
        matches: vec![
            Match::DestinationPorts {
                first: 53,
                last: 53,
            },
            Match::LocalAddress(PacketEnd::Destination),
            Match::ConnectionState(States::NEW),
            Match::Random {
                probability: Match::CERTAIN / 3,
            },
        ],
        comment: Some("kube-system/kube-dns:dns, with a comma".into()),
        ..any_port.clone()
    };
    vec![
        port(Protocol::Tcp, 80, 80),
        port(Protocol::Tcp, 30000, 32767),
        port(Protocol::Tcp, 0, 0),
        port(Protocol::Udp, 53, 53),
        port(Protocol::Udp, 1, 65535),
        port(Protocol::Sctp, 3868, 3868),
        port(Protocol::Sctp, 80, 90),
        any_port,
        asking(Match::LocalAddress(PacketEnd::Source)),
        asking(Match::LocalAddress(PacketEnd::Destination)),
        asking(Match::ConnectionState(States::INVALID)),
        asking(Match::ConnectionState(States::NEW.or(States::DNAT))),
        asking(Match::ConnectionState(
            States::ESTABLISHED.or(States::RELATED),
        )),
        asking(Match::Mark {
            value: 0x4000,
            mask: 0x4000,
        }),
        asking(Match::Mark {
            value: 0,
            mask: 0x4000,
        }),
        recent(Recent::Check { seconds: 10_800 }),
        recent(Recent::Set),
        asking(Match::Random {
            probability: Match::CERTAIN / 2,
        }),
        asking(Match::Random {
            probability: Match::CERTAIN / 3,
        }),
        asking(Match::Random {
            probability: Match::CERTAIN / 10_000,
        }),
        everything,
        Rule {
            comment: Some("shop/web:http".into()),
            ..leave()
        },
        Rule {
            comment: Some(format!("shop/{}", "x".repeat(250)).into()),
            ..leave()
        },
    ]
}

fn by_target(family: Family) -> Vec<Rule> {
    let endpoint = address(family, "10.0.1.5/32", "fd00:1::5/128").range.addr();
    let mark = |value, mask| Rule::always(Target::Mark { value, mask });
    vec![
        Rule::always(Target::Accept),
        leave(),
        Rule::always(Target::Jump(ELSEWHERE.into())),
        Rule::always(Target::Goto(ELSEWHERE.into())),
        Rule {
            protocol: Some(Protocol::Tcp),
            ..Rule::always(Target::DestinationNat {
                address: endpoint,
                port: 8080,
            })
        },
        Rule::always(Target::Masquerade),
        mark(0x4000, 0x4000),
        mark(0x4000, 0),
        mark(0, 0x4000),
    ]
}
