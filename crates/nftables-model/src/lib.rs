//! nf_tables tables as values: the parts of rules and keys for Services, an in-memory kernel that
//! commits transactions, and packets that traverse the rules.
//!
//! Backends that write such tables share this crate. Of a table it contains only the chains that
//! refuse packets and restrict their sources: the backend defines which sets exist, what their
//! elements mean and which hooks a packet traverses.

mod affinity;
mod affinity_timeout;
mod contents;
mod full_affinity_maps;
mod in_parts;
mod key;
mod notification_listener;
mod observe;
mod packet_counters;
mod parts;
mod recovery;
mod refusals;
mod replay;
mod source_ranges;
mod support;
mod table_socket;
mod walk;

pub use affinity::{
    STICKY_MODULUS, STICKY_SEED, STICKY_SLOTS, lookup_number, number_comment, sticky_slot,
};
pub use affinity_timeout::AffinityTimeout;
pub use contents::{
    ChainWithRules, Chains, Contents, Elements, FlowtableWithDevices, Flowtables, SetWithElements,
    Sets,
};
pub use full_affinity_maps::{
    FULL_AFFINITY_MAP_TIMEOUT, FullAffinityMapError, FullAffinityMapSocket,
};
pub use in_parts::commit_in_parts;
pub use key::{
    FrontendFields, address, behind_frontend, frontend, hairpin, name, parse_address,
    parse_frontend, parse_target, source, target,
};
pub use notification_listener::NotificationListener;
pub use packet_counters::{
    ALLOW_SOURCES, CountedPackets, CountedRule, PacketCountError, PacketCounters, PacketCounts,
    REFUSE, REFUSE_CLUSTER_IPS, REFUSE_NODE_PORT, REFUSE_PORTS, REFUSE_UNREDIRECTED, RefusalReason,
    RuleEnd, counted_rules,
};
pub use parts::{
    Address, address_type_local, after, compare, counted, ct_dnat, ct_established, ct_new,
    family_of, in_range, load_address, load_frontend, load_mark, load_port, load_prefix,
    load_protocol_and_port, local_source, lookup_frontend, mark, marked, member, rule,
    to_node_port_address, verdict,
};
pub use recovery::{recovery, recovery_of_reading};
pub use refusals::{
    REFUSE_ARRIVALS, REFUSE_NODE_PORTS, REFUSE_SERVICES, base, refusal_chains, regular,
};
pub use replay::Refused;
pub use source_ranges::{RESTRICT, RangePart, RangesAhead, allow_sources, ranges_ahead};
pub use support::{MissingFeature, Probe, Support};
pub use table_socket::{RulesetVersion, TableSocket};
pub use walk::{End, Memory, Step, View, Walk, paths, simulate, simulate_next};
