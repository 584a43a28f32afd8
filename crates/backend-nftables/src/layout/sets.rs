//! The sets and maps of Signpost's tables.

use std::sync::LazyLock;

use dataplane::{Family, FrontendKey};
use netlink::nf_tables::{DataType, Set, SetContent, SetWriter};
use nftables_model::FrontendFields;

/// The capacity of the affinity map that all Services share. An entry takes about 100 bytes of
/// kernel memory. kube-proxy has 65,536 entries for each endpoint.
const REMEMBERED: u32 = 1 << 18;
/// The capacity of the affinity map of one Service. Together these are as large as the shared one.
const RESERVED: u32 = 1 << 13;
/// The capacity of a set of frontends with full affinity maps. Frontends beyond it are not reported.
const FULL_AFFINITY_MAPS_CAPACITY: u32 = 1 << 10;

/// The names of the sets of source ranges, by prefix length.
static SOURCES: LazyLock<Vec<String>> =
    LazyLock::new(|| (0..=128).map(|bits| format!("sources-{bits}")).collect());

/// The names of the affinity maps of single Services, by number.
static ROOMS: LazyLock<[Vec<String>; 2]> = LazyLock::new(|| {
    ["clients", "nodeport-clients"].map(|clients| {
        let affinity_maps = 0..=AffinityMap::RESERVED;
        affinity_maps
            .map(|affinity_map| format!("{clients}-{affinity_map}"))
            .collect()
    })
});

/// The affinity map that holds a frontend's clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum AffinityMap {
    /// The map that all frontends share.
    Shared,
    /// A map for one Service, by its number: 1 to [`AffinityMap::RESERVED`]. Clients that find it full go
    /// to the shared one.
    Reserved(u8),
}

/// The sets and maps of a table, the same in both families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SetName {
    /// Every cluster IP.
    ClusterIps,
    /// The node's addresses that accept node ports, unless all of them do.
    NodePortAddresses,
    /// Endpoints of this node, as source and destination.
    Hairpins,
    /// Maps address, protocol, port to the number of the chain that chooses an endpoint.
    Services,
    /// For external policy Local: the number for pods of this node and the node itself.
    ShortCircuits,
    /// For external policy Local: the number for all other clients.
    Locals,
    /// Maps address, protocol, port, slot to the endpoint.
    Endpoints,
    /// Address, protocol, port of frontends without a usable endpoint.
    Refusals,
    /// Those of `Refusals` that have no endpoint on any node, and are rejected. The others are
    /// dropped.
    Rejects,
    /// With affinity: the number of the chain that stores a client's endpoint.
    Affinities,
    /// Maps client, address, protocol, port to that port and the slot of the client's endpoint.
    /// Written by packets.
    Clients,
    /// Like `Clients`, for the Service that has the affinity map of this number.
    ClientsIn(u8),
    /// Frontends that recently had no free entry for a new client. Written by packets.
    FullAffinityMaps,
    /// Address, protocol, port of frontends with source ranges.
    Restrictions,
    /// Address, protocol, port, allowed source prefix of this length.
    Sources(u8),
    /// Like `Services`, for node ports.
    NodePorts,
    /// Like `ShortCircuits`, for node ports.
    NodePortShortCircuits,
    /// Like `Locals`, for node ports.
    NodePortLocals,
    /// Like `Endpoints`, for node ports.
    NodePortEndpoints,
    /// Like `Refusals`, for node ports.
    NodePortRefusals,
    /// Like `Rejects`, for node ports.
    NodePortRejects,
    /// Like `Affinities`, for node ports.
    NodePortAffinities,
    /// Like `Clients`, for node ports.
    NodePortClients,
    /// Like `ClientsIn`, for node ports.
    NodePortClientsIn(u8),
    /// Like `FullAffinityMaps`, for node ports.
    NodePortFullAffinityMaps,
    /// Maps the numbers in `Services` to chains.
    ServiceChains,
    /// Maps the numbers in `ShortCircuits` and `Locals` to chains. Separate from `ServiceChains`,
    /// so that no chain can lead back to the chain it was reached from.
    LocalChains,
    /// Maps the numbers in `Affinities` to chains.
    LearningChains,
}

/// How a frontend is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Keyed {
    /// By address, protocol and port.
    Address,
    /// By protocol and port only, after the address was found to be one of the node's.
    NodePort,
}

// === impl SetName ===

impl SetName {
    /// The sets that exist in every table: all except [`SetName::Sources`] and the affinity maps of
    /// single Services.
    pub(crate) const FIXED: [SetName; 25] = [
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
        SetName::FullAffinityMaps,
        SetName::Restrictions,
        SetName::NodePorts,
        SetName::NodePortShortCircuits,
        SetName::NodePortLocals,
        SetName::NodePortEndpoints,
        SetName::NodePortRefusals,
        SetName::NodePortRejects,
        SetName::NodePortAffinities,
        SetName::NodePortClients,
        SetName::NodePortFullAffinityMaps,
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
            SetName::ClientsIn(affinity_map) => affinity_map_name(Keyed::Address, affinity_map),
            SetName::FullAffinityMaps => "crowded",
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
            SetName::NodePortClientsIn(affinity_map) => {
                affinity_map_name(Keyed::NodePort, affinity_map)
            }
            SetName::NodePortFullAffinityMaps => "nodeport-crowded",
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
        let affinity_maps = || {
            let affinity_maps = (1..=AffinityMap::RESERVED).map(AffinityMap::Reserved);
            let mut sets = affinity_maps
                .flat_map(|affinity_map| Keyed::ALL.map(|keyed| keyed.clients(affinity_map)));
            sets.find(|set| set.as_str() == name)
        };
        let mut fixed = SetName::FIXED.into_iter();
        let fixed = fixed.find(|set| set.as_str() == name);
        fixed.or_else(sources).or_else(affinity_maps)
    }

    /// How frontends are looked up in this set. Returns `None` for sets without frontends.
    pub(crate) fn keyed(self) -> Option<Keyed> {
        match self {
            SetName::ClusterIps
            | SetName::NodePortAddresses
            | SetName::Hairpins
            | SetName::Clients
            | SetName::ClientsIn(_)
            | SetName::FullAffinityMaps
            | SetName::NodePortClients
            | SetName::NodePortClientsIn(_)
            | SetName::NodePortFullAffinityMaps
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

    /// Whether it maps numbers to chains.
    pub(crate) fn is_numbers(self) -> bool {
        matches!(
            self,
            SetName::ServiceChains | SetName::LocalChains | SetName::LearningChains
        )
    }

    /// The set as it is created in `family`.
    pub(crate) fn set(self, family: Family) -> Set {
        let address = DataType::address(family);
        let mut key = match self.keyed() {
            None if matches!(
                self,
                SetName::Hairpins | SetName::Clients | SetName::ClientsIn(_)
            ) =>
            {
                vec![address, address, DataType::Protocol, DataType::Service]
            }
            None if matches!(
                self,
                SetName::NodePortClients
                    | SetName::NodePortClientsIn(_)
                    | SetName::FullAffinityMaps
            ) =>
            {
                vec![address, DataType::Protocol, DataType::Service]
            }
            None if self == SetName::NodePortFullAffinityMaps => {
                vec![DataType::Protocol, DataType::Service]
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
            | SetName::ClientsIn(_)
            | SetName::FullAffinityMaps
            | SetName::NodePorts
            | SetName::NodePortShortCircuits
            | SetName::NodePortLocals
            | SetName::NodePortAffinities
            | SetName::NodePortClients
            | SetName::NodePortClientsIn(_)
            | SetName::NodePortFullAffinityMaps => {
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
                SetName::ClientsIn(_) | SetName::NodePortClientsIn(_) => {
                    SetWriter::Packets { capacity: RESERVED }
                }
                SetName::FullAffinityMaps | SetName::NodePortFullAffinityMaps => {
                    SetWriter::Packets {
                        capacity: FULL_AFFINITY_MAPS_CAPACITY,
                    }
                }
                _ => SetWriter::Transactions,
            },
        }
    }
}

// === impl AffinityMap ===

impl AffinityMap {
    /// How many affinity maps for single Services there are in each family.
    pub(crate) const RESERVED: u8 = 31;

    /// The affinity map of this number; 0 is the shared one.
    pub(crate) fn of(number: u8) -> AffinityMap {
        match number {
            1..=AffinityMap::RESERVED => AffinityMap::Reserved(number),
            _ => AffinityMap::Shared,
        }
    }

    pub(crate) fn number(self) -> u8 {
        match self {
            AffinityMap::Shared => 0,
            AffinityMap::Reserved(number) => number,
        }
    }
}

fn affinity_map_name(keyed: Keyed, affinity_map: u8) -> &'static str {
    let [addresses, node_ports] = &*ROOMS;
    let (names, shared) = match keyed {
        Keyed::Address => (addresses, "clients"),
        Keyed::NodePort => (node_ports, "nodeport-clients"),
    };
    names
        .get(usize::from(affinity_map))
        .map_or(shared, String::as_str)
}

// === impl Keyed ===

impl Keyed {
    pub(crate) const ALL: [Keyed; 2] = [Keyed::Address, Keyed::NodePort];

    pub(crate) fn of(key: &FrontendKey) -> Keyed {
        match key {
            FrontendKey::Address { .. } => Keyed::Address,
            FrontendKey::NodePort { .. } => Keyed::NodePort,
        }
    }

    pub(crate) fn fields(self) -> FrontendFields {
        match self {
            Keyed::Address => FrontendFields::AddressAndPort,
            Keyed::NodePort => FrontendFields::Port,
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

    pub(crate) fn clients(self, affinity_map: AffinityMap) -> SetName {
        match (self, affinity_map) {
            (Keyed::Address, AffinityMap::Shared) => SetName::Clients,
            (Keyed::Address, AffinityMap::Reserved(affinity_map)) => {
                SetName::ClientsIn(affinity_map)
            }
            (Keyed::NodePort, AffinityMap::Shared) => SetName::NodePortClients,
            (Keyed::NodePort, AffinityMap::Reserved(affinity_map)) => {
                SetName::NodePortClientsIn(affinity_map)
            }
        }
    }

    pub(crate) fn full_affinity_maps(self) -> SetName {
        match self {
            Keyed::Address => SetName::FullAffinityMaps,
            Keyed::NodePort => SetName::NodePortFullAffinityMaps,
        }
    }

    /// The prefix of the names of chains for such frontends.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Keyed::Address => "",
            Keyed::NodePort => "nodeport-",
        }
    }
}
