//! nf_tables over netlink: its objects as values, their encoding, and one socket.
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
//! Sources: `include/uapi/linux/netfilter/nf_tables.h`, `include/uapi/linux/netfilter/nfnetlink.h`
//! and `net/netfilter/nf_tables_api.c` of Linux 6.1 to 6.18. There is no `unsafe` here: sockets come
//! from `rustix`.

pub mod nf_tables;
mod socket;
mod wire;

pub use socket::{CommitError, Named, ObserveError, OpenError, Refusal, Socket};
