//! Deletes stale connections, which the kernel still forwards to endpoints that no longer answer;
//! sets the limits and timeouts of the connection tracking table; and says how full it is.
//!
//! An agent calls [`start`] once, [`post`]s each report of the reconciler, and puts [`findings`] of the
//! [`ConntrackState`] into its status. It hands in what the tasks read; they know no agent.
//!
//! The kernel decides where a connection goes by its first packet and keeps to that. A UDP client
//! that keeps its source port never starts a new connection: it continues to send to an endpoint
//! that has been removed (kubernetes#125467).
//!
//! ```text
//! reconciler --Feed: each Dataplane of a family, or Unknown--> run
//!    every step --add_step--> StaleCandidates         pure; none: nothing is listed
//!    StaleCandidates + newest --compile--> StaleFlows pure
//!    kernel's flows, one at a time --is_stale--> commit_deletion
//!    Pass: what was done, what remains, and why
//! ```
//!
//! A dump of the table walks every bucket of the kernel's table, which all network namespaces
//! share. That cannot be avoided: without a dump, an entry can be requested or deleted only by its
//! whole tuple, and nothing records the client's address and port in it. Recording them would not
//! help: that takes a notification of every connection (`NFNLGRP_CONNTRACK_NEW`), all the time, for
//! the few that ever become stale. So this crate saves dumps: none while nothing can be stale, one
//! per protocol for everything that happens during a pause, and long pauses.
//!
//! [`StaleCandidates`] are cleared only when every stale flow is gone. Until then each pass searches for all
//! of them again. So no stale flow is missed because of a failure, a change that is reverted before
//! its pass, or a restart, after which every flow is in doubt.

mod feed;
mod kept_hooks;
pub mod limits;
mod pass;
mod pass_schedule;
mod stale_candidates;
mod stale_flows;
mod tasks;
mod worker;

pub use feed::{Feed, ProgrammedState};
pub use kept_hooks::{KeepError, KeptHooks};
pub use pass::{Outcome, Pass, PassError};
pub use stale_candidates::StaleCandidates;
pub use stale_flows::StaleFlows;
pub use tasks::{
    ConntrackState, Inputs, Limits, Pressure, degradation, findings, observe_fill, post, start,
};
pub use worker::run;
