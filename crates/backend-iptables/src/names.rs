//! The names of Signpost's chains: at most 28 letters (`XT_EXTENSION_MAXNAMELEN`), readable if they
//! fit.

use std::sync::Arc;

use dataplane::{ServicePortName, Target};
use ipnet::IpNet;
use sha2::{Digest, Sha256};
use xtables::Rule;

use crate::key::Criteria;

/// The prefix of all of them.
pub const PREFIX: &str = "SIGNPOST-";

/// The longest name that the kernel accepts, without the terminating zero.
const LONGEST: usize = 28;
/// How many letters of a hash a name has: 75 bits, so that the chance of a collision among a
/// million names is one in 10^11.
const HASHED: usize = 15;

/// The name of the chain of a tree for packets with these criteria.
pub(crate) fn of_prefix(tag: &str, criteria: &Criteria) -> Arc<str> {
    use std::fmt::Write as _;
    let mut name = format!("{PREFIX}{tag}");
    let separate = |name: &mut String| {
        if name.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()) {
            name.push('-');
        }
    };
    if let Some(range) = criteria.destination {
        let _ = write!(name, "{range}");
    }
    if let Some(protocol) = criteria.protocol {
        separate(&mut name);
        let _ = write!(name, "{protocol}");
    }
    if let Some((first, last)) = criteria.ports {
        separate(&mut name);
        let _ = write!(name, "{first}-{last}");
    }
    // nft cannot parse a colon in a name.
    match name.len() <= LONGEST && !name.contains(':') {
        true => name.trim_end_matches('-').into(),
        false => hashed(tag, &[&name]),
    }
}

/// The name of a chain of one Service port. `kind` has at most three letters.
pub(crate) fn of_service_port(kind: &str, port: &ServicePortName) -> Arc<str> {
    let tag = format!("{kind}-");
    hashed(&tag, &[&port.to_string(), &port.protocol.to_string()])
}

/// The name of a chain of one Service port for these source ranges.
pub(crate) fn of_ranges(kind: &str, port: &ServicePortName, ranges: &[IpNet]) -> Arc<str> {
    let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    let tag = format!("{kind}-");
    hashed(
        &tag,
        &[
            &port.to_string(),
            &port.protocol.to_string(),
            &ranges.join(","),
        ],
    )
}

/// The name of a copy of a chain with these rules. Equal copies have the same name.
pub(crate) fn of_copy(rules: &[Rule]) -> Arc<str> {
    let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
    hashed("OLD-", &[&rules.join("\n")])
}

/// The name of the list of clients of one endpoint of a Service port.
pub(crate) fn of_clients(port: &ServicePortName, target: &Target) -> Arc<str> {
    hashed(
        "",
        &[
            &port.to_string(),
            &port.protocol.to_string(),
            &target.to_string(),
        ],
    )
}

fn hashed(tag: &str, parts: &[&str]) -> Arc<str> {
    // RFC 4648 base32, whose letters have no special meaning to iptables.
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let digest = hash.finalize();
    let mut name = format!("{PREFIX}{tag}");
    let (mut buffer, mut filled) = (0_u32, 0);
    let mut bytes = digest.iter();
    for _ in 0..HASHED {
        if filled < 5 {
            buffer = buffer << 8 | u32::from(bytes.next().copied().unwrap_or(0));
            filled += 8;
        }
        filled -= 5;
        let letter = buffer >> filled & 31;
        name.push(char::from(LETTERS[letter as usize]));
    }
    name.into()
}

#[cfg(test)]
mod tests {
    use dataplane::{Protocol, ServiceKey};

    use super::*;

    #[test]
    fn names_are_readable_where_they_fit_and_short_enough_everywhere() {
        let criteria = |destination: Option<&str>, protocol, ports| Criteria {
            destination: destination.map(|range| range.parse().expect("is a range")),
            protocol,
            ports,
        };
        let name = |criteria: Criteria| of_prefix("S-", &criteria).to_string();
        assert_eq!(
            name(criteria(Some("10.96.160.0/20"), None, None)),
            "SIGNPOST-S-10.96.160.0/20"
        );
        assert_eq!(name(criteria(None, None, None)), "SIGNPOST-S");
        let sctp = Some(Protocol::Sctp);
        assert_eq!(
            name(criteria(None, sctp, Some((30000, 30255)))),
            "SIGNPOST-S-sctp-30000-30255"
        );
        for long in [
            criteria(Some("255.255.255.240/28"), sctp, Some((30000, 30255))),
            criteria(Some("fd00:10:96::/112"), None, None),
        ] {
            let name = name(long);
            assert!(name.len() <= LONGEST && !name.contains(':'), "{name}");
        }
        let port = ServicePortName {
            service: ServiceKey::new("shop", "web"),
            port: "http".into(),
            protocol: Protocol::Tcp,
        };
        assert_eq!(of_service_port("SVC", &port).len(), LONGEST);
    }
}
