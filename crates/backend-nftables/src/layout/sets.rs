//! Every set and map that our tables have.

use std::sync::LazyLock;

use dataplane::{Family, FrontendKey};
use netlink::nf_tables::{DataType, Set, SetContent, SetWriter};
use nftables_model::FrontendFields;

/// How many clients may be remembered at once in the room that all Services with affinity share:
/// about 100 bytes of kernel memory each. kube-proxy has 65,536 for each endpoint.
const REMEMBERED: u32 = 1 << 18;
/// How many in a room of one Service's own. All such rooms together are as large as the shared one.
const RESERVED: u32 = 1 << 13;
/// How many frontends may be written down whose clients found no room. Of more, some are not told.
const TOLD: u32 = 1 << 10;

/// The names of the sets of source ranges, by the length of their prefixes.
static SOURCES: LazyLock<Vec<String>> =
    LazyLock::new(|| (0..=128).map(|bits| format!("sources-{bits}")).collect());

/// The names of the maps of clients that have a room of their own, by its number.
static ROOMS: LazyLock<[Vec<String>; 2]> = LazyLock::new(|| {
    ["clients", "nodeport-clients"].map(|clients| {
        let rooms = 0..=Room::RESERVED;
        rooms.map(|room| format!("{clients}-{room}")).collect()
    })
});

/// Where the clients of a frontend with affinity are remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Room {
    /// With those of all others.
    Shared,
    /// In a map for one Service, by its number: 1 to [`Room::RESERVED`]. Whoever finds it full is
    /// remembered in the shared one.
    Reserved(u8),
}

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
    /// As `Clients`, of the Service that has the room of this number.
    ClientsIn(u8),
    /// Frontends whose clients found no room a while ago. Packets write it.
    Crowded,
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
    /// As `ClientsIn`, for node ports.
    NodePortClientsIn(u8),
    /// As `Crowded`, for node ports.
    NodePortCrowded,
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
    /// Those that are always there: all but [`SetName::Sources`] and the rooms of clients.
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
        SetName::Crowded,
        SetName::Restrictions,
        SetName::NodePorts,
        SetName::NodePortShortCircuits,
        SetName::NodePortLocals,
        SetName::NodePortEndpoints,
        SetName::NodePortRefusals,
        SetName::NodePortRejects,
        SetName::NodePortAffinities,
        SetName::NodePortClients,
        SetName::NodePortCrowded,
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
            SetName::ClientsIn(room) => room_name(Keyed::Address, room),
            SetName::Crowded => "crowded",
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
            SetName::NodePortClientsIn(room) => room_name(Keyed::NodePort, room),
            SetName::NodePortCrowded => "nodeport-crowded",
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
        let rooms = || {
            let rooms = (1..=Room::RESERVED).map(Room::Reserved);
            let mut sets = rooms.flat_map(|room| Keyed::ALL.map(|keyed| keyed.clients(room)));
            sets.find(|set| set.as_str() == name)
        };
        let mut fixed = SetName::FIXED.into_iter();
        let fixed = fixed.find(|set| set.as_str() == name);
        fixed.or_else(sources).or_else(rooms)
    }

    /// What a frontend's elements in this set are found by; `None` for sets without frontends.
    pub(crate) fn keyed(self) -> Option<Keyed> {
        match self {
            SetName::ClusterIps
            | SetName::NodePortAddresses
            | SetName::Hairpins
            | SetName::Clients
            | SetName::ClientsIn(_)
            | SetName::Crowded
            | SetName::NodePortClients
            | SetName::NodePortClientsIn(_)
            | SetName::NodePortCrowded
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
                SetName::NodePortClients | SetName::NodePortClientsIn(_) | SetName::Crowded
            ) =>
            {
                vec![address, DataType::Protocol, DataType::Service]
            }
            None if self == SetName::NodePortCrowded => vec![DataType::Protocol, DataType::Service],
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
            | SetName::Crowded
            | SetName::NodePorts
            | SetName::NodePortShortCircuits
            | SetName::NodePortLocals
            | SetName::NodePortAffinities
            | SetName::NodePortClients
            | SetName::NodePortClientsIn(_)
            | SetName::NodePortCrowded => {
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
                SetName::Crowded | SetName::NodePortCrowded => {
                    SetWriter::Packets { capacity: TOLD }
                }
                _ => SetWriter::Transactions,
            },
        }
    }
}

// === impl Room ===

impl Room {
    /// How many are reserved: as many Services with affinity, in each family, have a room of their own.
    pub(crate) const RESERVED: u8 = 31;

    /// The room of this number; 0 is the shared one.
    pub(crate) fn of(number: u8) -> Room {
        match number {
            1..=Room::RESERVED => Room::Reserved(number),
            _ => Room::Shared,
        }
    }

    pub(crate) fn number(self) -> u8 {
        match self {
            Room::Shared => 0,
            Room::Reserved(number) => number,
        }
    }
}

fn room_name(keyed: Keyed, room: u8) -> &'static str {
    let [addresses, node_ports] = &*ROOMS;
    let (names, shared) = match keyed {
        Keyed::Address => (addresses, "clients"),
        Keyed::NodePort => (node_ports, "nodeport-clients"),
    };
    names.get(usize::from(room)).map_or(shared, String::as_str)
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

    pub(crate) fn clients(self, room: Room) -> SetName {
        match (self, room) {
            (Keyed::Address, Room::Shared) => SetName::Clients,
            (Keyed::Address, Room::Reserved(room)) => SetName::ClientsIn(room),
            (Keyed::NodePort, Room::Shared) => SetName::NodePortClients,
            (Keyed::NodePort, Room::Reserved(room)) => SetName::NodePortClientsIn(room),
        }
    }

    pub(crate) fn crowded(self) -> SetName {
        match self {
            Keyed::Address => SetName::Crowded,
            Keyed::NodePort => SetName::NodePortCrowded,
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
