//! nf_tables over netlink: its objects as values, their encoding, and one socket; connections; and
//! virtual servers.
//!
//! The `nft` program is never run: its version differs between a host and an image, and it reads
//! everybody's tables before it touches ours. A [`nf_tables::Transaction`] is data until a
//! [`Socket`] commits it; it prints in nft's own language, compares, and can be replayed into a
//! simulated kernel.
//!
//! ```text
//! Transaction --encode--> bytes --Socket::commit--> kernel --Socket::observe_*--> bytes --decode--> values
//! ```
//!
//! What others do to our tables is heard by a [`Listener`], one message an object they touch.
//!
//! [`conntrack`] has a socket of its own: it lists and deletes connections while rules are written. So
//! has [`ipvs`], which speaks generic netlink.
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
mod socket;
mod wire;

pub use descriptor::OpenError;
pub use generic::QueryError;
pub use interruption::Interruption;
pub use ledger::Ledger;
pub use listener::Listener;
pub use notification::{ForeignTransaction, Heard, Process, Watched};
pub use socket::{CommitError, Named, ObserveError, Refusal, Socket};
