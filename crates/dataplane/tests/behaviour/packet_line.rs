//! Packets and their verdicts, one per line: `pod 10.0.1.9 -> 10.96.0.10:80/tcp = reject`.

use std::net::{IpAddr, SocketAddr};

use dataplane::{Dataplane, Origin, Packet, Port, Protocol};
use testkit::address_plan as plan;

/// Checks every line of `lines`, and shows all differences at once. Lines that start with `#` are
/// comments.
#[track_caller]
pub(crate) fn assert_packets(dataplane: &Dataplane, lines: &str) {
    let lines = lines.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (mut desired, mut seen) = (String::new(), String::new());
    for line in lines {
        let (packet, verdict) = line.split_once(" = ").expect("a line is packet = verdict");
        desired += &format!("{packet} = {verdict}\n");
        seen += &format!("{packet} = {}\n", dataplane.verdict(&parse_packet(packet)));
    }
    assert!(!desired.is_empty(), "there are packets to look at");
    assert_eq!(seen, desired, "left is what happens, right is what should");
}

/// Parses a printed packet. Without `via`, pods of this node arrive through the bridge and all
/// others through the uplink.
#[track_caller]
pub(crate) fn parse_packet(text: &str) -> Packet {
    let (from, to) = text.split_once(" -> ").expect("a packet goes somewhere");
    let words: Vec<&str> = from.split_whitespace().collect();
    let (origin, source, interface) = match words[..] {
        [origin, source] => (origin, source, None),
        [origin, source, "via", interface] => (origin, source, Some(interface)),
        _ => panic!("{from:?} is not origin, source and interface"),
    };
    let via = |otherwise: &'static str| interface.unwrap_or(otherwise).into();
    let (to, protocol) = to.split_once('/').expect("a protocol comes last");
    let to: SocketAddr = to.parse().expect("a destination is address and port");
    let source: IpAddr = source.parse().expect("a source is an address");
    Packet {
        origin: match origin {
            "pod" => Origin::Pod {
                interface: via(plan::BRIDGE),
            },
            "remote-pod" => Origin::PodElsewhere {
                interface: via(plan::UPLINK),
            },
            "outside" => Origin::Outside {
                interface: via(plan::UPLINK),
            },
            "node" => Origin::Node,
            "loopback" => Origin::Loopback,
            _ => panic!("{origin:?} is no origin"),
        },
        source,
        destination: to.ip(),
        protocol: Protocol::ALL
            .into_iter()
            .find(|known| known.to_string() == protocol)
            .expect("the protocol is known"),
        port: Port::new(to.port()).expect("a destination port is not 0"),
    }
}
