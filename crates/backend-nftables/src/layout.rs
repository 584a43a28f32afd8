//! The names and shapes of everything in our tables.
//!
//! A Service is nothing but elements: no chain, set or rule is ever made for one. What grows with
//! the cluster is data in maps, which the kernel adds and removes in constant time; what decides is
//! a fixed handful of chains, and one pair of chains for each number of endpoints in use.

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::{Family, FrontendKey, Hairpin, Port, Protocol, Target};
use netlink::nf_tables::{self, Bytes, DataType, Set, SetContent};

/// The name of our table, in each family.
pub const TABLE: &str = "signpost";

/// Slots of the endpoints of this node begin here, those of all endpoints at 0, and neither can grow
/// into the other. The kernel draws a number below the count of endpoints and adds this.
pub(crate) const LOCAL_SLOTS: u32 = 1 << 31;

/// Every set and map. The two families have the same ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SetName {
    /// Every cluster IP.
    ClusterIps,
    /// The node's addresses that accept node ports, unless all do.
    NodePortAddresses,
    /// Endpoints of this node, as source and destination.
    Hairpins,
    /// Address, protocol, port to where its endpoints are chosen.
    Services,
    /// For external policy Local: what pods of this node and this node itself are given.
    ShortCircuits,
    /// For external policy Local: what everyone else is given.
    Locals,
    /// Address, protocol, port, slot to endpoint.
    Endpoints,
    /// Address, protocol, port without an endpoint that may be used.
    Refusals,
    /// As `Services`, for node ports.
    NodePorts,
    /// As `ShortCircuits`, for node ports.
    NodePortShortCircuits,
    /// As `Locals`, for node ports.
    NodePortLocals,
    /// As `Endpoints`, for node ports.
    NodePortEndpoints,
    /// As `Refusals`, for node ports.
    NodePortRefusals,
}

/// What a frontend is found by: its address, protocol and port, or its protocol and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Keyed {
    /// By address.
    Address,
    /// By port alone: the address was found to be one of the node's.
    NodePort,
}

// === impl SetName ===

impl SetName {
    pub(crate) const ALL: [SetName; 13] = [
        SetName::ClusterIps,
        SetName::NodePortAddresses,
        SetName::Hairpins,
        SetName::Services,
        SetName::ShortCircuits,
        SetName::Locals,
        SetName::Endpoints,
        SetName::Refusals,
        SetName::NodePorts,
        SetName::NodePortShortCircuits,
        SetName::NodePortLocals,
        SetName::NodePortEndpoints,
        SetName::NodePortRefusals,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            SetName::ClusterIps => "cluster-ips",
            SetName::NodePortAddresses => "nodeport-addresses",
            SetName::Hairpins => "hairpins",
            SetName::Services => "services",
            SetName::ShortCircuits => "short-circuits",
            SetName::Locals => "locals",
            SetName::Endpoints => "endpoints",
            SetName::Refusals => "refusals",
            SetName::NodePorts => "nodeports",
            SetName::NodePortShortCircuits => "nodeport-short-circuits",
            SetName::NodePortLocals => "nodeport-locals",
            SetName::NodePortEndpoints => "nodeport-endpoints",
            SetName::NodePortRefusals => "nodeport-refusals",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<SetName> {
        SetName::ALL.into_iter().find(|set| set.as_str() == name)
    }

    /// What a frontend's elements in this set are found by; `None` for sets without frontends.
    pub(crate) fn keyed(self) -> Option<Keyed> {
        match self {
            SetName::ClusterIps | SetName::NodePortAddresses | SetName::Hairpins => None,
            SetName::Services
            | SetName::ShortCircuits
            | SetName::Locals
            | SetName::Endpoints
            | SetName::Refusals => Some(Keyed::Address),
            SetName::NodePorts
            | SetName::NodePortShortCircuits
            | SetName::NodePortLocals
            | SetName::NodePortEndpoints
            | SetName::NodePortRefusals => Some(Keyed::NodePort),
        }
    }

    /// The set as it is created in `family`.
    pub(crate) fn set(self, family: Family) -> Set {
        let address = nft_family(family).address();
        let mut key = match self.keyed() {
            None if self == SetName::Hairpins => {
                vec![address, address, DataType::Protocol, DataType::Service]
            }
            None => vec![address],
            Some(Keyed::Address) => vec![address, DataType::Protocol, DataType::Service],
            Some(Keyed::NodePort) => vec![DataType::Protocol, DataType::Service],
        };
        let content = match self {
            SetName::ClusterIps | SetName::NodePortAddresses | SetName::Hairpins => {
                SetContent::Membership
            }
            SetName::Endpoints | SetName::NodePortEndpoints => {
                key.push(DataType::Mark);
                SetContent::Values(vec![address, DataType::Service])
            }
            _ => SetContent::Verdicts,
        };
        Set {
            name: self.as_str().into(),
            key,
            content,
        }
    }
}

// === impl Keyed ===

impl Keyed {
    pub(crate) fn of(key: &FrontendKey) -> Keyed {
        match key {
            FrontendKey::Address { .. } => Keyed::Address,
            FrontendKey::NodePort { .. } => Keyed::NodePort,
        }
    }

    pub(crate) fn services(self) -> SetName {
        match self {
            Keyed::Address => SetName::Services,
            Keyed::NodePort => SetName::NodePorts,
        }
    }

    pub(crate) fn short_circuits(self) -> SetName {
        match self {
            Keyed::Address => SetName::ShortCircuits,
            Keyed::NodePort => SetName::NodePortShortCircuits,
        }
    }

    pub(crate) fn locals(self) -> SetName {
        match self {
            Keyed::Address => SetName::Locals,
            Keyed::NodePort => SetName::NodePortLocals,
        }
    }

    pub(crate) fn endpoints(self) -> SetName {
        match self {
            Keyed::Address => SetName::Endpoints,
            Keyed::NodePort => SetName::NodePortEndpoints,
        }
    }

    pub(crate) fn refusals(self) -> SetName {
        match self {
            Keyed::Address => SetName::Refusals,
            Keyed::NodePort => SetName::NodePortRefusals,
        }
    }

    /// What the chains for frontends of this sort begin with.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Keyed::Address => "",
            Keyed::NodePort => "nodeport-",
        }
    }
}

/// nf_tables' name for a family.
pub(crate) fn nft_family(family: Family) -> nf_tables::Family {
    match family {
        Family::Ipv4 => nf_tables::Family::Ip,
        Family::Ipv6 => nf_tables::Family::Ip6,
    }
}

/// The bytes of an address.
pub(crate) fn address(address: IpAddr) -> Bytes {
    match address {
        IpAddr::V4(address) => Bytes::new().with(&address.octets()),
        IpAddr::V6(address) => Bytes::new().with(&address.octets()),
    }
}

/// The key of a frontend, in every set it is in.
pub(crate) fn frontend(key: &FrontendKey) -> Bytes {
    let bytes = match key {
        FrontendKey::Address { address: ip, .. } => address(*ip),
        FrontendKey::NodePort { .. } => Bytes::new(),
    };
    bytes
        .with(&[key.protocol().number()])
        .with(&key.port().get().to_be_bytes())
}

/// The frontend that a key of a set begins with; `None` if it is no such key.
pub(crate) fn parse_frontend(family: Family, keyed: Keyed, bytes: &[u8]) -> Option<FrontendKey> {
    let (ip, rest) = match (keyed, family) {
        (Keyed::NodePort, _) => (None, bytes),
        (Keyed::Address, Family::Ipv4) => {
            let (octets, rest) = bytes.split_first_chunk::<4>()?;
            (Some(IpAddr::from(*octets)), rest)
        }
        (Keyed::Address, Family::Ipv6) => {
            let (octets, rest) = bytes.split_first_chunk::<16>()?;
            (Some(IpAddr::from(*octets)), rest)
        }
    };
    let &[number, _, _, _, high, low, ..] = rest else {
        return None;
    };
    let protocol = Protocol::from_number(number)?;
    let port = Port::new(u16::from_be_bytes([high, low]))?;
    Some(match ip {
        Some(address) => FrontendKey::Address {
            address,
            protocol,
            port,
        },
        None => FrontendKey::NodePort {
            family,
            protocol,
            port,
        },
    })
}

/// The key of one slot of a frontend. Numbers in registers are in the host's order.
pub(crate) fn slot(frontend: Bytes, slot: u32) -> Bytes {
    frontend.with(&slot.to_ne_bytes())
}

/// An endpoint, as the value of a slot.
pub(crate) fn target(target: &Target) -> Bytes {
    address(target.address).with(&target.port.get().to_be_bytes())
}

/// The endpoint that the value of a slot stands for.
pub(crate) fn parse_target(family: Family, bytes: &Bytes) -> Option<Target> {
    let bytes = bytes.as_slice();
    let (address, rest) = match family {
        Family::Ipv4 => {
            let (octets, rest) = bytes.split_first_chunk::<4>()?;
            (IpAddr::from(*octets), rest)
        }
        Family::Ipv6 => {
            let (octets, rest) = bytes.split_first_chunk::<16>()?;
            (IpAddr::from(*octets), rest)
        }
    };
    let &[high, low, ..] = rest else { return None };
    let port = Port::new(u16::from_be_bytes([high, low]))?;
    Some(Target { address, port })
}

/// The key of a hairpin.
pub(crate) fn hairpin(hairpin: &Hairpin) -> Bytes {
    let ip = address(hairpin.address);
    ip.with(ip.as_slice())
        .with(&[hairpin.protocol.number()])
        .with(&hairpin.port.get().to_be_bytes())
}

/// A name, shared by whoever holds it.
pub(crate) fn name(name: &str) -> Arc<str> {
    Arc::from(name)
}
