//! Programs Services as IPVS virtual servers behind an nf_tables classification.
//!
//! nf_tables decides as in mode nftables which packets are for a Service, which sources may
//! connect, and what is refused or masqueraded. IPVS only chooses the endpoint. The packet's mark
//! connects the two: the table's maps lead from address, protocol and port to the mark of a virtual
//! server. The frontends of one Service port that lead to the same endpoints share a virtual
//! server.
//!
//! ```text
//! filter-prerouting  restrict; steer; dispatch
//!     services       { 10.96.0.10 . tcp . 80 : 0x53400001, … }
//!                      masquerade unless a pod of this node sent it
//!     externals      { 192.0.2.7 . tcp . 80 : 0x53400001, … }   masquerade
//!     short-circuits { … }  locals { … }   external policy Local: selected by source
//!     nodeports      { tcp . 30080 : 0x53400001, … }   and two more for policy Local
//! nat-prerouting     with affinity, a known client goes directly to its endpoint:
//!     clients-7      { 203.0.113.9 . 0x53400001 : 0x53400001 . 0x5c0ffee1, … }  written by packets
//!     slots          { 0x53400001 . 0x5c0ffee1 : 10.0.1.5 . 8080, … }
//! ip rule, a route   deliver packets with such a mark to this node
//! IPVS               -f 1396703233: 10.0.1.5:8080 weight 1, 10.0.2.7:8080 weight 1
//! second-pass        packets that IPVS has forwarded traverse output again and get another mark
//! filter-*           refusals as in mode nftables, except of marked packets
//! after-ipvs         refuse packets that IPVS did not take
//! unmark, nat-postrouting
//! ```
//!
//! Rules that refuse packets count them.
//!
//! [`layout`] describes the marks and the sets, [`chains`] the rules.

mod allocation;
mod canonical;
mod chains;
mod compare;
mod diff;
mod full_affinity_maps;
mod idle;
mod inspect;
mod kernel;
mod layout;
mod missing_schedulers;
mod plan;
mod render;
mod replay;
mod rules;
mod scheduler_tables;
mod simulate;
mod table_diff;

pub use chains::COUNTED;
pub use diff::{Change, Departure, Step};
pub use full_affinity_maps::observe_full_affinity_maps;
pub use idle::IdleTimeouts;
pub use kernel::{Ipvs, open, open_with_socket};
pub use layout::{ENDING_TABLE, MARKS, TABLE};
pub use nftables_model::Memory;
pub use replay::Refused;
pub use rules::Rules;
pub use simulate::{paths, simulate, simulate_next};
