//! Every set and map that our tables have.

use std::sync::LazyLock;

use dataplane::{Family, FrontendKey};
use netlink::nf_tables::{DataType, Set, SetContent, SetWriter};

use super::nft_family;

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
    /// Address, protocol, port to the number of the chain where its endpoints are chosen.
    Services,
    /// For external policy Local: the number for pods of this node and this node itself.
    ShortCircuits,
    /// For external policy Local: the number for everyone else.
    Locals,
    /// Address, protocol, port, slot to endpoint.
    Endpoints,
    /// Address, protocol, port without an endpoint that may be used.
    Refusals,
    /// Of these, those that have none anywhere, which is said; the others are silent.
    Rejects,
    /// With affinity: the number of the chain that remembers a client's endpoint.
    Affinities,
    /// Client, address, protocol, port to that port and the slot of the client's endpoint. Packets
    /// write it.
    Clients,
    /// With source ranges: address, protocol, port.
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
    /// As `Rejects`, for node ports.
    NodePortRejects,
    /// As `Affinities`, for node ports.
    NodePortAffinities,
    /// As `Clients`, for node ports.
    NodePortClients,
    /// The numbers in `Services` to chains.
    ServiceChains,
    /// The numbers in `ShortCircuits` and `Locals` to chains. Others than those, so that no chain can
    /// lead back to where it was led to from.
    LocalChains,
    /// The numbers in `Affinities` to chains.
    LearningChains,
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
    pub(crate) const FIXED: [SetName; 23] = [
        SetName::ClusterIps,
        SetName::NodePortAddresses,
        SetName::Hairpins,
        SetName::Services,
        SetName::ShortCircuits,
        SetName::Locals,
        SetName::Endpoints,
        SetName::Refusals,
        SetName::Rejects,
        SetName::Affinities,
        SetName::Clients,
        SetName::Restrictions,
        SetName::NodePorts,
        SetName::NodePortShortCircuits,
        SetName::NodePortLocals,
        SetName::NodePortEndpoints,
        SetName::NodePortRefusals,
        SetName::NodePortRejects,
        SetName::NodePortAffinities,
        SetName::NodePortClients,
        SetName::ServiceChains,
        SetName::LocalChains,
        SetName::LearningChains,
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
            SetName::Rejects => "rejects",
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
            SetName::NodePortRejects => "nodeport-rejects",
            SetName::NodePortAffinities => "nodeport-affinities",
            SetName::NodePortClients => "nodeport-clients",
            SetName::ServiceChains => "service-chains",
            SetName::LocalChains => "local-chains",
            SetName::LearningChains => "learning-chains",
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
            | SetName::NodePortClients
            | SetName::ServiceChains
            | SetName::LocalChains
            | SetName::LearningChains => None,
            SetName::Services
            | SetName::ShortCircuits
            | SetName::Locals
            | SetName::Endpoints
            | SetName::Refusals
            | SetName::Rejects
            | SetName::Affinities
            | SetName::Restrictions
            | SetName::Sources(_) => Some(Keyed::Address),
            SetName::NodePorts
            | SetName::NodePortShortCircuits
            | SetName::NodePortLocals
            | SetName::NodePortEndpoints
            | SetName::NodePortRefusals
            | SetName::NodePortRejects
            | SetName::NodePortAffinities => Some(Keyed::NodePort),
        }
    }

    /// Whether it leads from numbers to chains.
    pub(crate) fn is_numbers(self) -> bool {
        matches!(
            self,
            SetName::ServiceChains | SetName::LocalChains | SetName::LearningChains
        )
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
            None if self.is_numbers() => vec![DataType::Mark],
            None => vec![address],
            Some(Keyed::Address) => vec![address, DataType::Protocol, DataType::Service],
            Some(Keyed::NodePort) => vec![DataType::Protocol, DataType::Service],
        };
        let content = match self {
            SetName::ClusterIps
            | SetName::NodePortAddresses
            | SetName::Hairpins
            | SetName::Refusals
            | SetName::Rejects
            | SetName::Restrictions
            | SetName::NodePortRefusals
            | SetName::NodePortRejects => SetContent::Membership,
            SetName::Sources(_) => {
                key.push(address);
                SetContent::Membership
            }
            SetName::Services
            | SetName::ShortCircuits
            | SetName::Locals
            | SetName::Affinities
            | SetName::Clients
            | SetName::NodePorts
            | SetName::NodePortShortCircuits
            | SetName::NodePortLocals
            | SetName::NodePortAffinities
            | SetName::NodePortClients => {
                SetContent::Values(vec![DataType::Service, DataType::Mark])
            }
            SetName::Endpoints | SetName::NodePortEndpoints => {
                key.push(DataType::Mark);
                SetContent::Values(vec![address, DataType::Service])
            }
            SetName::ServiceChains | SetName::LocalChains | SetName::LearningChains => {
                SetContent::Verdicts
            }
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

    pub(crate) fn rejects(self) -> SetName {
        match self {
            Keyed::Address => SetName::Rejects,
            Keyed::NodePort => SetName::NodePortRejects,
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
