//! The packet marks, and the names and shapes of the sets.

use std::sync::LazyLock;

use backend::FORWARDING_MARKS;
use dataplane::{Family, FrontendKey};
use netlink::ipvs::MarkRange;
use netlink::nf_tables::{DataType, Set, SetContent, SetWriter};
use netlink::route::LocalDelivery;
use nftables_model::{FrontendFields, name};

/// The name of the table, in each family.
pub const TABLE: &str = "signpost-ipvs";
/// The name, in each family, of the table for connections that outlive the mode.
pub const ENDING_TABLE: &str = "signpost-ipvs-ending";

/// The marks of virtual servers. Number 0 has no virtual server: it is [`STEERED`].
pub const MARKS: MarkRange =
    MarkRange::new(FORWARDING_MARKS.value, 20).expect("the first mark has none of the lowest bits");
/// The first bits of [`MARKS`].
pub(crate) const MARKED: u32 = FORWARDING_MARKS.value;
/// The mask of the bits of [`MARKED`].
pub(crate) const MARKED_MASK: u32 = FORWARDING_MARKS.mask;
/// The mark of a packet on an existing connection of IPVS. It has no virtual server: if IPVS has
/// forgotten the connection, the packet is refused rather than sent to another Service.
pub(crate) const STEERED: u32 = MARKED;
/// The mark of a packet that IPVS has forwarded.
pub(crate) const DONE: u32 = 0x5350_0000;
/// The mask of the bits that [`MARKED`] and [`DONE`] have in common.
pub(crate) const ANY_MASK: u32 = 0xffe0_0000;

/// The routing rule that brings packets marked [`MARKED`] to IPVS. The kernel's rule for local
/// addresses has priority 0; the known rules of other programs come after this one.
pub(crate) const DELIVERY: LocalDelivery = LocalDelivery {
    mark: MARKED,
    mask: MARKED_MASK,
    table: MARKED,
    priority: 83,
};

/// The label of a connection that goes through IPVS.
pub(crate) const TAKEN_LABEL: usize = 114;
/// The label of a connection that is masqueraded.
pub(crate) const MASQUERADE_LABEL: usize = 115;

/// The capacity of the affinity map of all Services. An entry takes about 100 bytes of kernel
/// memory. kube-proxy has 65,536 entries for each endpoint.
const REMEMBERED: u32 = 1 << 18;
/// The number of affinity maps that each serve some of the namespaces.
pub(crate) const CLIENT_MAPS: u8 = 31;
/// The capacity of each of them: together they have as many entries as the map of all Services.
const REMEMBERED_PER_MAP: u32 = 1 << 13;
/// The capacity of the map of virtual servers with full affinity maps.
const RECORDED: u32 = 1 << 10;

/// The names of the sets of source ranges, by prefix length.
static SOURCES: LazyLock<Vec<String>> =
    LazyLock::new(|| (0..=128).map(|bits| format!("sources-{bits}")).collect());

/// The names of the affinity maps, by number.
static CLIENTS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let maps = 0..=CLIENT_MAPS;
    maps.map(|map| format!("clients-{map}")).collect()
});

/// The sets and maps of a table, the same in both families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SetName {
    /// Every cluster IP.
    ClusterIps,
    /// The node's addresses that accept node ports, unless all of them do.
    NodePortAddresses,
    /// Endpoints of this node, as source and destination.
    Hairpins,
    /// The owner of each mark. Not used by packets: an agent reads it when it starts.
    Owners,
    /// With affinity: maps a mark to the number of the chains of its
    /// [`AffinityGroup`](crate::chains::affinity::AffinityGroup).
    Affinities,
    /// With affinity: maps a mark and the slot of a client to the endpoint, if it accepts new
    /// connections.
    Slots,
    /// Maps client and mark to that mark and the slot of the client's endpoint. Written by packets,
    /// for clients that find the map of their namespace full.
    Clients,
    /// The same for the namespaces of this affinity map, from 1 to [`CLIENT_MAPS`].
    NamespaceClients(u8),
    /// The marks of virtual servers with affinity whose new clients found both maps full. Written
    /// by packets.
    FullAffinityMaps,
    /// Maps the numbers in `Affinities` to the chains that send clients to their endpoints.
    ReturnChains,
    /// Maps the numbers in `Affinities` to the chains that store clients' endpoints.
    LearningChains,
    /// The marks of cluster IPs.
    Services,
    /// The marks of other addresses with policy Cluster.
    Externals,
    /// With external policy Local: the marks for pods of this node and the node itself.
    ShortCircuits,
    /// With external policy Local: the marks for all other clients.
    Locals,
    /// Frontends without a usable endpoint.
    Refusals,
    /// Those of `Refusals` that have no endpoint on any node, and are rejected. The others are
    /// dropped.
    Rejects,
    /// Frontends with source ranges.
    Restrictions,
    /// Frontend, allowed source prefix of this length.
    Sources(u8),
    /// Like `Externals`, for node ports.
    NodePorts,
    /// Like `ShortCircuits`, for node ports.
    NodePortShortCircuits,
    /// Like `Locals`, for node ports.
    NodePortLocals,
    /// Like `Refusals`, for node ports.
    NodePortRefusals,
    /// Like `Rejects`, for node ports.
    NodePortRejects,
}

/// The kind of elements of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Addresses.
    Addresses,
    /// Addresses as source and destination, with protocol and port.
    Hairpins,
    /// Marks, each with the hash of its owner.
    Owners,
    /// Marks, each with a number after another value.
    Numbers,
    /// Marks with slots, each with an endpoint.
    Slots,
    /// Clients and marks, each with that mark and a slot.
    Clients,
    /// Marks, each with itself twice.
    FullAffinityMaps,
    /// Numbers, each with a chain.
    Chains,
    /// Frontends, each with a mark.
    Marks(FrontendFields),
    /// Frontends.
    Members(FrontendFields),
    /// Frontends with an address, each with a source.
    Sources,
}

// === impl SetName ===

impl SetName {
    /// The sets that exist in every table: all except [`SetName::Sources`] and
    /// [`SetName::NamespaceClients`].
    pub(crate) const FIXED: [SetName; 22] = [
        SetName::ClusterIps,
        SetName::NodePortAddresses,
        SetName::Hairpins,
        SetName::Owners,
        SetName::Affinities,
        SetName::Slots,
        SetName::Clients,
        SetName::FullAffinityMaps,
        SetName::ReturnChains,
        SetName::LearningChains,
        SetName::Services,
        SetName::Externals,
        SetName::ShortCircuits,
        SetName::Locals,
        SetName::Refusals,
        SetName::Rejects,
        SetName::Restrictions,
        SetName::NodePorts,
        SetName::NodePortShortCircuits,
        SetName::NodePortLocals,
        SetName::NodePortRefusals,
        SetName::NodePortRejects,
    ];

    /// The maps from frontends to marks.
    pub(crate) const MARKS: [SetName; 7] = [
        SetName::Services,
        SetName::Externals,
        SetName::ShortCircuits,
        SetName::Locals,
        SetName::NodePorts,
        SetName::NodePortShortCircuits,
        SetName::NodePortLocals,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            SetName::ClusterIps => "cluster-ips",
            SetName::NodePortAddresses => "nodeport-addresses",
            SetName::Hairpins => "hairpins",
            SetName::Owners => "owners",
            SetName::Affinities => "affinities",
            SetName::Slots => "slots",
            SetName::Clients => "clients",
            SetName::NamespaceClients(map) => CLIENTS
                .get(usize::from(map))
                .map_or("clients", String::as_str),
            SetName::FullAffinityMaps => "crowded",
            SetName::ReturnChains => "return-chains",
            SetName::LearningChains => "learning-chains",
            SetName::Services => "services",
            SetName::Externals => "externals",
            SetName::ShortCircuits => "short-circuits",
            SetName::Locals => "locals",
            SetName::Refusals => "refusals",
            SetName::Rejects => "rejects",
            SetName::Restrictions => "restrictions",
            SetName::Sources(bits) => SOURCES
                .get(usize::from(bits))
                .map_or("sources", String::as_str),
            SetName::NodePorts => "nodeports",
            SetName::NodePortShortCircuits => "nodeport-short-circuits",
            SetName::NodePortLocals => "nodeport-locals",
            SetName::NodePortRefusals => "nodeport-refusals",
            SetName::NodePortRejects => "nodeport-rejects",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<SetName> {
        let sources = || {
            let bits = name.strip_prefix("sources-")?.parse().ok()?;
            let set = SetName::Sources(bits);
            (bits <= 128 && set.as_str() == name).then_some(set)
        };
        let clients = || {
            let map = name.strip_prefix("clients-")?.parse().ok()?;
            let set = SetName::NamespaceClients(map);
            ((1..=CLIENT_MAPS).contains(&map) && set.as_str() == name).then_some(set)
        };
        let mut fixed = SetName::FIXED.into_iter();
        let found = fixed.find(|set| set.as_str() == name);
        found.or_else(sources).or_else(clients)
    }

    pub(crate) fn shape(self) -> Shape {
        use FrontendFields::{AddressAndPort, Port};
        match self {
            SetName::ClusterIps | SetName::NodePortAddresses => Shape::Addresses,
            SetName::Hairpins => Shape::Hairpins,
            SetName::Owners => Shape::Owners,
            SetName::Affinities => Shape::Numbers,
            SetName::Slots => Shape::Slots,
            SetName::Clients | SetName::NamespaceClients(_) => Shape::Clients,
            SetName::FullAffinityMaps => Shape::FullAffinityMaps,
            SetName::ReturnChains | SetName::LearningChains => Shape::Chains,
            SetName::Services | SetName::Externals | SetName::ShortCircuits | SetName::Locals => {
                Shape::Marks(AddressAndPort)
            }
            SetName::NodePorts | SetName::NodePortShortCircuits | SetName::NodePortLocals => {
                Shape::Marks(Port)
            }
            SetName::Refusals | SetName::Rejects | SetName::Restrictions => {
                Shape::Members(AddressAndPort)
            }
            SetName::NodePortRefusals | SetName::NodePortRejects => Shape::Members(Port),
            SetName::Sources(_) => Shape::Sources,
        }
    }

    /// The frontend fields at the start of its keys; `None` for sets without frontends.
    pub(crate) fn fields(self) -> Option<FrontendFields> {
        match self.shape() {
            Shape::Marks(fields) | Shape::Members(fields) => Some(fields),
            Shape::Sources => Some(FrontendFields::AddressAndPort),
            Shape::Addresses
            | Shape::Hairpins
            | Shape::Owners
            | Shape::Numbers
            | Shape::Slots
            | Shape::Clients
            | Shape::FullAffinityMaps
            | Shape::Chains => None,
        }
    }

    /// The set as it is created in `family`.
    pub(crate) fn set(self, family: Family) -> Set {
        let address = DataType::address(family);
        let port = [DataType::Protocol, DataType::Service];
        let frontend = |fields| match fields {
            FrontendFields::AddressAndPort => [&[address][..], &port].concat(),
            FrontendFields::Port => port.to_vec(),
        };
        let (key, content) = match self.shape() {
            Shape::Addresses => (vec![address], SetContent::Membership),
            Shape::Hairpins => (
                [&[address, address][..], &port].concat(),
                SetContent::Membership,
            ),
            Shape::Owners | Shape::Numbers => (
                vec![DataType::Mark],
                SetContent::Values(vec![DataType::Mark, DataType::Mark]),
            ),
            Shape::Slots => (
                vec![DataType::Mark, DataType::Mark],
                SetContent::Values(vec![address, DataType::Service]),
            ),
            Shape::Clients => (
                vec![address, DataType::Mark],
                SetContent::Values(vec![DataType::Mark, DataType::Mark]),
            ),
            Shape::FullAffinityMaps => (
                vec![DataType::Mark],
                SetContent::Values(vec![DataType::Mark, DataType::Mark]),
            ),
            Shape::Chains => (vec![DataType::Mark], SetContent::Verdicts),
            Shape::Marks(fields) => (frontend(fields), SetContent::Values(vec![DataType::Mark])),
            Shape::Members(fields) => (frontend(fields), SetContent::Membership),
            Shape::Sources => (
                [&frontend(FrontendFields::AddressAndPort)[..], &[address]].concat(),
                SetContent::Membership,
            ),
        };
        Set {
            name: name(self.as_str()),
            key,
            content,
            writer: match self {
                SetName::Clients => SetWriter::Packets {
                    capacity: REMEMBERED,
                },
                SetName::NamespaceClients(_) => SetWriter::Packets {
                    capacity: REMEMBERED_PER_MAP,
                },
                SetName::FullAffinityMaps => SetWriter::Packets { capacity: RECORDED },
                _ => SetWriter::Transactions,
            },
        }
    }
}

/// The fields of a frontend in its key.
pub(crate) fn fields_of(key: &FrontendKey) -> FrontendFields {
    match key {
        FrontendKey::Address { .. } => FrontendFields::AddressAndPort,
        FrontendKey::NodePort { .. } => FrontendFields::Port,
    }
}
