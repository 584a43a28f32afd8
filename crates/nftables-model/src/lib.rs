//! Tables of nf_tables as values: what rules and keys for Services are put together from, a kernel in
//! memory that carries out transactions, and packets that walk through the rules.
//!
//! What backends share that write such tables. It knows no layout: which sets there are, what their
//! elements mean and which hooks a packet passes is for the backend to say.

mod affinity;
mod contents;
mod key;
mod observe;
mod parts;
mod recovery;
mod refusals;
mod replay;
mod source_ranges;
mod table_socket;
mod walk;

pub use affinity::{
    STICKY_MODULUS, STICKY_SEED, STICKY_SLOTS, lookup_number, number_comment, sticky_slot,
};
pub use contents::{ChainWithRules, Chains, Contents, Elements, SetWithElements, Sets};
pub use key::{
    FrontendFields, address, behind_frontend, frontend, hairpin, name, parse_address,
    parse_frontend, parse_target, source, target,
};
pub use parts::{
    Address, address_type_local, after, compare, ct_dnat, ct_new, family_of, in_range,
    load_address, load_frontend, load_port, load_prefix, load_protocol_and_port, local_source,
    mark, member, not_loopback, rule, verdict,
};
pub use recovery::{recovery, recovery_of_reading};
pub use refusals::{
    base, refuse_arrivals, refuse_cluster_ips, regular, reject_or_drop, reject_ports,
};
pub use replay::Refused;
pub use source_ranges::allow_sources;
pub use table_socket::{Seen, TableSocket};
pub use walk::{End, Memory, Step, View, Walk, simulate, simulate_next, ways};
