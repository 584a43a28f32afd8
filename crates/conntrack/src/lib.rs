//! Connections that the kernel goes on forwarding to where nothing answers any more, and the worker
//! that makes it forget them; and how many it may remember, and for how long.
//!
//! The kernel decides where a connection goes by its first packet and keeps to it. Over UDP a client
//! that keeps its source port never makes another: it goes on talking to an endpoint that is gone
//! (kubernetes#125467).
//!
//! ```text
//! reconciler --Feed: each Dataplane of a family, or that it is unknown--> run
//!    every step --add_step--> Doubts                  pure; nothing in doubt: nothing is listed
//!    Doubts + newest --compile--> Watchlist           pure
//!    kernel's flows, one by one --is_stale--> commit_deletion
//!    Pass: what was done, what is left, why
//! ```
//!
//! A list is a walk over every bucket of the kernel's table, those of all network namespaces, and
//! there is no way around it: an entry can be asked for, or deleted, without one only by its whole
//! tuple, and the client's address and port in it are not recorded anywhere. Recording them would not
//! help: it takes a notification of every connection (`NFNLGRP_CONNTRACK_NEW`), all day long, for the
//! few that ever become stale. So this crate saves walks: none where nothing can be stale, one a
//! protocol for all that happens within a pause, and long pauses.
//!
//! Doubts are dispelled only when every stale flow is gone. Until then each pass looks for all of
//! them again, so that nothing is lost by a failure, by a change that is taken back before its
//! pass, or by a restart, after which everything is in doubt.

mod agenda;
mod doubts;
mod feed;
pub mod limits;
mod pass;
mod watchlist;
mod worker;

pub use doubts::Doubts;
pub use feed::{Feed, Knowledge};
pub use pass::{Outcome, Pass, PassError};
pub use watchlist::Watchlist;
pub use worker::run;
