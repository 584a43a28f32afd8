//! CIDRs and listening addresses; accepts exactly what the API server's CEL library accepts.

use std::{
    borrow::Cow,
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::rule::{self, CIDR, NODE_PORT_ADDRESS};

/// A block of addresses of one family. Host bits are kept as written: `10.0.0.1/8` is accepted, as
/// in kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Cow<'_, str>", into = "String")]
pub struct Cidr(IpNet);

/// Which of a node's addresses accept node-port traffic: one entry of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Cow<'_, str>", into = "String")]
pub enum NodePortAddress {
    /// The node's own first address of each family, `primary` in the API.
    Primary,
    /// Every address of the node inside this block.
    Within(Cidr),
}

/// A text that is not a CIDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", CIDR.message)]
pub struct ParseCidrError;

/// A text that is neither a CIDR nor `primary`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", NODE_PORT_ADDRESS.message)]
pub struct ParseNodePortAddressError;

/// The longest text of an IPv6 block: 39 characters of address, a slash, three digits.
const LONGEST_CIDR: usize = 43;

const PRIMARY: &str = "primary";

/// Whether `text` is `IP:port` with a port from 1, or empty.
pub(crate) fn is_bind_address(text: &str) -> bool {
    text.is_empty()
        || text.parse::<SocketAddr>().is_ok_and(|address| {
            address.port() > 0 && is_plain(address.ip()) && !text.contains('%')
        })
}

/// Whether `text` is an IP address in its plain form.
pub(crate) fn is_ip(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok_and(is_plain)
}

/// Whether `address` is not an IPv4-mapped IPv6 address. Kubernetes refuses those, because two
/// spellings of one address defeat comparisons.
fn is_plain(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => address.to_ipv4_mapped().is_none(),
    }
}

// === impl Cidr ===

impl Cidr {
    /// The block for address arithmetic.
    #[must_use]
    pub const fn net(self) -> IpNet {
        self.0
    }
}

impl From<IpNet> for Cidr {
    fn from(net: IpNet) -> Self {
        Self(net)
    }
}

impl FromStr for Cidr {
    type Err = ParseCidrError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (_, length) = text.split_once('/').ok_or(ParseCidrError)?;
        // The API server refuses `/08`; accepting it here alone would be inconsistent.
        let padded = length.len() > 1 && length.starts_with('0');
        let net = text.parse::<IpNet>().map_err(|_| ParseCidrError)?;
        if padded || !is_plain(net.addr()) {
            return Err(ParseCidrError);
        }
        Ok(Self(net))
    }
}

impl TryFrom<Cow<'_, str>> for Cidr {
    type Error = ParseCidrError;

    fn try_from(text: Cow<'_, str>) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl JsonSchema for Cidr {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Cidr".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": LONGEST_CIDR,
            "x-kubernetes-validations": rule::list(&[&CIDR]),
        })
    }
}

// === impl NodePortAddress ===

impl FromStr for NodePortAddress {
    type Err = ParseNodePortAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == PRIMARY {
            return Ok(Self::Primary);
        }
        text.parse()
            .map(Self::Within)
            .map_err(|_| ParseNodePortAddressError)
    }
}

impl TryFrom<Cow<'_, str>> for NodePortAddress {
    type Error = ParseNodePortAddressError;

    fn try_from(text: Cow<'_, str>) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<NodePortAddress> for String {
    fn from(address: NodePortAddress) -> Self {
        address.to_string()
    }
}

impl fmt::Display for NodePortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str(PRIMARY),
            Self::Within(cidr) => cidr.fmt(f),
        }
    }
}

impl JsonSchema for NodePortAddress {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "NodePortAddress".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": LONGEST_CIDR,
            "x-kubernetes-validations": rule::list(&[&NODE_PORT_ADDRESS]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cidrs_are_read_as_the_api_server_reads_them() {
        for text in [
            "10.0.0.0/8",
            "10.0.0.1/8",
            "0.0.0.0/0",
            "::/0",
            "2001:db8::/32",
        ] {
            assert!(text.parse::<Cidr>().is_ok(), "{text}");
        }
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0.0/08",
            "10.0.0/8",
            "::ffff:10.0.0.0/104",
            "fe80::%eth0/64",
        ] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_listening_address_has_an_ip_and_a_port() {
        for text in ["", "0.0.0.0:10256", "[::]:10256", "127.0.0.1:1"] {
            assert!(is_bind_address(text), "{text}");
        }
        for text in [
            "localhost:80",
            "0.0.0.0",
            "0.0.0.0:0",
            "0.0.0.0:65536",
            "::1:80",
            "[1.2.3.4]:80",
            "[fe80::1%1]:80",
        ] {
            assert!(!is_bind_address(text), "{text}");
        }
    }
}
