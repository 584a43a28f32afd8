//! Programs Services as nf_tables elements.
//!
//! Each family has one table that only Signpost writes, over netlink. [`layout`] describes the
//! sets, [`chains`] the rules and the reason for each one's place. Together they form this packet
//! path:
//!
//! ```text
//! nat-prerouting, nat-output --jump--> dispatch
//!     services         { 10.96.0.10 . tcp . 80 : the number of cluster-3,
//!                        192.0.2.7 . tcp . 80 : the number of external-3, … }
//!     nodeports        { tcp . 30080 : the number of nodeport-external-3,
//!                        tcp . 30081 : the number of nodeport-external-local, … }
//!     service-chains   { the number of cluster-3 : goto cluster-3, … }
//! cluster-3            mark for masquerade unless a pod of this node sent it; goto lb-3
//! external-3           mark for masquerade; goto lb-3
//! lb-3                 dnat to daddr . proto . dport . numgen random mod 3 map @endpoints
//! sticky-lb-3          dnat to daddr . proto . dport .
//!                        (saddr . daddr . proto . dport map @clients) map @endpoints; goto lb-3
//! external-local       from pods of this node, and from the node itself (marked):
//!                        short-circuits { … : the number of lb-3 }
//!                      from all others:
//!                        locals { … : the number of local-1 }
//! nat-postrouting --jump--> masquerading
//!                      masquerade marked packets, and packets from an endpoint to itself
//! nat-*-learn          affinities { … : the number of learn-10800 }:
//!                        update @clients with a hash of the endpoint
//! filter-prerouting    restrictions goto allow-sources:
//!                        daddr . proto . dport . saddr/24 @sources-24; drop
//! filter-*             refusals: reject or drop; the same for cluster IPs and Service CIDRs
//! ```
//!
//! The rules of `dispatch` and those that refuse packets count them. With the [`flowtable`], later packets
//! of a connection may traverse none of these.

mod canonical;
mod chains;
mod compare;
mod diff;
mod flowtable;
mod full_affinity_maps;
mod inspect;
mod kernel;
mod layout;
mod render;
mod simulate;
mod slots;
mod table;

pub use chains::COUNTED;
pub use diff::Change;
pub use full_affinity_maps::observe_full_affinity_maps;
pub use kernel::{Nftables, open, open_with_listener, open_with_socket};
pub use layout::{NEXT, TABLE};
pub use nftables_model::{NotificationListener, Refused};
pub use simulate::{Memory, paths, simulate, simulate_next};
pub use table::Table;
