//! IP addresses and ranges as Kubernetes parses them.
//!
//! Objects older than Go 1.17 may contain addresses like `010.0.0.1`, and every component of
//! Kubernetes parses those as decimal (KEP-4858 forbids only new ones). Parsing them differently
//! would send packets elsewhere than the rest of the cluster does.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

/// Parses an address. Converts an IPv4-mapped IPv6 address to IPv4.
pub(crate) fn parse_ip(text: &str) -> Option<IpAddr> {
    Some(parse_ip_as_written(text)?.to_canonical())
}

/// Parses a range; clears the bits beyond the prefix.
pub(crate) fn parse_cidr(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.split_once('/')?;
    let net = IpNet::new(parse_ip_as_written(address)?, parse_decimal(prefix)?).ok()?;
    Some(net.trunc())
}

fn parse_ip_as_written(text: &str) -> Option<IpAddr> {
    let Some((network, tail)) = text.rsplit_once(':') else {
        return parse_ipv4(text).map(IpAddr::V4);
    };
    if tail.contains('.') {
        let tail = parse_ipv4(tail)?;
        format!("{network}:{tail}").parse().ok().map(IpAddr::V6)
    } else {
        text.parse().ok().map(IpAddr::V6)
    }
}

fn parse_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        *octet = parse_decimal(parts.next()?)?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

fn parse_decimal(text: &str) -> Option<u8> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    match text.trim_start_matches('0') {
        "" => Some(0),
        digits => digits.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_rest_of_kubernetes_reads_them() {
        let table = [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.000.00.0001", Some("10.0.0.1")),
            ("0.0.0.0", Some("0.0.0.0")),
            ("fd00::5", Some("fd00::5")),
            ("FD00::5", Some("fd00::5")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("::ffff:010.0.0.01", Some("10.0.0.1")),
            ("64:ff9b::010.0.0.1", Some("64:ff9b::a00:1")),
            ("", None),
            ("10.0.0", None),
            ("10.0.0.1.2", None),
            ("10.0.0.256", None),
            ("10.0.0.1 ", None),
            ("+1.0.0.1", None),
            ("0x0a.0.0.1", None),
            ("10..0.1", None),
            ("fe80::1%eth0", None),
            ("[fd00::5]", None),
            ("10.0.0.1/32", None),
            ("None", None),
        ];
        for (text, expected) in table {
            let expected = expected.map(|e| e.parse::<IpAddr>().expect("the table is right"));
            assert_eq!(parse_ip(text), expected, "{text:?}");
        }
    }

    #[test]
    fn ranges_lose_the_bits_beyond_their_prefix() {
        let table = [
            ("10.1.2.3/16", Some("10.1.0.0/16")),
            ("010.1.2.3/016", Some("10.1.0.0/16")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("fd00::5/64", Some("fd00::/64")),
            ("10.0.0.1", None),
            ("10.0.0.0/33", None),
            ("10.0.0.0/", None),
            ("10.0.0.0/-1", None),
            ("fd00::/129", None),
            ("/8", None),
        ];
        for (text, expected) in table {
            let expected = expected.map(|e| e.parse::<IpNet>().expect("the table is right"));
            assert_eq!(parse_cidr(text), expected, "{text:?}");
        }
    }
}
