//! The key of a frontend, as a string of digits on which a tree can branch.

use std::net::IpAddr;

use dataplane::{Family, Port, Protocol};
use ipnet::IpNet;
use xtables::{AddressMatch, Match, Rule, Target};

/// A string of four-bit digits: those of an address, one for the protocol and four for the port,
/// each if present. All keys of one tree have the same parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    digits: [u8; Key::LONGEST],
    length: u8,
}

/// The parts of the keys of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The family of the address; `None` for keys without one.
    pub(crate) address: Option<Family>,
}

/// The match criteria of a key prefix: they match exactly the packets whose keys begin with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Criteria {
    pub(crate) destination: Option<IpNet>,
    pub(crate) protocol: Option<Protocol>,
    pub(crate) ports: Option<(u16, u16)>,
}

// === impl Key ===

impl Key {
    /// The length with an IPv6 address, a protocol and a port.
    const LONGEST: usize = 32 + 1 + 4;

    /// The empty key.
    const fn new() -> Key {
        Key {
            digits: [0; Key::LONGEST],
            length: 0,
        }
    }

    /// The key of an address.
    pub(crate) fn address(address: IpAddr) -> Key {
        let mut key = Key::new();
        match address {
            IpAddr::V4(address) => key.push_bytes(&address.octets()),
            IpAddr::V6(address) => key.push_bytes(&address.octets()),
        }
        key
    }

    /// The key of a protocol and port.
    pub(crate) fn port(protocol: Protocol, port: Port) -> Key {
        Key::new().with_port(protocol, port)
    }

    /// Appends a protocol and a port.
    pub(crate) fn with_port(mut self, protocol: Protocol, port: Port) -> Key {
        self.push(match protocol {
            Protocol::Tcp => 0,
            Protocol::Udp => 1,
            Protocol::Sctp => 2,
        });
        self.push_bytes(&port.get().to_be_bytes());
        self
    }

    pub(crate) fn digits(&self) -> &[u8] {
        &self.digits[..usize::from(self.length)]
    }

    /// The first `length` digits.
    pub(crate) fn prefix(&self, length: usize) -> Key {
        let mut prefix = Key::new();
        for digit in &self.digits()[..length] {
            prefix.push(*digit);
        }
        prefix
    }

    /// The number of leading digits that two keys share.
    pub(crate) fn common(&self, other: &Key) -> usize {
        let pairs = self.digits().iter().zip(other.digits());
        pairs.take_while(|(a, b)| a == b).count()
    }

    /// Whether the key begins with all of `prefix`.
    pub(crate) fn starts_with(&self, prefix: &Key) -> bool {
        self.digits().starts_with(prefix.digits())
    }

    fn push(&mut self, digit: u8) {
        self.digits[usize::from(self.length)] = digit;
        self.length += 1;
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.push(byte >> 4);
            self.push(byte & 0xf);
        }
    }
}

// === impl Shape ===

impl Shape {
    /// The number of digits of an address.
    fn address_digits(self) -> usize {
        match self.address {
            None => 0,
            Some(Family::Ipv4) => 8,
            Some(Family::Ipv6) => 32,
        }
    }

    /// The match criteria of `prefix`.
    pub(crate) fn criteria(self, prefix: &Key) -> Criteria {
        let digits = prefix.digits();
        let split = digits.len().min(self.address_digits());
        let (address, rest) = digits.split_at(split);
        let protocol = rest.first().map(|digit| match digit {
            0 => Protocol::Tcp,
            1 => Protocol::Udp,
            _ => Protocol::Sctp,
        });
        let port = rest.get(1..).filter(|digits| !digits.is_empty());
        Criteria {
            destination: self
                .address
                .filter(|_| !address.is_empty())
                .map(|family| range(family, address)),
            protocol,
            ports: port.map(|digits| {
                let known = digits.iter().fold(0_u16, |n, d| n << 4 | u16::from(*d));
                let open = 4 * (4 - digits.len());
                let first = known.checked_shl(bits(open)).unwrap_or(0);
                let last = first | u16::MAX.checked_shr(bits(16 - open)).unwrap_or(0);
                (first, last)
            }),
        }
    }
}

/// A number of bits, less than 256.
fn bits(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn range(family: Family, digits: &[u8]) -> IpNet {
    let mut bytes = [0; 16];
    for (at, digit) in digits.iter().enumerate() {
        bytes[at / 2] |= if at % 2 == 0 { digit << 4 } else { *digit };
    }
    let [a, b, c, d, ..] = bytes;
    let address = match family {
        Family::Ipv4 => IpAddr::from([a, b, c, d]),
        Family::Ipv6 => IpAddr::from(bytes),
    };
    let longest = IpNet::from(address);
    let length = u8::try_from(4 * digits.len()).unwrap_or(u8::MAX);
    IpNet::new(address, length).unwrap_or(longest)
}

// === impl Criteria ===

impl Criteria {
    /// A rule that sends matching packets to `target`.
    pub(crate) fn rule(&self, target: Target) -> Rule {
        let ports = self
            .ports
            .map(|(first, last)| Match::DestinationPorts { first, last });
        Rule {
            destination: self.destination.map(AddressMatch::within),
            protocol: self.protocol,
            matches: ports.into_iter().collect(),
            ..Rule::always(target)
        }
    }
}

/// The protocol and the single port that a rule matches, if it does.
pub(crate) fn port_asked(rule: &Rule) -> Option<(Protocol, Port)> {
    let protocol = rule.protocol?;
    match rule.matches[..] {
        [Match::DestinationPorts { first, last }] if first == last => {
            Some((protocol, Port::new(first)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(shape: Shape, key: &Key, length: usize) -> String {
        let criteria = shape.criteria(&key.prefix(length));
        criteria.rule(Target::Accept).to_string()
    }

    #[test]
    fn a_prefix_of_a_key_asks_for_everything_below_it() {
        let shape = Shape {
            address: Some(Family::Ipv4),
        };
        let port = Port::new(8080).expect("is not 0");
        let address = "10.96.18.7".parse().expect("is an address");
        let key = Key::address(address).with_port(Protocol::Udp, port);
        assert_eq!(text(shape, &key, 0), "-j ACCEPT");
        assert_eq!(text(shape, &key, 5), "-d 10.96.16.0/20 -j ACCEPT");
        assert_eq!(text(shape, &key, 8), "-d 10.96.18.7/32 -j ACCEPT");
        assert_eq!(text(shape, &key, 9), "-d 10.96.18.7/32 -p udp -j ACCEPT");
        assert_eq!(
            text(shape, &key, 11),
            "-d 10.96.18.7/32 -p udp -m udp --dport 7936:8191 -j ACCEPT"
        );
        assert_eq!(
            text(shape, &key, 13),
            "-d 10.96.18.7/32 -p udp -m udp --dport 8080 -j ACCEPT"
        );
        let ports = Shape { address: None };
        let key = Key::port(Protocol::Sctp, port);
        assert_eq!(text(ports, &key, 1), "-p sctp -j ACCEPT");
        assert_eq!(
            text(ports, &key, 2),
            "-p sctp -m sctp --dport 4096:8191 -j ACCEPT"
        );
    }
}
