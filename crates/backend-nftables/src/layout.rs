//! The names and shapes of everything in our tables.
//!
//! A Service is nothing but elements: no chain, set or rule is ever made for one. What grows with
//! the cluster is data in maps, which the kernel adds and removes in constant time; what decides is
//! a fixed handful of chains, and one pair of chains for each number of endpoints in use.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use dataplane::{Family, FrontendKey, Hairpin, Port, Protocol, Target};
use ipnet::IpNet;
use netlink::nf_tables::{
    self, Bytes, DataType, Set, SetContent, SetWriter, jhash, reciprocal_scale,
};

/// The name of our table, in each family.
pub const TABLE: &str = "signpost";

/// Slots of the endpoints of this node begin here, those of all endpoints at 0, and neither can grow
/// into the other. The kernel draws a number below the count of endpoints and adds this.
pub(crate) const LOCAL_SLOTS: u32 = 1 << 31;

/// Slots that affinity remembers begin here and end before [`LOCAL_SLOTS`]. An endpoint's is made
/// of its address and port, so that it stays the same whatever the other endpoints do. One of this
/// node has another one, as far behind [`LOCAL_SLOTS`]: who may be sent to nothing else is only
/// looked up there.
pub(crate) const STICKY_SLOTS: u32 = 1 << 30;
/// How many of them there are.
pub(crate) const STICKY_MODULUS: u32 = 1 << 30;
/// What the hash of an endpoint starts from. Any number will do, as long as it stays: the slots
/// that packets have written down outlive the agent.
pub(crate) const STICKY_SEED: u32 = 0x5370_5374;

/// How many clients may be remembered at once, over all Services with affinity: about 100 bytes of
/// kernel memory each. kube-proxy has 65,536 for each endpoint.
const REMEMBERED: u32 = 1 << 18;

/// The names of the sets of source ranges, by the length of their prefixes.
static SOURCES: LazyLock<Vec<String>> =
    LazyLock::new(|| (0..=128).map(|bits| format!("sources-{bits}")).collect());

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
    /// With affinity: for how long a client's endpoint is remembered.
    Affinities,
    /// Client, address, protocol, port to that port and the slot of the client's endpoint. Packets
    /// write it.
    Clients,
    /// With source ranges: address, protocol, port to the question who may connect.
    Restrictions,
    /// Address, protocol, port, source of so many bits that may connect.
    Sources(u8),
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
    /// As `Affinities`, for node ports.
    NodePortAffinities,
    /// As `Clients`, for node ports.
    NodePortClients,
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
    /// Those that are always there: all but [`SetName::Sources`].
    pub(crate) const FIXED: [SetName; 18] = [
        SetName::ClusterIps,
        SetName::NodePortAddresses,
        SetName::Hairpins,
        SetName::Services,
        SetName::ShortCircuits,
        SetName::Locals,
        SetName::Endpoints,
        SetName::Refusals,
        SetName::Affinities,
        SetName::Clients,
        SetName::Restrictions,
        SetName::NodePorts,
        SetName::NodePortShortCircuits,
        SetName::NodePortLocals,
        SetName::NodePortEndpoints,
        SetName::NodePortRefusals,
        SetName::NodePortAffinities,
        SetName::NodePortClients,
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
            SetName::Affinities => "affinities",
            SetName::Clients => "clients",
            SetName::Restrictions => "restrictions",
            SetName::Sources(bits) => SOURCES
                .get(usize::from(bits))
                .map_or("sources", String::as_str),
            SetName::NodePorts => "nodeports",
            SetName::NodePortShortCircuits => "nodeport-short-circuits",
            SetName::NodePortLocals => "nodeport-locals",
            SetName::NodePortEndpoints => "nodeport-endpoints",
            SetName::NodePortRefusals => "nodeport-refusals",
            SetName::NodePortAffinities => "nodeport-affinities",
            SetName::NodePortClients => "nodeport-clients",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<SetName> {
        let sources = || {
            let bits = SOURCES.iter().position(|sources| sources == name)?;
            u8::try_from(bits).ok().map(SetName::Sources)
        };
        let mut fixed = SetName::FIXED.into_iter();
        fixed.find(|set| set.as_str() == name).or_else(sources)
    }

    /// What a frontend's elements in this set are found by; `None` for sets without frontends.
    pub(crate) fn keyed(self) -> Option<Keyed> {
        match self {
            SetName::ClusterIps
            | SetName::NodePortAddresses
            | SetName::Hairpins
            | SetName::Clients
            | SetName::NodePortClients => None,
            SetName::Services
            | SetName::ShortCircuits
            | SetName::Locals
            | SetName::Endpoints
            | SetName::Refusals
            | SetName::Affinities
            | SetName::Restrictions
            | SetName::Sources(_) => Some(Keyed::Address),
            SetName::NodePorts
            | SetName::NodePortShortCircuits
            | SetName::NodePortLocals
            | SetName::NodePortEndpoints
            | SetName::NodePortRefusals
            | SetName::NodePortAffinities => Some(Keyed::NodePort),
        }
    }

    /// The set as it is created in `family`.
    pub(crate) fn set(self, family: Family) -> Set {
        let address = nft_family(family).address();
        let mut key = match self.keyed() {
            None if matches!(self, SetName::Hairpins | SetName::Clients) => {
                vec![address, address, DataType::Protocol, DataType::Service]
            }
            None if self == SetName::NodePortClients => {
                vec![address, DataType::Protocol, DataType::Service]
            }
            None => vec![address],
            Some(Keyed::Address) => vec![address, DataType::Protocol, DataType::Service],
            Some(Keyed::NodePort) => vec![DataType::Protocol, DataType::Service],
        };
        let content = match self {
            SetName::ClusterIps | SetName::NodePortAddresses | SetName::Hairpins => {
                SetContent::Membership
            }
            SetName::Sources(_) => {
                key.push(address);
                SetContent::Membership
            }
            SetName::Clients | SetName::NodePortClients => {
                SetContent::Values(vec![DataType::Service, DataType::Mark])
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
            writer: match self {
                SetName::Clients | SetName::NodePortClients => SetWriter::Packets {
                    capacity: REMEMBERED,
                },
                _ => SetWriter::Transactions,
            },
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

    pub(crate) fn affinities(self) -> SetName {
        match self {
            Keyed::Address => SetName::Affinities,
            Keyed::NodePort => SetName::NodePortAffinities,
        }
    }

    pub(crate) fn clients(self) -> SetName {
        match self {
            Keyed::Address => SetName::Clients,
            Keyed::NodePort => SetName::NodePortClients,
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

/// The slot by which affinity remembers an endpoint: what the kernel's hash of its address and port
/// as they lie in registers comes to. Two endpoints of one frontend may have the same, once in a
/// billion; then the clients of both go to one of them.
pub(crate) fn sticky_slot(to: &Target) -> u32 {
    let hash = jhash(target(to).as_slice(), STICKY_SEED);
    STICKY_SLOTS + reciprocal_scale(hash, STICKY_MODULUS)
}

/// The key of one range of sources that may connect to a frontend.
pub(crate) fn source(frontend: Bytes, range: &IpNet) -> Bytes {
    frontend.with(address(range.network()).as_slice())
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
    ip.clone()
        .with(ip.as_slice())
        .with(&[hairpin.protocol.number()])
        .with(&hairpin.port.get().to_be_bytes())
}

/// A name, shared by whoever holds it.
pub(crate) fn name(name: &str) -> Arc<str> {
    Arc::from(name)
}
