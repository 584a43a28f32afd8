//! nf_tables over netlink: its objects as values, their encoding, and one socket; connections; virtual
//! servers; and what is delivered to this node.
//!
//! The `nft` program is never run: its version differs between a host and an image, and it reads
//! all tables of the machine before it changes one. A [`nf_tables::Transaction`] is data until a
//! [`Socket`] commits it; it prints in nft's own language, compares, and can be replayed into a
//! simulated kernel.
//!
//! ```text
//! Transaction --encode--> bytes --Socket::commit--> kernel --Socket::observe_*--> bytes --decode--> values
//! ```
//!
//! A [`Listener`] receives what other programs do to Signpost's tables, one message an object.
//!
//! [`conntrack`] has a socket of its own: it lists and deletes connections while rules are written. So
//! has [`ipvs`], which speaks generic netlink, and [`route`], which speaks rtnetlink.
//!
//! Sources: `include/uapi/linux/netfilter/nf_tables.h`, `include/uapi/linux/netfilter/nfnetlink.h`
//! and `net/netfilter/nf_tables_api.c` of Linux 6.1 to 6.18. There is no `unsafe` here: sockets come
//! from `rustix`.

mod channel;
pub mod conntrack;
mod descriptor;
pub mod errno;
mod exchange;
mod generic;
#[cfg(test)]
mod hostile;
mod interruption;
pub mod ipvs;
mod ledger;
mod listener;
pub mod nf_tables;
mod notification;
pub mod route;
mod socket;
mod wire;

pub use descriptor::OpenError;
pub use generic::QueryError;
pub use interruption::Interruption;
pub use ledger::Ledger;
pub use listener::Listener;
pub use notification::{ForeignTransaction, Heard, Process, Watched};
pub use socket::{CommitError, Named, ObserveError, Refusal, Socket};
