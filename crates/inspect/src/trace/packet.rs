//! Parses a packet as users write it, and resolves it to a packet on this node.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use dataplane::{
    Dataplane, Family, InterfaceMatch, LocalDetection, Origin, Packet, Port, Protocol,
};
use thiserror::Error;

use crate::explain::parse_protocol;

const SHAPE: &str = "[ORIGIN] SOURCE [via INTERFACE] -> ADDRESS:PORT[/PROTOCOL]";

/// A packet as a user writes it: `10.1.2.3 -> 10.96.0.10:80/tcp`, `pod 10.0.1.9 via veth9 -> …`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketSpec {
    origin: Option<Sender>,
    source: IpAddr,
    interface: Option<Arc<str>>,
    destination: Destination,
    port: Port,
    protocol: Protocol,
}

/// The origin of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Pod,
    PodElsewhere,
    Node,
    Loopback,
    Outside,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Destination {
    Address(IpAddr),
    /// The address by which other nodes know this one.
    Node,
}

/// Why a text does not describe a packet.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParsePacketError {
    /// It does not have the right shape.
    #[error("a packet is {SHAPE}, not {0:?}")]
    Shape(String),
    /// A word is invalid.
    #[error("{word:?} is not {what}")]
    Word {
        /// The word.
        word: String,
        /// What is expected in its place.
        what: &'static str,
    },
    /// Source and destination are of different families.
    #[error("{from} and {to} are of different families")]
    Families {
        /// The source.
        from: IpAddr,
        /// The destination.
        to: IpAddr,
    },
}

/// The error for a destination `node` in a family in which the node has no address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no {family} address of this node is known")]
pub struct ResolvePacketError {
    family: Family,
}

impl FromStr for PacketSpec {
    type Err = ParsePacketError;

    fn from_str(text: &str) -> Result<PacketSpec, ParsePacketError> {
        let shape = || ParsePacketError::Shape(text.to_owned());
        let (sender, destination) = text.split_once("->").ok_or_else(shape)?;
        let words: Vec<&str> = sender.split_whitespace().collect();
        let (words, interface) = match words.as_slice() {
            [words @ .., "via", interface] => (words, Some(Arc::from(*interface))),
            words => (words, None),
        };
        let (origin, source) = match words {
            [source] => (None, source),
            [origin, source] => (Some(Sender::parse(origin)?), source),
            _ => return Err(shape()),
        };
        let source: IpAddr = parse(source, "an address")?;
        let (destination, port, protocol) = parse_destination(destination.trim())?;
        match destination {
            Destination::Address(to) if to.is_ipv4() != source.is_ipv4() => {
                Err(ParsePacketError::Families { from: source, to })
            }
            destination => Ok(PacketSpec {
                origin,
                source,
                interface,
                destination,
                port,
                protocol,
            }),
        }
    }
}

/// Parses `ADDRESS:PORT[/PROTOCOL]` or `node:PORT[/PROTOCOL]`; TCP by default.
fn parse_destination(text: &str) -> Result<(Destination, Port, Protocol), ParsePacketError> {
    let wrong = |word: &str, what| ParsePacketError::Word {
        word: word.to_owned(),
        what,
    };
    let (place, protocol) = match text.rsplit_once('/') {
        None => (text, Protocol::Tcp),
        Some((place, name)) => {
            let protocol = parse_protocol(name);
            let protocol = protocol.ok_or_else(|| wrong(name, "a protocol: tcp, udp or sctp"))?;
            (place, protocol)
        }
    };
    let (destination, number) = match place.strip_prefix("node:") {
        Some(number) => (Destination::Node, parse(number, "a port")?),
        None => {
            let socket: SocketAddr = parse(place, "ADDRESS:PORT or node:PORT")?;
            (Destination::Address(socket.ip()), socket.port())
        }
    };
    let port = Port::new(number).ok_or_else(|| wrong(place, "a place with a port"))?;
    Ok((destination, port, protocol))
}

fn parse<T: FromStr>(word: &str, what: &'static str) -> Result<T, ParsePacketError> {
    word.parse().map_err(|_| ParsePacketError::Word {
        word: word.to_owned(),
        what,
    })
}

// === impl Sender ===

impl Sender {
    fn parse(word: &str) -> Result<Sender, ParsePacketError> {
        Ok(match word {
            "pod" => Sender::Pod,
            "remote-pod" => Sender::PodElsewhere,
            "node" => Sender::Node,
            "loopback" => Sender::Loopback,
            "outside" => Sender::Outside,
            _ => {
                return Err(ParsePacketError::Word {
                    word: word.to_owned(),
                    what: "an origin: pod, remote-pod, node, loopback or outside",
                });
            }
        })
    }
}

// === impl PacketSpec ===

impl PacketSpec {
    /// Returns the packet on the node of `dataplane`, and how its origin was assumed, in a sentence
    /// without a final full stop.
    pub fn resolve(
        &self,
        dataplane: &Dataplane,
    ) -> Result<(Packet, Option<String>), ResolvePacketError> {
        let family = Family::of(self.source);
        let destination = match self.destination {
            Destination::Address(address) => address,
            Destination::Node => dataplane
                .node()
                .address(family)
                .ok_or(ResolvePacketError { family })?,
        };
        let (sender, assumed) = match self.origin {
            Some(sender) => (sender, None),
            None => {
                let (sender, why) = assume_sender(self.source, dataplane);
                (sender, Some(why))
            }
        };
        let interface = || match &self.interface {
            Some(interface) => Arc::clone(interface),
            None => likely_interface(sender, dataplane),
        };
        let packet = Packet {
            origin: match sender {
                Sender::Pod => Origin::Pod {
                    interface: interface(),
                },
                Sender::PodElsewhere => Origin::PodElsewhere {
                    interface: interface(),
                },
                Sender::Outside => Origin::Outside {
                    interface: interface(),
                },
                Sender::Node => Origin::Node,
                Sender::Loopback => Origin::Loopback,
            },
            source: self.source,
            destination,
            protocol: self.protocol,
            port: self.port,
        };
        Ok((packet, assumed))
    }
}

/// Assumes the origin of a packet from its source address, and says why.
fn assume_sender(source: IpAddr, dataplane: &Dataplane) -> (Sender, String) {
    let node = dataplane.node();
    let family = Family::of(source);
    let in_pod_range = dataplane
        .config()
        .local_detection
        .source(family)
        .filter(|range| range.contains(&source));
    let is_endpoint = |(_, rules): (_, &Arc<dataplane::ServiceRules>)| {
        let mut frontends = rules.frontends.iter();
        frontends.any(|(_, frontend)| frontend.cluster.iter().any(|t| t.address == source))
    };
    if source.is_loopback() {
        let why = "taken for a process of this node, by its loopback address";
        (Sender::Loopback, why.to_owned())
    } else if node.local_addresses.contains(&source) || node.address(family) == Some(source) {
        let why = "taken for a process of this node, which has that address";
        (Sender::Node, why.to_owned())
    } else if let Some(range) = in_pod_range {
        let why = format!("taken for a pod of this node, which has the pods of {range}");
        (Sender::Pod, why)
    } else if dataplane
        .hairpins()
        .iter()
        .any(|(h, _)| h.address == source)
    {
        let why = "taken for a pod of this node: it is an endpoint here";
        (Sender::Pod, why.to_owned())
    } else if dataplane.services().iter().any(is_endpoint) {
        let why = "taken for a pod of another node: it is an endpoint there";
        (Sender::PodElsewhere, why.to_owned())
    } else {
        let why = "taken for an address outside the cluster: this node does not know it";
        (Sender::Outside, why.to_owned())
    }
}

/// Returns an interface that a packet of this origin could arrive on, if the rules match on it.
fn likely_interface(sender: Sender, dataplane: &Dataplane) -> Arc<str> {
    match (&dataplane.config().local_detection, sender) {
        (
            LocalDetection::Interface(InterfaceMatch::Named(name) | InterfaceMatch::Prefix(name)),
            Sender::Pod,
        ) => Arc::clone(name),
        _ => Arc::from(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataplane() -> Dataplane {
        let (node, config) = (testkit::mk_node(1).build(), testkit::mk_config().build());
        Dataplane::new(node, config)
    }

    fn resolve(text: &str) -> (String, Option<String>) {
        let packet_spec: PacketSpec = text.parse().expect("a packet");
        let (packet, assumed) = packet_spec
            .resolve(&dataplane())
            .expect("the node has addresses");
        (packet.to_string(), assumed)
    }

    #[test]
    fn a_packet_reads_as_it_prints() {
        for text in [
            "pod 10.0.1.9 via veth9 -> 10.96.0.10:80/tcp",
            "remote-pod 10.0.2.7 -> 10.96.0.10:80/udp",
            "node 192.168.0.1 -> 10.96.0.10:80/sctp",
            "loopback 127.0.0.1 -> 10.96.0.10:80/tcp",
            "outside 2001:db8:113::2 via eth0 -> [fd00:10:96::10]:80/tcp",
        ] {
            assert_eq!(resolve(text), (text.to_owned(), None));
        }
    }

    #[test]
    fn who_sends_it_is_guessed_and_reported() {
        for (source, origin, why) in [
            ("10.0.1.9", "pod", "the pods of 10.0.1.0/24"),
            ("192.168.0.1", "node", "has that address"),
            ("127.0.0.1", "loopback", "loopback"),
            ("203.0.113.2", "outside", "does not know it"),
        ] {
            let (packet, assumed) = resolve(&format!("{source} -> 10.96.0.10:80"));
            assert_eq!(packet, format!("{origin} {source} -> 10.96.0.10:80/tcp"));
            assert!(
                assumed.is_some_and(|assumed| assumed.contains(why)),
                "{packet}"
            );
        }
        let (packet, _) = resolve("203.0.113.2 -> node:30080/udp");
        assert_eq!(packet, "outside 203.0.113.2 -> 192.168.0.1:30080/udp");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, message) in [
            ("10.0.1.9 10.96.0.10:80", "a packet is [ORIGIN] SOURCE"),
            (
                "mars 10.0.1.9 -> 10.96.0.10:80",
                "\"mars\" is not an origin",
            ),
            ("10.0.1 -> 10.96.0.10:80", "\"10.0.1\" is not an address"),
            (
                "10.0.1.9 -> 10.96.0.10",
                "\"10.96.0.10\" is not ADDRESS:PORT",
            ),
            (
                "10.0.1.9 -> 10.96.0.10:80/icmp",
                "\"icmp\" is not a protocol",
            ),
            (
                "10.0.1.9 -> [fd00::1]:80",
                "10.0.1.9 and fd00::1 are of different families",
            ),
        ] {
            let error = text.parse::<PacketSpec>().expect_err(text).to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
