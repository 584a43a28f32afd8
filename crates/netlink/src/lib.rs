//! Netlink access to the kernel: nf_tables objects as values, their encoding and a socket for them;
//! conntrack entries; IPVS virtual servers; and policy routing for local delivery.
//!
//! This crate never runs the `nft` program: its version differs between a host and an image, and it
//! reads all tables of the machine before it changes one. A [`nf_tables::Transaction`] is data
//! until a [`Socket`] commits it; it can be printed as nft commands, compared, and replayed into a
//! simulated kernel.
//!
//! ```text
//! Transaction -encode-> bytes -Socket::commit-> kernel -Socket::observe_*-> bytes -decode-> values
//! ```
//!
//! A [`Listener`] receives a notification for each object of Signpost's tables that another program
//! changes.
//!
//! [`conntrack`] has a separate socket, because it lists and deletes connections while rules are
//! written. So have [`ipvs`], which uses generic netlink, and [`route`] and [`link`], which use
//! rtnetlink. [`ip_set`] and [`link`] only read and remove what another program has left behind.
//!
//! Sources: `include/uapi/linux/netfilter/nf_tables.h`, `include/uapi/linux/netfilter/nfnetlink.h`
//! and `net/netfilter/nf_tables_api.c` of Linux 6.1 to 6.18. There is no `unsafe` here: `rustix`
//! opens the sockets.

mod channel;
pub mod conntrack;
mod descriptor;
pub mod errno;
mod exchange;
mod foreign_generations;
mod generic;
#[cfg(test)]
mod hostile;
mod interruption;
pub mod ip_set;
pub mod ipvs;
pub mod link;
mod listener;
pub mod nf_tables;
mod notification;
pub mod route;
mod socket;
mod wire;

pub use descriptor::OpenError;
pub use foreign_generations::ForeignGenerations;
pub use generic::{ChangeError, QueryError};
pub use interruption::Interruption;
pub use listener::Listener;
pub use notification::{ForeignTransaction, KEPT_HOOKS, Notification, Process, Watched};
pub use socket::{CommitError, Named, ObserveError, Refusal, Socket, SocketPort};
